"""The journal: one row for each record appended in the running round or tick, in log order.

The store derives queue units from the rows, then the timer takes the parked messages (`formats.kernels.journal`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.journal import COLUMNS

Rows = npt.NDArray[np.int64]


BACKLOG_MAX: Final = 500_000
"""Records that may wait for replicas. Then the broker takes no sends and releases nothing, so memory is bounded."""


class Journal:
    """Rows of `COLUMNS` 64-bit integers. The first `count` of them are filled."""

    def __init__(self, capacity: int = 65_536) -> None:
        self.table: Rows = np.zeros((capacity, COLUMNS), np.int64)
        self.count = 0

    def prepare(self, *row: int) -> None:
        """Write the next row, its columns in order. The row counts only after `add_prepared`, which cannot fail."""
        self.make_room(1)
        self.table[self.count] = row

    def add_prepared(self) -> None:
        self.count += 1

    def add(self, rows: Rows) -> None:
        """Add whole rows."""
        self.make_room(len(rows))
        count = self.count + len(rows)
        self.table[self.count : count] = rows
        self.count = count

    def make_room(self, rows: int) -> None:
        """Make `table` long enough for further rows."""
        while self.count + rows > len(self.table):
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))

    @property
    def is_full(self) -> bool:
        """Whether too many records wait for replicas."""
        return self.count >= BACKLOG_MAX

    def rows(self) -> Rows:
        """Return a view of the rows. It stays valid until rows are dropped or added."""
        return self.table[: self.count]

    def take(self, count: int) -> Rows:
        """Remove the first `count` rows and return them. They stay valid until rows are added."""
        left = self.count - count
        taken = self.table[:count]
        if left:
            taken = taken.copy()
            self.table[:left] = self.table[count : self.count].copy()
        self.count = left
        return taken
