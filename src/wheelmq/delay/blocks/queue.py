"""The queue of one block: units of 24 bytes in mapped files, in the order in which messages came (ours; the seed's
ScheduledTempQueue).

It follows from the block's log, but for one flag: that a message is out. That follows from the commit log, of which old
files go while the block is still there; so the flag is set once the record that says it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_BLANK, FLAG_DONE, FLAG_LONG
from wheelmq.formats.units import Millis
from wheelmq.store.mapped import MappedSequence

FILES_LOOKED_AT: Final = 3
"""At a start the units of so many files are looked at, the last ones; those before them were long on disk."""

Units = npt.NDArray[Any]
"""An array of BLOCK_UNIT.dtype."""
Indices = npt.NDArray[np.int64]

_NEVER: Final = -1


class BlockQueue:
    """The units. `end` is the index that the next one gets."""

    def __init__(self, files: MappedSequence) -> None:
        assert files.file_bytes % BLOCK_UNIT.size == 0 and files.start == 0
        self.files = files
        self.end = 0
        self._synced = 0
        self._flagged_from = _NEVER
        """The least index that was flagged since the last sync."""

    @property
    def units_per_file(self) -> int:
        return self.files.file_bytes // BLOCK_UNIT.size

    def make_room(self) -> None:
        """Have room for the next unit. Raises DiskFull with nothing changed."""
        self.files.grow(self.end * BLOCK_UNIT.size, BLOCK_UNIT.size)

    def add(self, position: int, size: int, due_ms: Millis, flags: int = 0) -> None:
        """Write the next unit, for which there is room. Where a recovery finds the same, its flag stays."""
        found = BLOCK_UNIT.unpack(self._units(self.end).data)
        is_same = (position, size, due_ms) == (found["position"], found["size"], found["due_ms"])
        self._put(BLOCK_UNIT.pack(position, size, due_ms, flags | (found["flags"] & FLAG_DONE if is_same else 0)))

    def skip_to(self, index: int) -> None:
        """Fill up with blanks, so that the next unit gets `index` or more. Raises DiskFull."""
        while self.end < index:
            self.make_room()
            self._put(BLOCK_UNIT.pack(0, 0, 0, FLAG_BLANK))

    def _put(self, unit: bytes) -> None:
        at = self.end * BLOCK_UNIT.size
        file = self.files.file_at(at)
        at %= self.files.file_bytes
        file.view[at : at + BLOCK_UNIT.size] = unit
        self.end += 1

    def read(self, index: int, count: int) -> Units:
        """At most `count` units from `index` on, as many as one file holds; 0 <= index < end."""
        assert 0 <= index < self.end, (index, self.end)
        count = min(count, self.end - index)
        return self._units(index)[:count]

    def _units(self, index: int) -> Units:
        """The units of the file of `index` from there to its end, whatever they are."""
        at = index * BLOCK_UNIT.size
        file = self.files.file_at(at)
        at %= self.files.file_bytes
        return file.array[at:].view(BLOCK_UNIT.dtype)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Units]]:
        """The units from `start` to `stop` or the end, file by file, each with the index of the first."""
        stop = self.end if stop is None else stop
        while start < stop:
            units = self.read(start, stop - start)
            yield start, units
            start += len(units)

    def due_between(self, after_ms: int, through_ms: int, stop: int) -> tuple[Indices, Units]:
        """The messages before index `stop` that are due later than `after_ms` up to `through_ms`: indices, units."""
        indices, found = [np.empty(0, np.int64)], [np.empty(0, BLOCK_UNIT.dtype)]
        for first, units in self.chunks(0, stop):
            due_ms = units["due_ms"]
            mine = np.flatnonzero((due_ms > after_ms) & (due_ms <= through_ms))
            indices.append(first + mine)
            found.append(units[mine])
        return np.concatenate(indices), np.concatenate(found)

    # What is out ---------------------------------------------------------------------------------------------------

    def flag_done(self, indices: Indices) -> None:
        """Note in their units that messages are out; the record that says it is on disk. Others are passed over."""
        indices = np.unique(indices[(indices >= 0) & (indices < self.end)])
        for number in np.unique(indices // self.units_per_file).tolist():
            first = number * self.units_per_file
            at = indices[indices // self.units_per_file == number] - first
            flags = self._units(first)["flags"]
            at = at[flags[at] & (FLAG_DONE | FLAG_BLANK) == 0]
            flags[at] |= FLAG_DONE
            if len(at):
                least = first + int(at[0])
                self._flagged_from = least if self._flagged_from == _NEVER else min(self._flagged_from, least)

    def done(self) -> Indices:
        """The indices of what is flagged as being out, and of those that no message has."""
        found = [first + np.flatnonzero(units["flags"] & (FLAG_DONE | FLAG_BLANK)) for first, units in self.chunks()]
        return np.concatenate([np.empty(0, np.int64), *found])

    # Recovery and sync ---------------------------------------------------------------------------------------------

    def load(self, start_ms: Millis, end_ms: Millis, log_end: int) -> None:
        """Find the end: the first unit that is none of a block due from `start_ms` to before `end_ms`, whose log files
        end at `log_end`.

        Where there are more than three files, those before the last three count as whole.
        """
        files = self.files
        first = max(0, files.end - FILES_LOOKED_AT * files.file_bytes)
        self.end = first // BLOCK_UNIT.size
        position = 0
        while self.end * BLOCK_UNIT.size < files.end:
            units = self._units(self.end)
            good = _are_whole(units, start_ms, end_ms, position, log_end)
            self.end += good
            if good < len(units):
                break
            named = units["size"] > 0
            if named.any():
                position = int(units["position"][named][-1] + units["size"][named][-1])
        self._synced = self.end

    def cut(self, index: int) -> None:
        """Drop the units from `index` on."""
        self.files.cut(index * BLOCK_UNIT.size)
        self.end = min(self.end, index)
        self._synced = min(self._synced, self.end)

    @property
    def is_changed(self) -> bool:
        """Whether anything was written since the last sync."""
        return self._synced < self.end or self._flagged_from != _NEVER

    def sync_job(self) -> Callable[[], None]:
        """What brings all that was written to disk; may run off the loop."""
        first = self._synced if self._flagged_from == _NEVER else min(self._synced, self._flagged_from)
        end, flagged_from = self.end, self._flagged_from
        sync = self.files.sync_job(first * BLOCK_UNIT.size, end * BLOCK_UNIT.size)
        self._flagged_from = _NEVER

        def job() -> None:
            try:
                sync()
            except OSError:
                self._flagged_from = flagged_from
                raise
            self._synced = max(self._synced, end)

        return job


def _are_whole(units: Units, start_ms: Millis, end_ms: Millis, position: int, log_end: int) -> int:
    """How many units at the front are whole: blanks, or such as name a message due in that time, each behind the one
    before it in the log, the first not before `position`."""
    blank = (units["size"] == 0) & (units["flags"] == FLAG_BLANK)
    positions, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
    good = (sizes > 0) & (units["due_ms"] >= start_ms) & (units["due_ms"] < end_ms)
    good &= units["flags"].astype(np.int32) & ~np.int32(FLAG_DONE | FLAG_LONG) == 0
    ends = np.where(blank, 0, positions + sizes)
    before = np.maximum.accumulate(np.concatenate(([position], ends[:-1])))
    good &= (positions >= before) & (positions + sizes <= log_end)
    good |= blank
    return len(units) if good.all() else int(np.argmin(good))
