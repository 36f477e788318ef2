"""Scratch folders of this process. They do not outlive it.

A lock on a file next to a folder protects it. The kernel releases the lock when the process dies, for any reason, and
the next process removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_FREE_MIN = 64 << 20
"""Minimum free space. A checkpoint of the pipeline has at most some hundred small files."""


def memory() -> Path:
    """Return the folder of shared memory if it has enough space, else the one for temporary files."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free >= SHARED_MEMORY_FREE_MIN and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            return SHARED_MEMORY
    return Path(tempfile.gettempdir())


_held: dict[Path, tuple[Path, int]] = {}
"""For each base folder, this process's folder in it, and the open lock that protects it."""


def folder(kind: str, base: Path | None = None) -> Path:
    base = base or Path(tempfile.gettempdir())
    if base not in _held:
        _held[base] = _hold(base)
    own, _ = _held[base]
    return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=own))


def _hold(base: Path) -> tuple[Path, int]:
    """Create and lock this process's folder, and remove the folders that no process locks any more."""
    root = base / f"wheelmq-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{root} belongs to another user: remove it, or point TMPDIR at a folder of your own")
    turnstile = _open_lock(root / ".lock")
    try:
        fcntl.flock(turnstile, fcntl.LOCK_EX)  # no process sweeps between the creation of a lock file and its lock
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
    """Remove a scratch folder if the process that created it is gone."""
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


@atexit.register  # at the import: a function that is registered later, and may use the folders, runs earlier
def drop() -> None:
    for folder, lock in _held.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)
    _held.clear()
