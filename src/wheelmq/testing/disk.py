"""A disk for tests: it can be full, fail any call, and lose data that was not synced.

Files are real ones in a folder of the test, so any other tool can read a store on this disk. No fsync reaches the
machine's disk. This model instead keeps the state that would be on disk. A sync, and a call for more space, fail if
bytes without space were written: on a full disk such a store ends the process.

A power cut leaves a state that the kernel could leave:

- Mapped bytes are those of the last sync. Any subset of the pages changed since then is written. Some pages are torn:
  at most a sector of 512 bytes is written whole. `write_back` writes pages in between, so a page may also have the
  state of some moment since the sync.
- Of the names added to or removed from a folder since its last sync, the first few remain. A journal keeps order.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from wheelmq.system.disk import Disk, DiskFull, StoreLocked
from wheelmq.system.mapped_file import Bytes, MappedFile

PAGE_BYTES = 4096
SECTOR_BYTES = 512
CHECKED_BYTES = 1 << 16
"""Bytes after the space of a file that are checked by its sync."""


class Call(StrEnum):
    """A call to the disk, which may fail."""

    MAP = "map"
    ALLOCATE = "allocate"
    SYNC = "sync"
    REPLACE = "replace"
    CREATE = "create"
    SYNC_FOLDER = "sync folder"
    REMOVE = "remove"


@dataclass(frozen=True)
class NameChange:
    path: Path
    is_folder: bool
    before: bytes | None = None
    """The content of the file with this name before; None if there was none, or for a folder."""
    durable: Bytes | None = None
    """The durable part of that content if the file was mapped; None if it was all zero."""
    is_mapped: bool = False
    was_there: bool = False

    def on_disk(self) -> Bytes | None:
        """Return the file's content on disk if the change did not reach the disk; None for no file."""
        if self.before is None or not self.is_mapped:
            return None if self.before is None else np.frombuffer(self.before, np.uint8)
        return np.zeros(len(self.before), np.uint8) if self.durable is None else self.durable


@dataclass
class _Failure:
    left: int
    error: OSError
    kinds: Collection[Call]


class SimulatedFile(MappedFile):
    def __init__(self, disk: SimulatedDisk, path: Path, size: int) -> None:
        super().__init__(path, size, writable=True)
        self._disk = disk

    def _sync(self, stop: int) -> None:
        self._disk.note_sync(self, stop)


class _Lock:
    def __init__(self, held: set[Path], path: Path, file: Any) -> None:
        self._held = held
        self._path = path
        self._file = file

    def close(self) -> None:
        self._held.discard(self._path)
        self._file.close()


