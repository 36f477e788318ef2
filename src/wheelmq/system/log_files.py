"""The size limit of a log file that a child process writes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO, Final

LOG_BYTES_MAX: Final = 16 << 20
"""Size at which a log file is emptied. With the previous file, the logs of a child process take twice as much."""
PIECE_BYTES: Final = 1 << 16


def bound(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Move the content of a log file to `PATH.1` if it is too long. Returns whether it was.

    The writer keeps the file open, so it is copied and then emptied. Lines written in between are lost. Without room
    for the copy, the file is just emptied.
    """
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    previous, copy = path.with_name(f"{path.name}.1"), path.with_name(f"{path.name}.tmp")
    try:
        with path.open("rb") as source, copy.open("wb") as target:
            _copy(source, target, bytes_max)
        copy.rename(previous)
    except OSError:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
    os.truncate(path, 0)
    return True


def _copy(source: BinaryIO, target: BinaryIO, bytes_max: int) -> None:
    source.seek(-bytes_max, os.SEEK_END)
    left = bytes_max
    while left > 0 and (piece := source.read(min(left, PIECE_BYTES))):
        left -= target.write(piece)
