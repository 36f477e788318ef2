"""A disk for tests: it can be full, fail to sync, and lose what was not synced.

Files are real ones in a folder of the test's, so a store on this disk is a store that any other tool reads. What it
leaves out is the waiting: no fsync reaches the machine's disk, the model here says what would be on it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from wheelmq.system.disk import Bytes, Disk, DiskFull, MappedFile, StoreLocked

PAGE_BYTES = 4096


class SimulatedFile(MappedFile):
    """A mapped file whose sync is the model's."""

    def __init__(self, disk: SimulatedDisk, path: Path, size: int) -> None:
        super().__init__(path, size, writable=True)
        self._disk = disk

    def sync(self, upto_bytes: int) -> None:
        self._disk.note_sync(self)
        self.synced_bytes = max(self.synced_bytes, upto_bytes)


class _Lock:
    def __init__(self, held: set[Path], path: Path, file: Any) -> None:
        self._held = held
        self._path = path
        self._file = file

    def close(self) -> None:
        self._held.discard(self._path)
        self._file.close()


class SimulatedDisk(Disk):
    """The file system under one harness; it outlives the brokers that run on it."""

    owner_id = 4242

    def __init__(self) -> None:
        self.is_full: Callable[[Path], bool] = lambda path: False
        """Asked for each file that is to be made, by its path."""
        self.used = 0.0
        """Share of the disk that is used."""
        self.sync_error: OSError | None = None
        """What the next syncs raise; the bytes stay off the disk."""
        self.syncs: list[Path] = []
        """Every file synced, in order."""
        self._durable: dict[Path, Bytes | None] = {}
        self._locks: dict[Path, _Lock] = {}
        self._held: set[Path] = set()

    def map(self, path: Path, size: int) -> MappedFile:
        self.allocate(path, size)
        found = path.stat().st_size
        if found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are configured")
        file = SimulatedFile(self, path, size)
        if path not in self._durable:
            self._durable[path] = file.array.copy()
        return file

    def allocate(self, path: Path, size: int) -> None:
        if path.exists():
            return
        if self.is_full(path):
            raise DiskFull(errno.ENOSPC, f"no room for {size} bytes", str(path))
        super().allocate(path, size)
        self._durable[path] = None

    def used_share(self, folder: Path) -> float:
        return self.used

    def note_sync(self, file: MappedFile) -> None:
        """`file` is being synced: what it holds now is durable, unless syncs fail."""
        if self.sync_error is not None:
            raise self.sync_error
        self.syncs.append(file.path)
        self._durable[file.path] = file.array.copy()

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if keep_previous and path.exists():
            path.replace(path.with_name(path.name + ".bak"))
        path.write_bytes(data)

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._durable.pop(path, None)

    def sync_size(self, handle: int) -> None:
        """Sizes are durable at once here."""

    def sync_folder(self, folder: Path) -> None:
        """Names are durable at once here."""

    def lock(self, path: Path) -> Any:
        if path in self._held:  # the system's lock is one of processes; here two brokers may share one
            raise StoreLocked(errno.EWOULDBLOCK, "another broker runs on this store", str(path))
        lock = _Lock(self._held, path, super().lock(path))
        self._held.add(path)
        self._locks[path] = lock
        return lock

    # What happens to a process, or to the machine ------------------------------------------------------------------

    def release_locks(self) -> None:
        """The process that held them is gone."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def cut_power(self, randomness: Random, keep: float = 0.5) -> None:
        """Each page that differs from what was synced is kept with probability `keep`: the kernel writes pages back
        when it likes, in any order. Nobody may hold the files any more."""
        for path, durable in self._durable.items():
            if path.exists():
                self._durable[path] = _settle(path, durable, randomness, keep)


def _settle(path: Path, durable: Bytes | None, randomness: Random, keep: float) -> Bytes:
    now = np.fromfile(path, np.uint8)
    then = np.zeros_like(now) if durable is None else durable
    for at in (np.unique(np.flatnonzero(now != then) // PAGE_BYTES) * PAGE_BYTES).tolist():
        if randomness.random() >= keep:
            now[at : at + PAGE_BYTES] = then[at : at + PAGE_BYTES]
    handle = os.open(path, os.O_RDWR)
    try:
        os.pwrite(handle, now.tobytes(), 0)
    finally:
        os.close(handle)
    return now