class SimulatedDisk(Disk):
    """The file system of one harness. It outlives the brokers that run on it."""

    owner_id = 4242

    def __init__(self) -> None:
        super().__init__()
        self.is_full: Callable[[Path], bool] = lambda path: False
        """Called with the path of each file to be created."""
        self.gives_room_ahead = False
        """Whether jobs can take disk space ahead. Otherwise the loop takes it in small steps, just before a write."""
        self.used = 0.0
        """Share of the disk that is used."""
        self.sync_error: OSError | None = None
        """The error that the next syncs raise. Their bytes stay off the disk."""
        self.syncs: list[Path] = []
        """Every file synced, in order."""
        self.behind_space: list[Path] = []
        """Files that were written where they had no space."""
        self.refused = 0
        self.boot_id = "1"
        self._failures: list[_Failure] = []
        self._durable: dict[Path, Bytes | None] = {}
        """The durable content of each mapped file; None for a content of zeros."""
        self.names: dict[Path, list[NameChange]] = {}
        """The changes of names since the last sync of their folder, in order, by folder."""
        self._room_to: dict[Path, int] = {}
        """The end of the disk space that each file has."""
        self._locks: dict[Path, _Lock] = {}
        self._held: set[Path] = set()

    def fail_call(self, nth: int, error: OSError, kinds: Collection[Call] = tuple(Call)) -> None:
        """Let the `nth` call from now (from 1 on) of one of `kinds` raise `error` and do nothing."""
        assert nth >= 1, nth
        self._failures.append(_Failure(nth, error, kinds))

    def heal(self) -> None:
        self.used = 0.0
        self._failures.clear()
        self.sync_error = None
        self.is_full = lambda path: False

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Let calls inside the context neither fail nor count. Checks use it."""
        failures, self._failures = self._failures, []
        try:
            yield
        finally:
            self._failures = failures

    def _called(self, kind: Call) -> None:
        for failure in list(self._failures):
            if kind in failure.kinds:
                failure.left -= 1
                if failure.left == 0:
                    self._failures.remove(failure)
                    self.refused += 1
                    raise failure.error

    def _needs_room(self, path: Path, size: int) -> None:
        if self.is_full(path):
            self.refused += 1
            raise DiskFull(errno.ENOSPC, f"no room for {size} bytes", str(path))

    # Calls of a broker ---------------------------------------------------------------------------------------------

    def map(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> MappedFile:
        self._called(Call.MAP)
        self.check_locked(path)
        self.allocate(path, size, sparse=sparse, room_bytes=room_bytes)
        found = path.stat().st_size
        if found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are configured")
        file = SimulatedFile(self, path, size)
        if path not in self._room_to:  # a file of another disk
            written_to = int(np.flatnonzero(file.array).max(initial=-1)) + 1
            self._room_to[path] = max(written_to, path.stat().st_blocks * 512)
        if path not in self._durable:
            self._durable[path] = file.array.copy()
        return file

    def allocate(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> None:
        if path.exists():
            super().allocate(path, size)
            return
        self._called(Call.ALLOCATE)
        self.check_locked(path)
        self._needs_room(path, size)
        self.make_folder(path.parent, durable=not sparse)
        self._note_name(path)
        self._durable[path] = None
        self._room_to[path] = 0 if sparse else size if room_bytes is None else min(room_bytes, size)
        super().allocate(path, size, sparse=sparse, room_bytes=room_bytes)

    def give_room(self, path: Path, start: int, stop: int) -> None:
        self._takes_room(path, start, stop)
        super().give_room(path, start, stop)

    def give_room_ahead(self, path: Path, start: int, stop: int) -> bool:
        if not self.gives_room_ahead:
            return False
        self._takes_room(path, start, stop)
        return super().give_room_ahead(path, start, stop)

    def _takes_room(self, path: Path, start: int, stop: int) -> None:
        """Take the space of bytes `start` to `stop`. It is that of all bytes before `stop` from now on."""
        if path.stat().st_blocks * 512 < stop:  # allocated blocks stay allocated
            self._called(Call.ALLOCATE)
            self._needs_room(path, stop - start)
        room_to = self._room_to.get(path, 0)
        if room_to <= start:
            self._check_space(path, np.fromfile(path, np.uint8, CHECKED_BYTES, offset=room_to))
        self._room_to[path] = max(room_to, stop)

    def _check_space(self, path: Path, behind: Bytes) -> None:
        if behind.any():
            self.behind_space.append(path)
            raise AssertionError(f"{path} was written behind its space")

    def used_share(self, folder: Path) -> float:
        return self.used

    def note_sync(self, file: MappedFile, stop: int) -> None:
        """Make the bytes before `stop` of `file` durable, unless syncs fail."""
        self._called(Call.SYNC)
        if self.sync_error is not None:
            raise self.sync_error
        self.syncs.append(file.path)
        room_to = self._room_to[file.path]
        self._check_space(file.path, file.array[room_to : room_to + CHECKED_BYTES])
        durable = self._durable.get(file.path)
        if durable is None:
            durable = self._durable[file.path] = np.zeros_like(file.array)
        durable[:stop] = file.array[:stop]

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False, private: bool = False) -> None:
        self._called(Call.REPLACE)
        self.check_locked(path)
        self._needs_room(path, len(data))
        self.make_folder(path.parent)
        if keep_previous and path.exists():
            self._note_name(path.with_name(path.name + ".bak"))
        self._note_name(path)
        super().replace(path, data, keep_previous=keep_previous, private=private)

    def create(self, path: Path, data: bytes) -> None:
        self._called(Call.CREATE)
        self._needs_room(path, len(data))
        self.make_folder(path.parent)
        if not path.exists():
            self._note_name(path)
        super().create(path, data)

    def make_folder(self, folder: Path, *, durable: bool = True) -> None:
        if not folder.is_dir():
            self.make_folder(folder.parent, durable=durable)
            self._note(NameChange(folder, is_folder=True))
        super().make_folder(folder, durable=durable)

    def remove(self, path: Path) -> None:
        self._called(Call.REMOVE)
        if path.exists():
            self._note_name(path)
        super().remove(path)
        self._durable.pop(path, None)
        self._room_to.pop(path, None)

    def remove_folder(self, folder: Path) -> None:
        self._called(Call.REMOVE)
        if folder.is_dir():
            self._note(NameChange(folder, is_folder=True, was_there=True))
        super().remove_folder(folder)

    def sync_new(self, handle: int) -> None:
        """Do nothing: here the content of a new file is durable at once, unlike its name."""

    def sync_folder(self, folder: Path) -> None:
        self._called(Call.SYNC_FOLDER)
        for change in self.names.pop(folder, []):
            if change.was_there and not change.path.exists():
                self.names.pop(change.path, None)  # the folder is removed durably, with the changes of its names

    def lock(self, path: Path) -> Any:
        if path in self._held:  # the system locks per process, but two brokers of a test may share one
            raise StoreLocked(errno.EWOULDBLOCK, "another broker runs on this store", str(path))
        lock = _Lock(self._held, path, super().lock(path))
        self._held.add(path)
        self._locks[path] = lock
        return lock

    def _note_name(self, path: Path) -> None:
        """Note that the name `path` is about to be given to a file or taken from one."""
        content = path.read_bytes() if path.exists() else None
        is_mapped, durable = path in self._durable, self._durable.get(path)
        self._note(NameChange(path, False, content, durable, is_mapped))

    def _note(self, change: NameChange) -> None:
        self.names.setdefault(change.path.parent, []).append(change)

    def _undo(self, change: NameChange) -> None:
        path = change.path
        if change.is_folder:
            if change.was_there:
                path.mkdir(parents=True, exist_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
            return
        path.unlink(missing_ok=True)
        self._durable.pop(path, None)
        if change.before is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change.before)
        if change.is_mapped:
            self._durable[path] = change.durable

    # Failures of the process or the machine ------------------------------------------------------------------------

    def release_locks(self) -> None:
        """Release all locks, and forget names that are not synced yet, because the process is gone."""
        self._unsettled.clear()
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()
        self._locked.clear()

    def holds(self, path: Path, start: int, stop: int) -> bool:
        """Return whether the bytes from `start` to `stop` of a mapped file on disk equal those in memory."""
        durable = self._durable[path]
        now = np.fromfile(path, np.uint8, stop - start, offset=start)
        return bool(np.array_equal(now, np.zeros_like(now) if durable is None else durable[start:stop]))

    def write_back(self, randomness: Random, share: float = 0.5) -> None:
        """Write each changed page to disk with probability `share`, as the kernel may do."""
        for path, durable in self._durable.items():
            if path.exists():
                self._durable[path] = _settled(np.fromfile(path, np.uint8), durable, randomness, share, torn=0.0)

    def cut_power(self, randomness: Random, keep: float = 0.5, torn: float = 0.25) -> None:
        """Cut the power. No process may still map the files.

        Each page and the first few changes of names that were not synced are kept with probability `keep`. In a share
        `torn` of the pages, each sector is kept or lost for itself.
        """
        self.boot_id = str(int(self.boot_id) + 1)
        for changes in self.names.values():
            while changes and randomness.random() >= keep:
                self._undo(changes.pop())
        self.names.clear()
        for path, durable in self._durable.items():
            if not path.exists():
                continue
            now = np.fromfile(path, np.uint8)
            left = _settled(now, durable, randomness, keep, torn)
            if not np.array_equal(now, left):
                _overwrite(path, left)
            self._durable[path] = left


def _settled(now: Bytes, then: Bytes | None, randomness: Random, keep: float, torn: float) -> Bytes:
    """Return the disk content of a file that was `then` and is `now`, after some of its changed pages were written."""
    left = np.zeros_like(now) if then is None else then.copy()
    for page in np.unique(np.flatnonzero(now != left) // PAGE_BYTES).tolist():
        grain = SECTOR_BYTES if torn and randomness.random() < torn else PAGE_BYTES
        for at in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, grain):
            if randomness.random() < keep:
                left[at : at + grain] = now[at : at + grain]
    return left


def _overwrite(path: Path, content: Bytes) -> None:
    """Overwrite a file with `content` of the same size. A process that still maps the file sees it."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.pwrite(handle, content.tobytes(), 0)
    finally:
        os.close(handle)
