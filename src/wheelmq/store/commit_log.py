"""The commit log: consecutive records in mapped files (RocketMQ: CommitLog).

A record never crosses a file border: a blank fills the rest of a file in which the record does not fit.
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
    RECORD_BYTES_MIN,
    Record,
    RecordError,
    decode_record,
    has_form,
    head_store_ms,
    stored_properties,
)
from wheelmq.formats.disk.properties import StoredProperties
from wheelmq.formats.kernels import gather as kernel
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.kernels.numbers import Bytes
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.clock import Clock
from wheelmq.system.failpoint import reach
from wheelmq.system.mapped_file import MappedFile

HEAD_BYTES: Final = 8
"""Size and magic, which mark bytes as a record."""
_found: Final = np.zeros(kernel.FOUND, np.int64)


class NoRecord(LookupError):
    """A queue unit points to bytes that are not a record of the unit's size."""


class CommitLog:
    """The log. The next record is written at `end`. Everything before `synced` is on disk."""

    def __init__(self, files: MappedSequence, clock: Clock) -> None:
        self.files = files
        self._clock = clock
        self.end = LogPosition(files.start)
        self.synced = LogPosition(files.start)
        self.last_store_ms = Millis(0)
        self.damaged: frozenset[LogPosition] = frozenset()
        """Positions of records that are not delivered, because their bodies have changed since they were stored."""
        self._joined: Bytes = np.empty(0, np.uint8)

    @property
    def start(self) -> LogPosition:
        return LogPosition(self.files.start)

    def store_ms(self) -> Millis:
        """Return the store time of a record appended now: the clock, but never less than that of the last record."""
        return max(self.last_store_ms, self._clock.now_ms())

    def advance(self, end: LogPosition, store_ms: Millis) -> None:
        if end > self.end:
            self.end, self.last_store_ms = end, store_ms

    def reserve(self, size: int) -> MappedFile:
        """Return a file in which `size` bytes fit at `end`, maybe the next. Raises DiskFull with nothing changed."""
        file_bytes = self.files.file_bytes
        assert size + BLANK_BYTES <= file_bytes, (size, file_bytes)
        at = self.end % file_bytes
        left = file_bytes - at
        fits = size + BLANK_BYTES <= left
        has_blank = left >= BLANK_BYTES  # older versions could leave less
        file = self.files.grow(self.end, size + BLANK_BYTES if fits else min(left, BLANK_BYTES))
        if fits:
            return file
        following = self.files.grow(LogPosition(self.end + left), size + BLANK_BYTES)
        reach("log.grown")
        if has_blank:
            BLANK.pack_into(file.view, at, left, BLANK_MAGIC)
        reach("log.blank")
        self.end = LogPosition(self.end + left)
        return following

    def append(self, record: bytes, store_ms: Millis) -> LogPosition:
        """Write an encoded record at `end`, in the file that `reserve` returned. Returns its position.

        The record must contain `end` as its position and `store_ms` as its store time. Size and magic are written last:
        a record cut short by a kill has neither.
        """
        position = self.end
        at = position % self.files.file_bytes
        view = self.files.file_at(position).view
        view[at + HEAD_BYTES : at + len(record)] = record[HEAD_BYTES:]
        view[at : at + HEAD_BYTES] = record[:HEAD_BYTES]
        self.advance(LogPosition(position + len(record)), store_ms)
        return position

    def read(self, position: LogPosition, size: int) -> memoryview:
        return self.files.read(position, size)

    def gather(self, spans: Iterable[tuple[LogPosition, int]]) -> bytes:
        """Return the bytes of the records at (position, size), joined. Raises NoRecord.

        Queue units have no checksum. A well-formed record at the position shows that the unit is right.
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
        """Copy the records of the first queue units. Returns the number of records and their bytes, possibly none.

        The copy ends at a file border, at a record that does not match its unit, and at the limits.
        """
        if not jit.available() or self.damaged:
            return 0, b""
        first = LogPosition(int(units["position"][0]))
        if not self.start <= first < self.end:
            return 0, b""
        if len(self._joined) < bytes_max:
            self._joined = np.empty(bytes_max, np.uint8)
        base = first - first % self.files.file_bytes
        raw, log = read_only(units.view(np.uint8)), self.files.file_at(first).read_array
        kernel.gather(log, base, self.end, raw, count_max, self._joined[:bytes_max], _found)
        taken, copied = _found.tolist()
        return taken, self._joined[:copied].tobytes()

    def properties_at(self, position: LogPosition, size: int) -> StoredProperties | None:
        """Return the properties of the record of `size` bytes at `position`; None without a record of that size."""
        at = position % self.files.file_bytes
        if not self.start <= position < self.end or at > self.files.file_bytes - size:
            return None
        view = self.files.file_at(position).view
        try:
            return stored_properties(view[at : at + size])
        except RecordError:
            return None

    def is_record(self, position: LogPosition, size: int) -> bool:
        record = self._record_at(position)
        return record is not None and record.size == size

    def record_at(self, position: LogPosition) -> Record | None:
        """Return the record that begins at `position`; None without one, and for a damaged one."""
        return None if position in self.damaged else self._record_at(position)

    def has_damaged_body(self, position: LogPosition) -> bool:
        """Return whether a record begins at `position` whose body does not fit its checksum."""
        record = self._record_at(position)
        return record is not None and not record.body_is_intact

    def record_store_ms(self, position: LogPosition) -> Millis | None:
        """Return the store time of the record at `position`, even if its body is damaged; None without a record."""
        record = self._record_at(position)
        return None if record is None else record.store_ms

    def head_store_ms(self, position: LogPosition) -> Millis | None:
        """Return the store time of the record at `position`, without reading its body; None without a record."""
        at = position % self.files.file_bytes
        if not self.start <= position < self.end or at > self.files.file_bytes - RECORD_BYTES_MIN:
            return None
        return head_store_ms(self.files.file_at(position).view, at, position)

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
        """Return the current end and the job that syncs the log up to it. The job may run off the loop."""
        return self.end, self.files.sync_job(self.synced, self.end)

    def note_synced(self, upto: LogPosition) -> None:
        """Note that the log is on disk up to `upto`. Asserts that its file was synced up to there."""
        assert self.files.synced(upto), upto
        self.synced = max(self.synced, upto)
