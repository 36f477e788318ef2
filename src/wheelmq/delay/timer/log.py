"""The timer log: units of 52 bytes in mapped files, chained by slot (RocketMQ: TimerLog)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.disk.message import BLANK_MAGIC
from wheelmq.formats.disk.timer import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_HIDDEN, TIMER_UNIT
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import timer as kernel
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.mapped_file import Bytes, MappedFile

BLANK_BYTES = 16
SUM_FROM: Final = TIMER_UNIT.position_of("write_ms")
SUM_TO: Final = TIMER_UNIT.size
"""The checksum of a file covers these bytes of each unit.

It leaves out the link to the previous unit, which a start repairs, and the magic, which a stop changes.
"""
SUM_UNITS: Final = 1 << 16
Units = npt.NDArray[Any]
"""An array of TIMER_UNIT.dtype."""


class TimerLog:
    """The units of all indexed timers. `end` is the timer log position of the next unit."""

    def __init__(self, files: MappedSequence) -> None:
        self.files = files
        self.end = files.start
        self.synced = files.start
        self._whole_to = 0
        """All units before this position are complete, as the last start has checked."""
        self._sums: dict[int, tuple[int, int]] = {}
        """For each file, by its start: the position up to which its units were summed, and their checksum."""

    def append(self, units: Units, slots_ms: npt.NDArray[np.int64], wheel: TimerWheel) -> None:
        """Append `units` and link each into its slot. Raises DiskFull with nothing changed."""
        self.make_room(len(units))
        done = 0
        while done < len(units):
            position = self._next_position()
            at = position % self.files.file_bytes
            count = min(len(units) - done, (self.files.file_bytes - BLANK_BYTES - at) // TIMER_UNIT.size)
            file = self.files.file_at(position)
            chosen = slice(done, done + count)
            self._write(file, at, position - at, units[chosen], slots_ms[chosen], wheel)
            self.end = position + count * TIMER_UNIT.size
            done += count

    @staticmethod
    def _write(
        file: MappedFile, at: int, base: int, units: Units, slots_ms: npt.NDArray[np.int64], wheel: TimerWheel
    ) -> None:
        if jit.available():
            kernel.append_units(
                wheel.bytes,
                wheel.units,
                wheel.precision_ms,
                file.array,
                at,
                base,
                units.view(np.uint8),
                np.ascontiguousarray(slots_ms),
            )
            return
        deletes = (units["magic"] & MAGIC_DELETE) != 0
        for i, slot_ms in enumerate(slots_ms.tolist()):
            target = at + i * TIMER_UNIT.size
            units[i]["previous_position"] = wheel.put(slot_ms, base + target, deletes=bool(deletes[i]))
            file.view[target : target + TIMER_UNIT.size] = units[i].tobytes()

    def make_room(self, count: int) -> None:
        """Get room for the next `count` units and the blanks between them. Raises DiskFull with nothing changed."""
        per_file = (self.files.file_bytes - BLANK_BYTES) // TIMER_UNIT.size
        at = self.end % self.files.file_bytes
        base = self.end - at
        while count:
            taken = min(count, per_file - at // TIMER_UNIT.size)
            self.files.grow(base + at, taken * TIMER_UNIT.size + BLANK_BYTES)
            count -= taken
            base, at = base + self.files.file_bytes, 0

    def _next_position(self) -> int:
        """Return the position of the next unit. Ends a full file with a blank, and goes to the next file."""
        at = self.end % self.files.file_bytes
        left = self.files.file_bytes - at
        if at + TIMER_UNIT.size + BLANK_BYTES <= self.files.file_bytes:
            return self.end
        view = self.files.file_at(self.end).view
        view[at : at + BLANK_BYTES] = left.to_bytes(4, "big") + bytes(8) + BLANK_MAGIC.to_bytes(4, "big")
        return self.end + left

    def chunks(self, start: int, end: int) -> Iterator[tuple[int, Units]]:
        """Yield the units from `start` to `end`, file by file, each with the position of its first unit."""
        for position, units in self._pieces(start, end):
            is_known = position >= self.files.start and position + len(units) * TIMER_UNIT.size <= self._whole_to
            yield position, units if is_known else units[: _whole(units)]

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, Units]]:
        for position, file, at, stop in self.files.pieces(start, end):
            count = (min(stop, self.files.file_bytes - BLANK_BYTES) - at) // TIMER_UNIT.size
            file.read_ahead(at, stop)
            yield position, np.frombuffer(file.view, TIMER_UNIT.dtype, max(count, 0), at)

    def _whole_until(self, end: int) -> int:
        for position, units in self._pieces(self.files.start, end):
            whole = _whole(units)
            if whole < len(units):
                return position + whole * TIMER_UNIT.size
        return end

    def sums_job(self, end: int) -> Callable[[], dict[int, int]]:
        """Return a job that computes each file's checksum of the units before `end`, by the file's start.

        The sums cover times and records, which never change. The job may run off the loop, one job at a time.
        """
        pieces = self.files.pieces(self.files.start, end)

        def job() -> dict[int, int]:
            self._sums = {start: self._sum(start, file.array[at:stop]) for start, file, at, stop in pieces}
            return {start: crc for start, (_, crc) in self._sums.items()}

        return job

    def _sum(self, start: int, raw: Bytes) -> tuple[int, int]:
        """Return the position after the last unit in a file's first bytes `raw`, and the checksum of the units."""
        known, crc = self._sums.get(start, (start, 0))
        count = min(len(raw), self.files.file_bytes - BLANK_BYTES) // TIMER_UNIT.size
        if known > start + count * TIMER_UNIT.size:
            known, crc = start, 0
        units = raw[: count * TIMER_UNIT.size].reshape(-1, TIMER_UNIT.size)[(known - start) // TIMER_UNIT.size :]
        for first in range(0, len(units), SUM_UNITS):
            crc = zlib.crc32(np.ascontiguousarray(units[first : first + SUM_UNITS, SUM_FROM:SUM_TO]).data, crc)
        return start + count * TIMER_UNIT.size, crc

    def drop_before(self, position: int, record_position: int) -> Callable[[], None] | None:
        """Drop the files before timer log position `position` whose units name records before `record_position`.

        Returns the job that removes them, or None. The unit of a record that was indexed again may be dropped too
        early; then a start indexes its message again.
        """
        upto = self.files.start
        while (behind := upto + self.files.file_bytes) <= position and behind < self.end:
            unit = TIMER_UNIT.unpack(self.files.file_at(behind).view)
            if unit["record_position"] > record_position:
                break
            upto = behind
        return self.files.drop_before(upto)

    def rebuild(self, wheel: TimerWheel, end: int) -> None:
        """Cut the log at `end`, or before the first incomplete unit, and link the rest into an empty wheel.

        Corrects a unit that names another previous unit than its slot has. A unit that a clean stop hid gets its magic
        back, so its slot counts it as before.
        """
        end = self._whole_to = self._whole_until(end)
        self._sums = {start: known for start, known in self._sums.items() if known[0] <= end}
        self.files.cut(end)
        self.end = end
        if end > self.files.start:
            self.files.sync_job(end - 1, end)()  # the mark says it is on disk; this fsync confirms it
        self.note_synced(end)
        wheel.clear()
        for position, units in self.chunks(self.files.start, end):
            hidden = units["magic"] == MAGIC_HIDDEN
            if hidden.any():
                units["magic"][hidden] = MAGIC_DEFAULT
            if jit.available():
                at = position % self.files.file_bytes
                kernel.rebuild(
                    wheel.bytes,
                    wheel.units,
                    wheel.precision_ms,
                    self.files.file_at(position).array,
                    at,
                    len(units),
                    position - at,
                )
                continue
            slots_ms = units["write_ms"] + units["delay_ms"]
            deletes = (units["magic"] & MAGIC_DELETE) != 0
            for i, slot_ms in enumerate(slots_ms.tolist()):
                previous = wheel.put(slot_ms, position + i * TIMER_UNIT.size, deletes=bool(deletes[i]))
                if units[i]["previous_position"] != previous:
                    units[i]["previous_position"] = previous

    def sync_job(self) -> tuple[int, Callable[[], None]]:
        """Return the present end, and a job that syncs the log up to there. The job may run off the loop."""
        return self.end, self.files.sync_job(self.synced, self.end)

    def note_synced(self, upto: int) -> None:
        """Note that the log is on disk up to `upto`. The files must agree."""
        assert self.files.synced(upto), upto
        self.synced = upto


def _whole(units: Units) -> int:
    good = (units["size"] == TIMER_UNIT.size) & (units["magic"] & ~0xF == 0)
    return len(units) if good.all() else int(np.argmin(good))
