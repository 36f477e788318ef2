"""Small files that are read and replaced as a whole, on any system. `system.disk` has the files of a store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def read(path: Path) -> bytes | None:
    """Return the content of a file, or None without one. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace(path: Path, data: bytes) -> None:
    """Write `data` to `path`, on disk on return. The previous file becomes `.bak`. Raises OSError.

    A kill leaves the file or its `.bak`. The file keeps its permissions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        shutil.copymode(path, fresh)
        os.replace(path, path.with_name(path.name + ".bak"))
    os.replace(fresh, path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
