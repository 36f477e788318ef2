"""Scan records by the rules of recovery in a part of a log: in one chunk, or up to a position of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wheelmq.backup.index import Chunk
from wheelmq.backup.objects import TargetDamaged
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import NEVER_MS, LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogDamaged, LogScan, Rows, ScannedFile


class _ChunkBytes:
    """The bytes of a chunk, as a file that begins and ends with it."""

    def __init__(self, chunk: Chunk, raw: bytes) -> None:
        self.path = Path(chunk.object)
        self.size = len(raw)
        self.array = np.frombuffer(raw, np.uint8)
        self.view = memoryview(raw)

    def read_ahead(self, start: int, stop: int) -> None:
        """Do nothing: the bytes are in memory."""


class _ChunkFiles:
    """One chunk as the files of a log."""

    def __init__(self, chunk: Chunk, raw: bytes) -> None:
        self._start = chunk.start
        self.end = chunk.end
        self.file_bytes = len(raw)
        self._file = _ChunkBytes(chunk, raw)

    def base_of(self, position: int) -> int:
        return self._start

    def file_at(self, position: int) -> ScannedFile:
        return self._file

    def pieces(self, position: int, end: int) -> Sequence[tuple[int, ScannedFile, int, int]]:
        return [(position, self._file, position - self._start, end - self._start)]


class _FilesUpTo:
    """The files of a log up to a position. The bytes from there on are not read."""

    def __init__(self, files: MappedSequence, end: int) -> None:
        self._files = files
        self.end = end
        self.file_bytes = files.file_bytes

    def base_of(self, position: int) -> int:
        return self._files.base_of(position)

    def file_at(self, position: int) -> ScannedFile:
        return self._files.file_at(position)

    def pieces(self, position: int, end: int) -> Sequence[tuple[int, ScannedFile, int, int]]:
        return self._files.pieces(position, end)


def chunk_scan(chunk: Chunk, raw: bytes) -> LogScan:
    """Return a scan of the records in the bytes of a chunk."""
    return LogScan(_ChunkFiles(chunk, raw), LogPosition(chunk.start), whole_before_ms=NEVER_MS)


def files_scan(files: MappedSequence, end: int, *, start: int | None = None) -> LogScan:
    """Return a scan of the records in files of a log, from `start` or the first file, up to `end`."""
    first = LogPosition(files.start if start is None else start)
    return LogScan(_FilesUpTo(files, end), first, whole_before_ms=NEVER_MS)


def rows_of(scan: LogScan, end: int, name: str) -> Iterator[Rows]:
    """Yield the rows of a scan. Raises TargetDamaged unless all bytes up to `end` are records."""
    try:
        yield from scan.chunks()
    except LogDamaged as error:
        raise TargetDamaged(f"{name}: {error.strerror}") from None
    if scan.end != end:
        raise TargetDamaged(f"{name}: the bytes at {scan.end} are no record, but the log goes on to {end}")


def end_by(chunk: Chunk, raw: bytes, at_ms: int) -> int:
    """Return the end of the last record of a chunk that was stored by `at_ms`. Raises TargetDamaged."""
    end = chunk.start
    for rows in rows_of(chunk_scan(chunk, raw), chunk.end, chunk.object):
        count = int(np.searchsorted(rows[:, col.STORE_MS], at_ms, "right"))
        if count:
            end = int(rows[count - 1, col.POSITION] + rows[count - 1, col.SIZE])
        if count < len(rows):
            break
    return end
