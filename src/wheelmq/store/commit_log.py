"""The commit log: records end to end in mapped files (RocketMQ: CommitLog).

The writer reserves room, which may begin the next file, writes the record there, and advances. A record never
crosses a file: where it does not fit, a blank fills the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.message import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    Record,
    RecordError,
    decode_record,
    has_form,
    stored_properties,
)
from wheelmq.formats.disk.properties import StoredProperties
from wheelmq.formats.kernels import gather as kernel
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.numbers import Bytes
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.clock import Clock
from wheelmq.system.disk import MappedFile
from wheelmq.system.failpoint import reach

HEAD_BYTES: Final = 8
"""Size and magic, which make bytes a record."""
_found: Final = np.zeros(kernel.FOUND, np.int64)


class NoRecord(LookupError):
    """Where a queue unit points to is no record of the size that it says."""


class CommitLog:
    """The log. `end` is where the next record goes; everything before `synced` is on disk."""

    def __init__(self, files: MappedSequence, clock: Clock) -> None:
        self.files = files
        self._clock = clock
        self.end = LogPosition(files.start)
        self.synced = LogPosition(files.start)
        self.last_store_ms = Millis(0)
        """Of the last record."""
        self.damaged: frozenset[LogPosition] = frozenset()
        """Positions of records that are not to be handed out: their bodies are not what was stored."""
        self._joined: Bytes = np.empty(0, np.uint8)

    @property
    def start(self) -> LogPosition:
        """The first byte that is still there."""
        return LogPosition(self.files.start)

    def store_ms(self) -> Millis:
        """The store time of a record appended now: the clock, but never less than that of the record before."""
        return max(self.last_store_ms, self._clock.now_ms())

    def advance(self, end: LogPosition, store_ms: Millis) -> None:
        """Records were written up to `end`, the last of them stored at `store_ms`."""
        if end > self.end:
            self.end, self.last_store_ms = end, store_ms

    def reserve(self, size: int) -> MappedFile:
        """The file in which `size` bytes fit at `end`; begins the next one if need be. Raises DiskFull.

        When the next file cannot be made, nothing has changed.
        """
        file_bytes = self.files.file_bytes
        assert size + BLANK_BYTES <= file_bytes, (size, file_bytes)
        at = self.end % file_bytes
        left = file_bytes - at
        fits = size + BLANK_BYTES <= left
        file = self.files.grow(self.end, size + BLANK_BYTES if fits else BLANK_BYTES)
        if fits:
            return file
        following = self.files.grow(LogPosition(self.end + left), size + BLANK_BYTES)
        reach("log.grown")
        BLANK.pack_into(file.view, at, left, BLANK_MAGIC)
        reach("log.blank")
        self.end = LogPosition(self.end + left)
        return following

    def append(self, record: bytes, store_ms: Millis) -> LogPosition:
        """Write an encoded record that names `end` as its position and `store_ms`, in the file that `reserve` gave.
        Its position.

        Size and magic go last: what a kill cuts short has neither.
        """
        position = self.end
        at = position % self.files.file_bytes
        view = self.files.file_at(position).view
        view[at + HEAD_BYTES : at + len(record)] = record[HEAD_BYTES:]
        view[at : at + HEAD_BYTES] = record[:HEAD_BYTES]
        self.advance(LogPosition(position + len(record)), store_ms)
        return position

    def read(self, position: LogPosition, size: int) -> memoryview:
        """The bytes of one record."""
        return self.files.read(position, size)

    def gather(self, spans: Iterable[tuple[LogPosition, int]]) -> bytes:
        """The bytes of the records at (position, size), end to end. Raises NoRecord.

        Queue units have no checksum: that a record has its form there tells that the unit is right.
        """
        file_bytes = self.files.file_bytes
        parts = []
        base = stop = 0
        view = memoryview(b"")
        for position, size in spans:
            if not base <= position < stop:
                if not self.start <= position < self.end:
                    raise NoRecord(position, size)
                base = position - position % file_bytes
                stop = base + file_bytes
                view = self.files.file_at(position).view
            at = position - base
            if not has_form(view, at, size, position):
                raise NoRecord(position, size)
            parts.append(view[at : at + size])
        return b"".join(parts)

    def gather_units(self, units: npt.NDArray[Any], count_max: int, bytes_max: int) -> tuple[int, bytes]:
        """The records that queue units name, as far as they can be joined at once: how many, and their bytes.

        That is as far as they stand in one file and are what the units say, within the limits; perhaps none.
        """
        if not jit.available() or self.damaged:
            return 0, b""
        first = LogPosition(int(units["position"][0]))
        if not self.start <= first < self.end:
            return 0, b""
        if len(self._joined) < bytes_max:
            self._joined = np.empty(bytes_max, np.uint8)
        base = first - first % self.files.file_bytes
        raw, log = units.view(np.uint8), self.files.file_at(first).array
        kernel.gather(log, base, self.end, raw, count_max, self._joined[:bytes_max], _found)
        taken, copied = _found.tolist()
        return taken, self._joined[:copied].tobytes()

    def properties_at(self, position: LogPosition, size: int) -> StoredProperties | None:
        """The properties of the record of `size` bytes at `position`; None when there is none of that size."""
        at = position % self.files.file_bytes
        if not self.start <= position < self.end or at > self.files.file_bytes - size:
            return None
        view = self.files.file_at(position).view
        try:
            return stored_properties(view[at : at + size])
        except RecordError:
            return None

    def is_record(self, position: LogPosition, size: int) -> bool:
        """Whether a record of `size` bytes begins at `position`."""
        record = self._record_at(position)
        return record is not None and record.size == size

    def record_at(self, position: LogPosition) -> Record | None:
        """The record that begins at `position`; None when none does, or a damaged one."""
        return None if position in self.damaged else self._record_at(position)

    def record_store_ms(self, position: LogPosition) -> Millis | None:
        """Store time of the record that begins at `position`, whatever its body; None when none does."""
        record = self._record_at(position)
        return None if record is None else record.store_ms

    def _record_at(self, position: LogPosition) -> Record | None:
        if not self.start <= position < self.end:
            return None
        at = position % self.files.file_bytes
        try:
            record = decode_record(self.files.file_at(position).view[at:])
        except RecordError:
            return None
        return record if record.position == position else None

    def sync_job(self) -> tuple[LogPosition, Callable[[], None]]:
        """The end as it is now, and what brings the log to disk up to there; the job may run off the loop."""
        return self.end, self.files.sync_job(self.synced, self.end)

    def note_synced(self, upto: LogPosition) -> None:
        """The log is on disk up to `upto`; the disk must agree."""
        assert self.files.synced(upto), upto
        self.synced = max(self.synced, upto)
