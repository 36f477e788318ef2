"""Read the records that a log has gained, while its broker writes it.

The reader maps the files and changes nothing. A scan by the rules of recovery finds the end of the log. Its bytes are
copied after the scan, so a record that was visible to the scan is whole in the copy.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from wheelmq.backup.index import QueueEnds
from wheelmq.backup.scanning import files_scan
from wheelmq.formats.disk.message import BLANK_BYTES, Record, RecordError, decode_record
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_SHIFT
from wheelmq.formats.disk.paths import file_start
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import InternedNames, LogDamaged, LogScan, Rows
from wheelmq.system.disk import Disk

HEAD_BYTES: Final = 8


class Piece(NamedTuple):
    """Consecutive bytes of a log, in one file, and facts about their records."""

    start: int
    end: int
    raw: bytes
    rows: Rows
    """Rows of LogScan, one per record."""
    names: InternedNames


class LogReader:
    """The files of one log, as they are now."""

    def __init__(self, disk: Disk, folder: Path, piece_bytes: int) -> None:
        """A piece has at most about `piece_bytes`, up to the end of a record."""
        self._disk = disk
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._listed: tuple[list[str], int] = [], 0
        """Names of the files, and the inode of the last one."""
        self._files: MappedSequence | None = None

    def refresh(self) -> None:
        """List the files. Raises OSError.

        A broker that truncates its log removes the last files, and may create files with the same names at once. Then
        the last file is another one, and the mapped files must not be read any more.
        """
        names = [name for name in self._disk.list(self._folder) if file_start(name) is not None]
        last = (self._folder / names[-1]).stat() if names else None
        listed = names, 0 if last is None else last.st_ino
        if listed != self._listed:
            self._files = None if last is None else MappedSequence(self._disk, self._folder, last.st_size)
            self._listed = listed

    @property
    def file_bytes(self) -> int:
        """Size of each file; 0 without one."""
        return self._files.file_bytes if self._files is not None else 0

    @property
    def start(self) -> int:
        return self._files.start if self._files is not None else 0

    @property
    def end(self) -> int:
        """End of the last file."""
        return self._files.end if self._files is not None else 0

    def has_bytes(self, start: int, end: int) -> bool:
        """Return whether the files hold the bytes from `start` to `end`."""
        return self.start <= start and end <= self.end

    def has_more(self, position: int) -> bool:
        """Return whether something was written at `position`, which may be no whole record yet."""
        files = self._files
        if files is None or position >= files.end:
            return False
        at = position % files.file_bytes
        file = files.file_at(position)
        return files.file_bytes - at < BLANK_BYTES or any(file.view[at : at + HEAD_BYTES])

    def crc(self, start: int, end: int) -> int:
        """Return the crc32 of the bytes from `start` to `end`, which are in one file."""
        assert self._files is not None
        return zlib.crc32(self._files.read(start, end - start))

    def record_at(self, position: int) -> Record | None:
        """Return the record at `position`; None without one."""
        if self._files is None or not self.start <= position < self.end:
            return None
        try:
            record = decode_record(self._files.file_at(position).view[position % self._files.file_bytes :])
        except RecordError:
            return None
        return record if record.position == position else None

    def pieces(self, position: int, *, whole_before_ms: int = 0, last_ms: int = 0) -> Iterator[Piece]:
        """Yield the pieces from `position` to the end of the log. `last_ms` is the store time of the record before.

        Records stored before `whole_before_ms` were certainly on disk, so their bodies may have changed since. Raises
        LogDamaged.
        """
        files = self._files
        if files is None or not self.has_more(position):
            return
        walk = _Walk(files, position, self._piece_bytes)
        scan = LogScan(files, LogPosition(position), whole_before_ms=whole_before_ms, last_ms=last_ms)
        try:
            yield from walk.pieces(scan)
        except LogDamaged:
            before = files_scan(files, scan.end, start=walk.position)
            yield from walk.pieces(before)
            raise


class _Walk:
    """Cuts the bytes that scans find into pieces. `position` is the end of the last piece."""

    def __init__(self, files: MappedSequence, position: int, piece_bytes: int) -> None:
        self._files = files
        self.position = position
        self._piece_bytes = piece_bytes

    def pieces(self, scan: LogScan) -> Iterator[Piece]:
        """Yield the pieces of a scan from `position` on. Raises LogDamaged."""
        files, none = self._files, np.empty((0, col.COLUMNS), np.int64)
        for rows in scan.chunks():
            for part in _split(rows, files.file_bytes, self._piece_bytes):
                base = files.base_of(int(part[0, col.POSITION]))
                while self.position < base:  # only a blank is left in the file
                    yield self._piece(files.base_of(self.position) + files.file_bytes, none, scan)
                yield self._piece(int(part[-1, col.POSITION] + part[-1, col.SIZE]), part, scan)
        if self.position < scan.end:
            yield self._piece(scan.end, none, scan)

    def _piece(self, end: int, rows: Rows, scan: LogScan) -> Piece:
        start, self.position = self.position, end
        return Piece(start, end, bytes(self._files.read(start, end - start)), rows.copy(), scan.names)


def _split(rows: Rows, file_bytes: int, piece_bytes: int) -> Iterator[Rows]:
    """Yield consecutive rows of at most about `piece_bytes` in one file."""
    files = rows[:, col.POSITION] // file_bytes
    borders = [0, *(np.flatnonzero(files[1:] != files[:-1]) + 1).tolist(), len(rows)]
    for first, stop in itertools.pairwise(borders):
        while first < stop:
            limit = int(rows[first, col.POSITION]) + piece_bytes
            count = max(1, int(np.searchsorted(rows[first:stop, col.POSITION] + rows[first:stop, col.SIZE], limit)))
            yield rows[first : first + count]
            first += count


def queue_ends(rows: Rows, names: InternedNames) -> QueueEnds:
    """Return the queue offset after the last record of each queue."""
    rows = rows[(rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0]
    keys = rows[:, col.TOPIC] << 32 | rows[:, col.QUEUE_ID] & 0xFFFF_FFFF
    unique, which = np.unique(keys, return_inverse=True)
    ends = np.zeros(len(unique), np.int64)
    np.maximum.at(ends, which, rows[:, col.QUEUE_OFFSET] + 1)
    found: QueueEnds = {}
    for key, end in zip(unique.tolist(), ends.tolist(), strict=True):
        found.setdefault(names.name(key >> 32), {})[key & 0xFFFF_FFFF] = end
    return found


def settled_in_blocks(rows: Rows) -> bytes:
    """Return the origins of messages of blocks that the records settle, 8 bytes each, big-endian."""
    settles = rows[:, col.SETTLES]
    found: bytes = settles[settles >> KIND_SHIFT == KIND_BLOCK].astype(">i8").tobytes()
    return found
