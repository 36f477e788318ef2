"""The queue of one block: units of 24 bytes in mapped files, in the order of the messages' arrival.

The format is WheelMQ's own (the seed's ScheduledTempQueue). The units follow from the block's log, and their flags of
settled messages from the commit log. Its old files are deleted while the block exists, so a flag is set once the record
that settles the message is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_BLANK, FLAG_DONE, FLAG_LONG, BlockCheckpoint
from wheelmq.formats.units import Millis
from wheelmq.store.mapped import MappedSequence

FILES_LOOKED_AT: Final = 3
"""Number of last files whose units a start checks. The units of earlier files have been on disk for a long time."""

LOOKED_AT_ONCE: Final = 1 << 13
"""Units that are checked at once. Most blocks have few units, and the rest of their file is not read."""

Units = npt.NDArray[Any]
"""An array of BLOCK_UNIT.dtype."""
Indices = npt.NDArray[np.int64]


class BlockQueue:
    """The units of a block. `end` is the index of the next unit."""

    start: Final = 0

    def __init__(self, files: MappedSequence) -> None:
        assert files.file_bytes % BLOCK_UNIT.size == 0 and files.start == 0
        self.files = files
        self.end = 0
        self._synced = 0
        self._flagged_from: int | None = None
        """The least index that was flagged since the last sync."""

    @property
    def units_per_file(self) -> int:
        return self.files.file_bytes // BLOCK_UNIT.size

    def make_room(self) -> None:
        """Get room for the next unit. Raises DiskFull with nothing changed."""
        self._make_room(1)

    def _make_room(self, count: int) -> None:
        self.files.grow(self.end * BLOCK_UNIT.size, count * BLOCK_UNIT.size)

    def add(self, position: int, size: int, due_ms: Millis, flags: int = 0) -> None:
        """Write the next unit. There must be room for it."""
        self._put(BLOCK_UNIT.pack(position, size, due_ms, flags))

    def add_many(self, indices: Indices, positions: Indices, sizes: Indices, dues_ms: Indices, flags: Indices) -> None:
        """Write the units that a recovery found, with blanks for the indices between them. Raises DiskFull.

        `indices` are ascending, from the end or a later index. If the file already has the same unit, its flag stays.
        """
        at = 0
        while at < len(indices):
            first = self.end
            self.make_room()
            room = self._units(first)  # up to the end of the file
            stop = int(np.searchsorted(indices, first + len(room)))
            count = len(room) if stop < len(indices) else int(indices[-1]) + 1 - first
            self._make_room(count)
            made = np.zeros(count, BLOCK_UNIT.dtype)
            made["flags"] = FLAG_BLANK
            named = indices[at:stop] - first
            made["position"][named], made["size"][named] = positions[at:stop], sizes[at:stop]
            made["due_ms"][named], made["flags"][named] = dues_ms[at:stop], flags[at:stop]
            is_same = np.ones(count, np.bool_)
            for name in ("position", "size", "due_ms"):
                is_same &= made[name] == room[name][:count]
            is_same &= made["size"] > 0
            made["flags"] |= np.where(is_same, room["flags"][:count] & FLAG_DONE, 0)
            room[:count] = made
            self.end, at = first + count, stop

    def skip_to(self, index: int) -> None:
        """Add blanks until the next unit gets `index` or a higher index. Raises DiskFull."""
        while self.end < index:
            self.make_room()
            self._put(BLOCK_UNIT.pack(0, 0, 0, FLAG_BLANK))

    def _put(self, unit: bytes) -> None:
        at = self.end * BLOCK_UNIT.size
        file = self.files.file_at(at)
        at %= self.files.file_bytes
        file.view[at : at + BLOCK_UNIT.size] = unit
        self.end += 1

    def write_ahead(self, units: Units) -> Callable[[], None]:
        """Write units of a copy from the end on. They do not count before `take_ahead`. Raises DiskFull.

        Returns the job that syncs them. The job may run off the event loop.
        """
        at, raw = self.end * BLOCK_UNIT.size, memoryview(units.tobytes())
        stop = at + len(raw)
        while at < stop:
            place = at % self.files.file_bytes
            count = min(stop - at, self.files.file_bytes - place)
            file = self.files.grow(at, count)
            file.view[place : place + count], raw = raw[:count], raw[count:]
            at += count
        return self.files.sync_job(self.end * BLOCK_UNIT.size, stop)

    def take_ahead(self, count: int) -> None:
        """Count the next units, which `write_ahead` wrote."""
        self.end += count

    def drop_ahead(self, count: int) -> None:
        """Zero the next units, which `write_ahead` may have written."""
        at = self.end * BLOCK_UNIT.size
        for _, file, start, stop in self.files.pieces(at, min(at + count * BLOCK_UNIT.size, self.files.end)):
            file.array[start:stop] = 0

    def read(self, index: int, count: int) -> Units:
        """Return at most `count` units from `index` on, from one file; 0 <= index < end."""
        assert 0 <= index < self.end, (index, self.end)
        count = min(count, self.end - index)
        return self._units(index)[:count]

    def _units(self, index: int) -> Units:
        at = index * BLOCK_UNIT.size
        file = self.files.file_at(at)
        at %= self.files.file_bytes
        return file.array[at:].view(BLOCK_UNIT.dtype)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Units]]:
        """Yield the units from `start` to `stop` or the end, file by file, each with the index of its first unit."""
        stop = self.end if stop is None else stop
        while start < stop:
            units = self.read(start, stop - start)
            yield start, units
            start += len(units)

    def due_between(self, after_ms: int, through_ms: int, stop: int) -> tuple[Indices, Units]:
        """Return indices and units of the messages before index `stop` due after `after_ms` and by `through_ms`."""
        indices, found = [np.empty(0, np.int64)], [np.empty(0, BLOCK_UNIT.dtype)]
        for first, units in self.chunks(0, stop):
            due_ms = units["due_ms"]
            mine = np.flatnonzero((due_ms > after_ms) & (due_ms <= through_ms))
            indices.append(first + mine)
            found.append(units[mine])
        return np.concatenate(indices), np.concatenate(found)

    # Settled messages ----------------------------------------------------------------------------------------------

    def flag_done(self, indices: Indices) -> None:
        """Flag units of messages whose settling records are on disk. Skip blanks and indices outside the queue."""
        indices = np.sort(indices[(indices >= 0) & (indices < self.end)])
        while len(indices):
            first = int(indices[0]) // self.units_per_file * self.units_per_file
            stop = int(np.searchsorted(indices, first + self.units_per_file))
            at, indices = indices[:stop] - first, indices[stop:]
            flags = self._units(first)["flags"]
            at = at[flags[at] & (FLAG_DONE | FLAG_BLANK) == 0]
            flags[at] |= FLAG_DONE
            if len(at):
                least = first + int(at[0])
                self._flagged_from = least if self._flagged_from is None else min(self._flagged_from, least)

    def are_blank(self, indices: Indices) -> npt.NDArray[np.bool_]:
        """Return which units are blank. Indices after the end are not."""
        found = np.zeros(len(indices), np.bool_)
        for number in np.unique(indices[indices < self.end] // self.units_per_file).tolist():
            first = number * self.units_per_file
            mine = (indices >= first) & (indices < min(first + self.units_per_file, self.end))
            found[mine] = self._units(first)["flags"][indices[mine] - first] & FLAG_BLANK
        return found

    def done(self) -> Indices:
        found = [first + np.flatnonzero(units["flags"] & (FLAG_DONE | FLAG_BLANK)) for first, units in self.chunks()]
        return np.concatenate([np.empty(0, np.int64), *found])

    # Recovery and sync ---------------------------------------------------------------------------------------------

    def load(self, start_ms: Millis, end_ms: Millis, log_end: int) -> None:
        """Find the end: the first unit that cannot belong to the block. Checks only the last three files.

        Its messages are due from `start_ms` to before `end_ms`, and its log files end at `log_end`.
        """
        files = self.files
        first = max(0, files.end - FILES_LOOKED_AT * files.file_bytes)
        self.end = first // BLOCK_UNIT.size
        position = 0
        while self.end * BLOCK_UNIT.size < files.end:
            units = self._units(self.end)[:LOOKED_AT_ONCE]
            good = _are_whole(units, start_ms, end_ms, position, log_end)
            self.end += good
            if good < len(units):
                break
            named = units["size"] > 0
            if named.any():
                position = int(units["position"][named][-1] + units["size"][named][-1])
        self._synced = self.end

    def resume(self, known: BlockCheckpoint, log_end: int) -> int:
        """Find the end as `load` does, but not after the end in the last checkpoint.

        Returns the log position from which the log must be scanned for records without units.
        """
        self.load(known.start_ms, known.end_ms, log_end)
        position = known.log_position
        if self.end < known.units:
            self.end = max(0, self.end - 1)  # if a unit names too many bytes, the next unit looks wrong
            position = self.position_after(self.end)
        else:
            self.end = known.units
        self._synced = self.end  # later units are perhaps in memory alone
        return position

    def position_after(self, index: int) -> int:
        """Return the end of the last record whose unit is before `index`."""
        for start in range(max(0, index - 1) // self.units_per_file, -1, -1):
            for _, units in self.chunks(start * self.units_per_file, index):
                named = np.flatnonzero(units["size"])
                if len(named):
                    return int(units["position"][named[-1]] + units["size"][named[-1]])
        return 0

    def cut(self, index: int) -> None:
        self.files.cut(index * BLOCK_UNIT.size)
        self.end = min(self.end, index)
        self._synced = min(self._synced, self.end)

    @property
    def is_changed(self) -> bool:
        return self._synced < self.end or self._flagged_from is not None

    def sync_job(self) -> Callable[[], None]:
        """Return the job that syncs the written units. The job may run off the event loop."""
        first = self._synced if self._flagged_from is None else min(self._synced, self._flagged_from)
        end, flagged_from = self.end, self._flagged_from
        sync = self.files.sync_job(first * BLOCK_UNIT.size, end * BLOCK_UNIT.size)
        self._flagged_from = None

        def job() -> None:
            try:
                sync()
            except OSError:
                self._flagged_from = flagged_from
                raise
            self._synced = max(self._synced, end)

        return job


def _are_whole(units: Units, start_ms: Millis, end_ms: Millis, position: int, log_end: int) -> int:
    """Return the number of whole units at the front: blanks, or units that name records of the block in order."""
    blank = (units["size"] == 0) & (units["flags"] == FLAG_BLANK)
    positions, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
    good = (sizes > 0) & (units["due_ms"] >= start_ms) & (units["due_ms"] < end_ms)
    good &= units["flags"].astype(np.int32) & ~np.int32(FLAG_DONE | FLAG_LONG) == 0
    ends = np.where(blank, 0, positions + sizes)
    before = np.maximum.accumulate(np.concatenate(([position], ends[:-1])))
    good &= (positions >= before) & (positions + sizes <= log_end)
    good |= blank
    return len(units) if good.all() else int(np.argmin(good))
