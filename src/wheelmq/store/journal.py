"""The journal: one row for each record appended in the running round or tick, in log order.

The store derives queue units from the rows, then the timer takes the parked messages (`formats.kernels.journal`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.formats.kernels.journal import COLUMNS

Rows = npt.NDArray[np.int64]


class Journal:
    """Rows of `COLUMNS` 64-bit integers. The first `count` of them are filled."""

    def __init__(self, capacity: int = 65_536) -> None:
        self.table: Rows = np.zeros((capacity, COLUMNS), np.int64)
        self.count = 0

    def prepare(self, *row: int) -> None:
        """Write the next row, its columns in order. The row counts only after `add_prepared`, which cannot fail."""
        if self.count == len(self.table):
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self.table[self.count] = row

    def add_prepared(self) -> None:
        self.count += 1

    def add(self, rows: Rows) -> None:
        """Add whole rows."""
        count = self.count + len(rows)
        while count > len(self.table):
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self.table[self.count : count] = rows
        self.count = count

    def rows(self) -> Rows:
        """Return a view of the rows. It stays valid after `clear` until rows are added again."""
        return self.table[: self.count]

    def clear(self) -> None:
        self.count = 0
