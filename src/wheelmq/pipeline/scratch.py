"""Scratch folders of this process: nothing in them outlives it.

What a killed process left is removed by the next one. A scratch folder is held by a lock on the file beside it,
which the kernel drops when the process dies, in whatever way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_FREE_MIN = 64 << 20
"""A checkpoint of the pipeline holds some hundred small files at most."""


def memory() -> Path:
    """Shared memory if this machine has some to spare, else the folder for temporary files."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free >= SHARED_MEMORY_FREE_MIN and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


_held: dict[Path, tuple[Path, int]] = {}
"""By base folder: this process's own folder in it, and the open lock that says that it is in use."""


def folder(kind: str, base: Path | None = None) -> Path:
    """A new folder inside this process's scratch folder in `base`."""
    base = base or Path(tempfile.gettempdir())
    if base not in _held:
        _held[base] = _hold(base)
    own, _ = _held[base]
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=own))


def _hold(base: Path) -> tuple[Path, int]:
    """Make this process's folder and lock it; remove the folders whose lock nobody holds any more."""
    root = base / f"wheelmq-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{root} is not yours: remove it, or point TMPDIR at a folder of your own")
    turnstile = _open_lock(root / ".lock")
    try:
        fcntl.flock(turnstile, fcntl.LOCK_EX)  # nobody sweeps between the making of a lock and its taking
        for path in root.glob("*.lock"):
            if path.name != ".lock":
                _sweep(path)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
        lock = _open_lock(folder.with_suffix(".lock"))
        fcntl.flock(lock, fcntl.LOCK_EX)
    finally:
        os.close(turnstile)
    return folder, lock


def _sweep(lock_path: Path) -> None:
    """Remove a scratch folder if the process that made it is gone."""
    lock = _open_lock(lock_path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
        lock_path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def drop() -> None:
    for folder, lock in _held.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)
    _held.clear()
