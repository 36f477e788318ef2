"""A log file of lines with a size limit, which its own process writes: the newest file and some older ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 16 << 20
OLDER_FILES: Final = 4
"""`PATH.1` is the newest of the older files. With these limits all files take at most 80 MiB."""


class RotatingFile:
    """Appends lines to `path`, and renames the file to `PATH.1` when it is full. Only its owner can read it."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX, older: int = OLDER_FILES) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._older = older
        self._handle: int | None = None
        self._size = 0

    def append(self, line: bytes) -> None:
        """Append `line`, which ends with a line feed. Raises OSError."""
        if self._handle is not None and self._size + len(line) > self._bytes_max:
            self._rotate()
        if self._handle is None:
            self._open()
        assert self._handle is not None
        self._size += os.write(self._handle, line)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._handle).st_size

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{i}") for i in range(1, self._older + 1))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.rename(older)
