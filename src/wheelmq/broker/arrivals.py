"""What one tick appended to queues, by tag: which held pulls it concerns."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.formats.kernels.journal import QUEUE, QUEUE_OFFSET, TAG_CODE
from wheelmq.store.journal import Rows

TAG_CODES_END: Final = 1 << 31
"""A code beyond 32 bits stands for something else than a tag, and passes (RocketMQ: CqUnit.isTagsCodeValid)."""


def is_of_a_tag(code: int) -> bool:
    """Whether a queue unit's code is that of a tag."""
    return -TAG_CODES_END <= code < TAG_CODES_END


class Arrivals:
    """Journal rows of a tick. They are sorted when first asked about, which few ticks are."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._is_sorted = False

    def first_by_code(self, queue_row: int) -> dict[int, int]:
        """The first queue offset of each code that the queue got."""
        if not self._is_sorted:
            self._rows = self._rows[np.argsort(self._rows[:, QUEUE], kind="stable")]
            self._is_sorted = True
        first, end = np.searchsorted(self._rows[:, QUEUE], (queue_row, queue_row + 1))
        mine = self._rows[first:end][::-1]
        return dict(zip(mine[:, TAG_CODE].tolist(), mine[:, QUEUE_OFFSET].tolist(), strict=True))
