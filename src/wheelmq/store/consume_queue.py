"""One consume queue: units of 20 bytes in mapped files (RocketMQ: ConsumeQueue)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.message import RECORD_BYTES_MIN
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.mapped_file import Bytes

TAIL_UNITS: Final = 200
"""Number of units at the tail that are checked first in the search for the last good unit."""

Units = npt.NDArray[Any]
"""An array of QUEUE_UNIT.dtype."""


class ConsumeQueue:
    """The units of one queue. `start` is the queue offset of the first unit, `end` that of the next one.

    The first units may be blanks: they fill the first file up to the queue's first message.
    """

    def __init__(self, files: MappedSequence) -> None:
        assert files.file_bytes % QUEUE_UNIT.size == 0
        self.files = files
        self.start = QueueOffset(files.start // QUEUE_UNIT.size)
        self.end = self._find_end()
        self._synced = self.end

    def _find_end(self) -> QueueOffset:
        """Return the offset of the first unwritten unit, which has size 0, in the written part of the last file."""
        files = self.files
        if files.start == files.end:
            return QueueOffset(files.start // QUEUE_UNIT.size)
        last = files.end - files.file_bytes
        count = files.written_bytes(last) // QUEUE_UNIT.size
        sizes = np.frombuffer(files.file_at(last).view, QUEUE_UNIT.dtype, count)["size"] if count else ()
        return QueueOffset(last // QUEUE_UNIT.size + bisect_left(sizes, True, key=lambda size: size == 0))

    def write(self, offset: QueueOffset, units: Units) -> None:
        """Write `units` at queue offset `offset`. Blanks fill a gap between the end and `offset`.

        Raises DiskFull. Units written before the error stay, and writing them again is harmless.
        """
        self.write_encoded(offset, np.ascontiguousarray(units).view(np.uint8))

    def write_encoded(self, offset: QueueOffset, raw: Bytes) -> None:
        if offset > self.end and self.files.start != self.files.end:
            self._fill_gap(offset)
        elif self.files.start == self.files.end:
            self._begin(offset)
        position = offset * QUEUE_UNIT.size
        done = 0
        while done < len(raw):
            at = (position + done) % self.files.file_bytes
            count = min(len(raw) - done, self.files.file_bytes - at)
            file = self.files.grow(position + done, count)
            file.array[at : at + count] = raw[done : done + count]
            file.is_written = True  # a sync that runs meanwhile may have cleared it
            done += count
        self._synced = min(self._synced, offset)
        self.end = max(self.end, QueueOffset(offset + len(raw) // QUEUE_UNIT.size))

    def may_go_on_at(self, offset: QueueOffset, position: LogPosition) -> bool:
        """Return whether the record at `position` of the log can have `offset`: the log has room for those between."""
        if offset <= self.end:
            return True
        if self.start == self.end:
            return offset * RECORD_BYTES_MIN <= position
        last = int(self.read(QueueOffset(self.end - 1), 1)[0]["position"])
        return (offset - self.end) * RECORD_BYTES_MIN <= position - last

    def _begin(self, offset: QueueOffset) -> None:
        """Begin the queue in the file of `offset`, with blanks before it."""
        self.files.grow(offset * QUEUE_UNIT.size)
        self.start = QueueOffset(self.files.start // QUEUE_UNIT.size)
        self.end = self._synced = self.start
        if offset > self.start:
            self._fill_gap(offset)

    def _fill_gap(self, offset: QueueOffset) -> None:
        blanks = _blanks(min(offset - self.end, 65_536))
        while self.end < offset:
            self.write(self.end, blanks[: offset - self.end])

    def read(self, offset: QueueOffset, count: int) -> Units:
        """Return at most `count` units from `offset` on, all from one file. Requires `start <= offset < end`."""
        assert self.start <= offset < self.end, (offset, self.start, self.end)
        position = offset * QUEUE_UNIT.size
        at = position % self.files.file_bytes
        count = min(count, self.end - offset, (self.files.file_bytes - at) // QUEUE_UNIT.size)
        return np.frombuffer(self.files.file_at(position).view, QUEUE_UNIT.dtype, count, at)

    def chunks(self, first: QueueOffset | None = None, *, ahead: bool = False) -> Iterator[Units]:
        """Yield all units from `first` or `start` on, file by file. `ahead` reads each file from disk in advance."""
        offset = self.start if first is None else first
        while offset < self.end:
            units = self.read(offset, self.units_per_file)
            if ahead:
                at = offset * QUEUE_UNIT.size % self.files.file_bytes
                stop = at + len(units) * QUEUE_UNIT.size
                self.files.file_at(offset * QUEUE_UNIT.size).read_ahead(at, stop)
            yield units
            offset = QueueOffset(offset + len(units))

    def skip_blanks(self, offset: QueueOffset) -> QueueOffset:
        """Return the offset of the first message at or after `offset` >= `start`, or `end` without one."""
        count = 1
        while offset < self.end:
            units = self.read(offset, count)
            messages = np.flatnonzero(units["size"] != BLANK_SIZE)
            if len(messages):
                return QueueOffset(offset + int(messages[0]))
            offset = QueueOffset(offset + len(units))
            count = self.units_per_file
        return offset

    def position_from(self, index: int, otherwise: LogPosition) -> LogPosition:
        offset = self.skip_blanks(QueueOffset(max(index, self.start)))
        return otherwise if offset >= self.end else LogPosition(int(self.read(offset, 1)["position"][0]))

    def drop_before(self, log_start: LogPosition) -> Callable[[], None] | None:
        """Set `start` to the first unit whose record is in the log. Returns the job that removes files before it."""
        self.start = self.first_at(log_start)
        self._synced = max(self._synced, self.start)
        return self.files.drop_before(self.start * QUEUE_UNIT.size)

    def remove(self) -> Callable[[], None] | None:
        """Delete all messages; the queue continues at its end. Returns the job that removes the files before it.

        Units in the last file are replaced by blanks, so that a start does not find them. Raises DiskFull.
        """
        if self.start == self.end:
            return None
        last = (self.files.end - self.files.file_bytes) // QUEUE_UNIT.size
        first = QueueOffset(max(self.start, last))
        self.write(first, _blanks(self.end - first))
        self.start = self.end
        return self.files.drop_before(self.start * QUEUE_UNIT.size)

    def first_at(self, log_start: LogPosition) -> QueueOffset:
        """Return the first offset whose record begins at or after `log_start`, or `end` without one.

        A unit lost in a power cut counts as one whose record exists, because recovery writes it again.
        """

        def is_there(unit: Any) -> bool:
            return bool(unit["size"] == 0 or (unit["size"] != BLANK_SIZE and unit["position"] >= log_start))

        offset = self.start
        for units in self.chunks():
            if is_there(units[-1]):
                return QueueOffset(offset + bisect_left(units, True, key=is_there))
            offset = QueueOffset(offset + len(units))
        return self.end

    def cut_log(self, log_end: LogPosition) -> None:
        """Drop the units at the tail whose records end after `log_end`, and everything after them.

        A power cut may leave holes among the units, and units after the end: pages reach the disk in any order.
        """
        end, count = self.end, TAIL_UNITS
        while end > self.start:
            first = QueueOffset(max(self.start, (end - 1) // self.units_per_file * self.units_per_file, end - count))
            units = self.read(first, end - first)
            good = (units["size"] == BLANK_SIZE) | (units["position"] + units["size"] <= log_end)
            kept = np.flatnonzero(good & (units["size"] != 0))
            if len(kept):
                end = QueueOffset(first + int(kept[-1]) + 1)
                break
            end, count = first, count * 8
        self.cut(end)

    def cut(self, offset: QueueOffset) -> None:
        self.files.cut(offset * QUEUE_UNIT.size)
        self.end = min(self.end, offset)
        self._synced = min(self._synced, self.end)

    @property
    def units_per_file(self) -> int:
        return self.files.file_bytes // QUEUE_UNIT.size

    @property
    def unsynced(self) -> int:
        return self.end - self._synced

    def sync_job(self) -> Callable[[], None]:
        """Return the job that syncs the units written so far. It may run off the loop."""
        first, end = self._synced, self.end
        sync = self.files.sync_job(first * QUEUE_UNIT.size, end * QUEUE_UNIT.size)

        def job() -> None:
            sync()
            self._synced = max(self._synced, end)

        return job


def _blanks(count: int) -> Units:
    blanks = np.zeros(count, QUEUE_UNIT.dtype)
    blanks["size"] = BLANK_SIZE
    return blanks
