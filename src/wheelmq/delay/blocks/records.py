"""Read the records that units of a block's queue name, many at a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import NEVER_MS, LogPosition
from wheelmq.store.mapped import HeldFiles, MappedSequence
from wheelmq.store.recovery import InternedNames, LogDamaged, LogScan, Rows

AT_ONCE: Final = 1 << 14
"""Units whose records are scanned together."""


class UnitRecords:
    """Reads records of block `number`, whose log is `files`, by their units."""

    def __init__(
        self, files: MappedSequence, number: int, *, check_bodies: bool = True, names: InternedNames | None = None
    ) -> None:
        """Create a reader that adds the topics of the records to `names`."""
        self._files = files
        self._number = number
        self._scan = LogScan(files, LogPosition(0), check_bodies=check_bodies, whole_before_ms=NEVER_MS, names=names)

    @property
    def names(self) -> InternedNames:
        return self._scan.names

    def read(self, indices: Indices, units: Units) -> Rows:
        """Return a row (columns of `kernels.scan`) for each unit. `indices` are the units' indices in the queue.

        The row is all zero if the record at the unit's position is damaged, or is another record.
        """
        found = np.zeros((len(units), col.COLUMNS), np.int64)
        for first in range(0, len(units), AT_ONCE):
            self._read(indices[first : first + AT_ONCE], units[first : first + AT_ONCE], found[first:])
        return found

    def _read(self, indices: Indices, units: Units, found: Rows) -> None:
        """Fill the front of `found`. If a scan finds damage, scan each half separately."""
        rows = self._walk(units["position"].astype(np.int64), units["size"].astype(np.int64))
        if rows is not None:
            mine = (rows[:, col.QUEUE_ID] == self._number) & (rows[:, col.QUEUE_OFFSET] == indices)
            mine &= ~np.isin(rows[:, col.POSITION], list(self._scan.damaged))
            found[: len(units)][mine] = rows[mine]
        elif len(units) > 1:
            half = len(units) // 2
            self._read(indices[:half], units[:half], found)
            self._read(indices[half:], units[half:], found[half:])

    def _walk(self, positions: Rows, sizes: Rows) -> Rows | None:
        if not can_be_records(positions, sizes, self._files):
            return None
        try:
            rows = np.concatenate(list(self._scan.records_at(positions, sizes)))
        except LogDamaged:
            return None
        is_right = np.array_equal(rows[:, col.POSITION], positions) and np.array_equal(rows[:, col.SIZE], sizes)
        return rows if is_right else None


def can_be_records(positions: Rows, sizes: Rows, files: MappedSequence | HeldFiles) -> bool:
    ends = positions + sizes
    is_in_log = (sizes > 0) & (positions >= files.start) & (ends <= files.end)
    is_in_one_file = positions // files.file_bytes == (ends - 1) // files.file_bytes
    return bool((is_in_log & is_in_one_file).all() and (positions[1:] >= ends[:-1]).all())
