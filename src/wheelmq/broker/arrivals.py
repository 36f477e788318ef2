"""The messages of one dispatch, by queue, tag code and properties, for the held pulls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from wheelmq.filter.expression import Properties
from wheelmq.formats.disk.properties import StoredProperties
from wheelmq.formats.kernels.journal import POSITION, QUEUE, QUEUE_OFFSET, SIZE, TAG_CODE
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.journal import Rows

TAG_CODES_END: Final = 1 << 31
"""A code beyond 32 bits is not the code of a tag, and passes every filter (RocketMQ: CqUnit.isTagsCodeValid)."""

Matches = Callable[[Properties], bool]
"""Returns whether a message with these properties passes. Equal functions pass the same messages."""


def is_of_a_tag(code: int) -> bool:
    return -TAG_CODES_END <= code < TAG_CODES_END


class Arrivals:
    """Journal rows of a tick. The first query sorts them, and few ticks have a query."""

    def __init__(self, rows: Rows, log: CommitLog) -> None:
        self._rows = rows
        self._log = log
        self._is_sorted = False

    def of(self, queue_row: int) -> QueueArrivals:
        if not self._is_sorted:
            self._rows = self._rows[np.argsort(self._rows[:, QUEUE], kind="stable")]
            self._is_sorted = True
        first, end = np.searchsorted(self._rows[:, QUEUE], (queue_row, queue_row + 1))
        return QueueArrivals(self._rows[first:end], self._log)


class QueueArrivals:
    """The messages that one queue got in a tick. The first query by properties reads the properties, once."""

    def __init__(self, rows: Rows, log: CommitLog) -> None:
        self._rows = rows
        self._log = log
        self._properties: list[tuple[int, StoredProperties | None]] | None = None

    def first_by_code(self) -> dict[int, int]:
        backwards = self._rows[::-1]
        return dict(zip(backwards[:, TAG_CODE].tolist(), backwards[:, QUEUE_OFFSET].tolist(), strict=True))

    def first_that(self, matches: Matches) -> int | None:
        """Return the queue offset of the first message that passes, or whose properties cannot be read; else None."""
        if self._properties is None:
            wanted = self._rows[:, (QUEUE_OFFSET, POSITION, SIZE)].tolist()
            self._properties = [(offset, self._log.properties_at(position, size)) for offset, position, size in wanted]
        passing = (offset for offset, found in self._properties if found is None or matches(found))
        return next(passing, None)
