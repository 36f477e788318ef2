"""A sequence of mapped files that reads as one array of bytes (RocketMQ: MappedFileQueue).

Files have one size and are named by the byte at which they start. The first may have gone (expiry), so the sequence
begins at `start`, not at 0.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheelmq.formats.disk.paths import file_name, file_start
from wheelmq.system.disk import Bytes, Disk, MappedFile

ZERO_STEP_BYTES: Final = 1 << 16
"""What is zeroed at once by a cut, and only when it holds anything."""


class MappedSequence:
    """The mapped files of one folder."""

    def __init__(self, disk: Disk, folder: Path, file_bytes: int) -> None:
        self._disk = disk
        self.folder = folder
        self.file_bytes = file_bytes
        starts = sorted(start for name in disk.list(folder) if (start := file_start(name)) is not None)
        for earlier, later in itertools.pairwise(starts):
            if later - earlier != file_bytes:
                raise OSError(errno.EINVAL, f"files {earlier} and {later}: not {file_bytes} bytes apart", str(folder))
        self._files: dict[int, MappedFile] = {}
        self.start = starts[0] if starts else 0
        self.end = starts[-1] + file_bytes if starts else 0
        """Byte behind the last file."""

    def file_at(self, position: int) -> MappedFile:
        """The file that holds byte `position`; it must exist."""
        start = position - position % self.file_bytes
        assert self.start <= start < self.end, (position, self.start, self.end)
        file = self._files.get(start)
        if file is None:
            file = self._files[start] = self._disk.map(self.folder / file_name(start), self.file_bytes)
        return file

    def grow(self, position: int) -> MappedFile:
        """The file that holds byte `position`, made if need be. Raises DiskFull.

        A sequence without files begins at that file; otherwise the file may only be the next one.
        """
        start = position - position % self.file_bytes
        if self.start == self.end:
            self.start = self.end = start
        if start == self.end:
            file = self._disk.map(self.folder / file_name(start), self.file_bytes)
            self._files[start] = file
            self.end = start + self.file_bytes
            return file
        return self.file_at(position)

    def make_next_job(self) -> Callable[[], None]:
        """What makes the file behind the last one on disk, so that `grow` finds it; may run off the loop."""
        path = self.folder / file_name(self.end)
        return lambda: self._disk.allocate(path, self.file_bytes)

    def read(self, position: int, size: int) -> memoryview:
        """`size` bytes from `position` on; they must lie in one file."""
        file = self.file_at(position)
        at = position % self.file_bytes
        assert at + size <= self.file_bytes, (position, size)
        return file.view[at : at + size]

    def pieces(self, position: int, end: int) -> list[tuple[int, MappedFile, int, int]]:
        """The bytes from `position` to `end`, file by file: (position, file, first byte in it, byte behind)."""
        found = []
        while position < end:
            at = position % self.file_bytes
            stop = min(self.file_bytes, at + end - position)
            found.append((position, self.file_at(position), at, stop))
            position += stop - at
        return found

    def sync_job(self, position: int, end: int) -> Callable[[], None]:
        """What brings the bytes from `position` to `end` to disk; may run off the loop."""
        parts = [(file, stop) for _, file, _, stop in self.pieces(position, end)]

        def sync() -> None:
            for file, stop in parts:
                file.sync(stop)

        return sync

    def synced(self, position: int) -> bool:
        """Whether all bytes of its file before `position` were synced (asked by assertions)."""
        if position <= self.start:
            return True
        file = self.file_at(position - 1)
        return file.synced_bytes >= (position - 1) % self.file_bytes + 1

    def drop_before(self, position: int) -> Callable[[], None] | None:
        """Give up the files that end at or before `position`, but for the last one; None when there is none.

        What removes them is given back and may run off the loop. The oldest goes first, so that a stop in between
        leaves files that join; who still holds bytes of one may read on.
        """
        start = min(position - position % self.file_bytes, self.end - self.file_bytes)
        gone = range(self.start, start, self.file_bytes)
        if not gone:
            return None
        for first in gone:
            self._files.pop(first, None)
        self.start = start

        def job() -> None:
            for first in gone:
                self._disk.remove(self.folder / file_name(first))

        return job

    def cut(self, position: int) -> None:
        """Zero what stands behind `position` in its file and remove the files behind that one, on disk on return.

        The last file goes first, so that a stop in between leaves files that join.
        """
        first_gone = -(-position // self.file_bytes) * self.file_bytes
        gone = range(max(first_gone, self.start), self.end, self.file_bytes)
        for start in reversed(gone):
            self._files.pop(start, None)
            self._disk.remove(self.folder / file_name(start))
        if gone:
            self._disk.sync_folder(self.folder)
        self.end = max(self.start, min(self.end, first_gone))
        if position % self.file_bytes and self.start <= position < self.end:
            file = self.file_at(position)
            if _zero(file.array[position % self.file_bytes :]):
                file.sync(file.synced_bytes)


def _zero(array: Bytes) -> bool:
    """Zero `array`; whether anything else was there. What is zero is left alone: a write would have to reach disk."""
    changed = False
    for at in range(0, len(array), ZERO_STEP_BYTES):
        step = array[at : at + ZERO_STEP_BYTES]
        if step.any():
            step[:] = 0
            changed = True
    return changed
