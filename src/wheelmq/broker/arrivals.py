"""What one tick appended to queues: which held pulls it concerns, by their tags and by their expressions."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.broker.request import Matches
from wheelmq.formats.disk.properties import StoredProperties
from wheelmq.formats.kernels.journal import POSITION, QUEUE, QUEUE_OFFSET, SIZE, TAG_CODE
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.journal import Rows

TAG_CODES_END: Final = 1 << 31
"""A code beyond 32 bits stands for something else than a tag, and passes (RocketMQ: CqUnit.isTagsCodeValid)."""


def is_of_a_tag(code: int) -> bool:
    """Whether a queue unit's code is that of a tag."""
    return -TAG_CODES_END <= code < TAG_CODES_END


class Arrivals:
    """Journal rows of a tick. They are sorted when first asked about, which few ticks are."""

    def __init__(self, rows: Rows, log: CommitLog) -> None:
        self._rows = rows
        self._log = log
        self._is_sorted = False

    def of(self, queue_row: int) -> QueueArrivals:
        """What one queue got."""
        if not self._is_sorted:
            self._rows = self._rows[np.argsort(self._rows[:, QUEUE], kind="stable")]
            self._is_sorted = True
        first, end = np.searchsorted(self._rows[:, QUEUE], (queue_row, queue_row + 1))
        return QueueArrivals(self._rows[first:end], self._log)


class QueueArrivals:
    """What one queue got in a tick. Properties are read when first asked about, and once."""

    def __init__(self, rows: Rows, log: CommitLog) -> None:
        self._rows = rows
        self._log = log
        self._properties: list[tuple[int, StoredProperties | None]] | None = None

    def first_by_code(self) -> dict[int, int]:
        """The first queue offset of each tag code."""
        backwards = self._rows[::-1]
        return dict(zip(backwards[:, TAG_CODE].tolist(), backwards[:, QUEUE_OFFSET].tolist(), strict=True))

    def first_that(self, matches: Matches) -> int | None:
        """The queue offset of the first message that passes, or cannot be asked about: a pull tells of that."""
        if self._properties is None:
            wanted = self._rows[:, (QUEUE_OFFSET, POSITION, SIZE)].tolist()
            self._properties = [(offset, self._log.properties_at(position, size)) for offset, position, size in wanted]
        passing = (offset for offset, found in self._properties if found is None or matches(found))
        return next(passing, None)
