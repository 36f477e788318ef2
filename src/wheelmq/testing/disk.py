"""A disk for tests: it can be full, refuse any call, and lose what was not synced.

Files are real ones in a folder of the test's, so a store on this disk is a store that any other tool reads. What it
leaves out is the waiting: no fsync reaches the machine's disk, the model here says what would be on it.

What a power cut leaves of it, as the kernel may have it:
- Of mapped bytes, those of the last sync; of the pages that changed since, any subset, some of them torn: a sector of
  512 bytes is the most that is written whole. `write_back` puts pages on disk in between, as the kernel does when it
  likes, so that a page may also be as it was at some moment since the sync.
- Of the names that were added to or taken from a folder since that was synced, the first few: a journal keeps order.
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

from wheelmq.system.disk import Bytes, Disk, DiskFull, MappedFile, StoreLocked

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Call(StrEnum):
    """What a disk is asked to do, and may fail to do."""

    MAP = "map"
    ALLOCATE = "allocate"
    SYNC = "sync"
    REPLACE = "replace"
    SYNC_FOLDER = "sync folder"
    REMOVE = "remove"


@dataclass(frozen=True)
class NameChange:
    """A name that was added to a folder, or taken from it."""

    path: Path
    is_folder: bool
    before: bytes | None = None
    """What a file held under that name; None when there was none, and of a folder."""
    durable: Bytes | None = None
    """What of that was on disk, where it was mapped; None for one that was all zero there."""
    is_mapped: bool = False
    was_there: bool = False
    """Of a folder."""

    def on_disk(self) -> Bytes | None:
        """What the disk holds of the file under that name if the change did not reach it; None for no file."""
        if self.before is None or not self.is_mapped:
            return None if self.before is None else np.frombuffer(self.before, np.uint8)
        return np.zeros(len(self.before), np.uint8) if self.durable is None else self.durable


@dataclass
class _Failure:
    """The `left`-th call from now of `kinds` raises `error`."""

    left: int
    error: OSError
    kinds: Collection[Call]


class SimulatedFile(MappedFile):
    """A mapped file whose sync is the model's."""

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
    """The file system under one harness; it outlives the brokers that run on it."""

    owner_id = 4242

    def __init__(self) -> None:
        super().__init__()
        self.is_full: Callable[[Path], bool] = lambda path: False
        """Asked for each file that is to be made, by its path."""
        self.used = 0.0
        """Share of the disk that is used."""
        self.sync_error: OSError | None = None
        """What the next syncs raise; the bytes stay off the disk."""
        self.syncs: list[Path] = []
        """Every file synced, in order."""
        self.refused = 0
        """Calls that failed."""
        self._failures: list[_Failure] = []
        self._durable: dict[Path, Bytes | None] = {}
        """What is on disk of each mapped file; None for one that is all zero."""
        self.names: dict[Path, list[NameChange]] = {}
        """By folder, the changes of its names since it was synced, in their order."""
        self._locks: dict[Path, _Lock] = {}
        self._held: set[Path] = set()

    def fail_call(self, nth: int, error: OSError, kinds: Collection[Call] = tuple(Call)) -> None:
        """The `nth` call from now, from 1 on and of those `kinds` alone, raises `error` and does nothing."""
        assert nth >= 1, nth
        self._failures.append(_Failure(nth, error, kinds))

    def heal(self) -> None:
        """What was to fail will not, and there is room."""
        self.used = 0.0
        self._failures.clear()
        self.sync_error = None
        self.is_full = lambda path: False

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """For whoever only looks: calls made inside do not fail, nor do they count."""
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

    # What a broker calls -------------------------------------------------------------------------------------------

    def map(self, path: Path, size: int, *, sparse: bool = False) -> MappedFile:
        self._called(Call.MAP)
        self.check_locked(path)
        self.allocate(path, size, sparse=sparse)
        found = path.stat().st_size
        if found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are configured")
        file = SimulatedFile(self, path, size)
        if path not in self._durable:
            self._durable[path] = file.array.copy()
        return file

    def allocate(self, path: Path, size: int, *, sparse: bool = False) -> None:
        if path.exists():
            super().allocate(path, size)
            return
        self._called(Call.ALLOCATE)
        self.check_locked(path)
        self._needs_room(path, size)
        self.make_folder(path.parent, durable=not sparse)
        self._note_name(path)
        self._durable[path] = None
        super().allocate(path, size, sparse=sparse)

    def give_room(self, path: Path, start: int, stop: int) -> None:
        if path.stat().st_blocks * 512 < stop:  # what has room keeps it
            self._called(Call.ALLOCATE)
            self._needs_room(path, stop - start)
        super().give_room(path, start, stop)

    def used_share(self, folder: Path) -> float:
        return self.used

    def note_sync(self, file: MappedFile, stop: int) -> None:
        """The bytes before `stop` of `file` are being synced: what it holds there now is durable, unless syncs fail."""
        self._called(Call.SYNC)
        if self.sync_error is not None:
            raise self.sync_error
        self.syncs.append(file.path)
        durable = self._durable.get(file.path)
        if durable is None:
            durable = self._durable[file.path] = np.zeros_like(file.array)
        durable[:stop] = file.array[:stop]

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False) -> None:
        self._called(Call.REPLACE)
        self.check_locked(path)
        self._needs_room(path, len(data))
        self.make_folder(path.parent)
        if keep_previous and path.exists():
            self._note_name(path.with_name(path.name + ".bak"))
        self._note_name(path)
        super().replace(path, data, keep_previous=keep_previous)

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

    def remove_folder(self, folder: Path) -> None:
        self._called(Call.REMOVE)
        if folder.is_dir():
            self._note(NameChange(folder, is_folder=True, was_there=True))
        super().remove_folder(folder)

    def sync_new(self, handle: int) -> None:
        """What is in a new file is durable at once here; its name is not."""

    def sync_folder(self, folder: Path) -> None:
        self._called(Call.SYNC_FOLDER)
        for change in self.names.pop(folder, []):
            if change.was_there and not change.path.exists():
                self.names.pop(change.path, None)  # it is gone for good, with the names that it had

    def lock(self, path: Path) -> Any:
        if path in self._held:  # the system's lock is one of processes; here two brokers may share one
            raise StoreLocked(errno.EWOULDBLOCK, "another broker runs on this store", str(path))
        lock = _Lock(self._held, path, super().lock(path))
        self._held.add(path)
        self._locks[path] = lock
        return lock

    def _note_name(self, path: Path) -> None:
        """The name `path` is about to be given to a file, or taken from one."""
        content = path.read_bytes() if path.exists() else None
        is_mapped, durable = path in self._durable, self._durable.get(path)
        self._note(NameChange(path, False, content, durable, is_mapped))

    def _note(self, change: NameChange) -> None:
        self.names.setdefault(change.path.parent, []).append(change)

    def _undo(self, change: NameChange) -> None:
        """A change did not reach the disk."""
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

    # What happens to a process, or to the machine ------------------------------------------------------------------

    def release_locks(self) -> None:
        """The process that held them is gone, with what it knew of names."""
        self._unsettled.clear()
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()
        self._locked.clear()

    def holds(self, path: Path, start: int, stop: int) -> bool:
        """Whether the bytes from `start` to `stop` of a mapped file are on disk as they are in memory."""
        durable = self._durable[path]
        now = np.fromfile(path, np.uint8, stop - start, offset=start)
        return bool(np.array_equal(now, np.zeros_like(now) if durable is None else durable[start:stop]))

    def write_back(self, randomness: Random, share: float = 0.5) -> None:
        """The kernel brings some pages to disk, each that was changed with probability `share`."""
        for path, durable in self._durable.items():
            if path.exists():
                self._durable[path] = _settled(np.fromfile(path, np.uint8), durable, randomness, share, torn=0.0)

    def cut_power(self, randomness: Random, keep: float = 0.5, torn: float = 0.25) -> None:
        """Of what was not synced each change of a name and each page is kept with probability `keep`; of a share `torn`
        of those pages each sector. Nobody may hold the files any more."""
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
    """What is on disk of a file that was `then` and is `now`, when some of the changed pages were written."""
    left = np.zeros_like(now) if then is None else then.copy()
    for page in np.unique(np.flatnonzero(now != left) // PAGE_BYTES).tolist():
        grain = SECTOR_BYTES if torn and randomness.random() < torn else PAGE_BYTES
        for at in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, grain):
            if randomness.random() < keep:
                left[at : at + grain] = now[at : at + grain]
    return left


def _overwrite(path: Path, content: Bytes) -> None:
    """Put `content` where the file is, whose size it has: who still maps it sees it."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.pwrite(handle, content.tobytes(), 0)
    finally:
        os.close(handle)
