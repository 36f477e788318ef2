"""The disk as a component. Nothing else in the package opens, maps, syncs or removes a file of a store.

Each byte that a mapping writes has room on the disk before the write: a store into a hole of a full disk would raise
SIGBUS, which no exception handler sees. Small files get all their room at creation, large ones in steps (`give_room`).
On a copy-on-write file system (btrfs, ZFS) room lasts for one write only, so the promise does not hold there. A sync is
an msync, which is the fdatasync of a mapping.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from wheelmq.system.block_allocation import allocate_blocks
from wheelmq.system.failpoint import reach
from wheelmq.system.mapped_file import MappedFile
from wheelmq.system.unfinished_file import give_name, remove_abandoned, unfinished_file

T = TypeVar("T")

_unfinished = itertools.count()
"""Part of the name of each unfinished file, so that two threads never use the same name."""
_placing = threading.Lock()
"""Held while a thread renames a finished file to its final name."""


class DiskFull(OSError):
    """The disk has no room for a file. Nothing was written."""


@contextlib.contextmanager
def _needing_room(what: str, path: Path) -> Iterator[None]:
    """Raise DiskFull for `what` if the file system or the user's quota is full."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(error.errno, f"no room for {what}", str(path)) from None
        raise


def _private_opener(path: str, flags: int) -> int:
    """Open a file that only its owner can read. A file that a kill left behind may have other permissions."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)
    return handle


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class StoreLocked(OSError):
    """Another process holds the store."""


class StoreRemoved(OSError):
    """The lock file of the store is gone or was replaced. The store does not belong to this process any more."""


class Disk:
    owner_id = os.getpid()
    """The owner of the store, as the `abort` file names it."""
    boot_id = _boot_id()
    """Another text after each start of the machine; empty if the system does not tell."""

    def __init__(self) -> None:
        self._unsettled: set[Path] = set()
        """New names that may not be on disk yet. Each use of such a name syncs it first."""
        self._locked: dict[Path, tuple[int, int]] = {}
        """Lock files that this process holds, each with its device and inode number."""

    def map(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> MappedFile:
        """Map the file at `path`; create it as `allocate` does if it does not exist. Raises DiskFull.

        Raises OSError (EINVAL) if the file has another size. A sparse file may be shorter after a power cut.
        """
        self.check_locked(path)
        self.allocate(path, size, sparse=sparse, room_bytes=room_bytes)
        found = path.stat().st_size
        if sparse and found < size:
            os.truncate(path, size)
        elif found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are configured")
        return MappedFile(path, size, writable=True)

    def allocate(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> None:
        """Create the file at `path` with `size` zero bytes if it does not exist. Raises DiskFull.

        On return the file is durable and has room for its first `room_bytes`, or for all bytes without it. Its writer
        calls `give_room` for the others. A sparse file has no room and is not durable: its writer also syncs the file
        and its folders.

        Several threads may want the same file. The first one to finish renames its file to `path`, and the others use
        it: it may already be mapped and written. If the file existed already, its name may not be on disk yet. Then
        this call syncs the name.
        """
        if path.exists():
            self._settle(path)
            return
        self.check_locked(path)
        room_bytes = 0 if sparse else min(size, size if room_bytes is None else room_bytes)
        with _needing_room(f"{room_bytes} bytes", path):
            self.make_folder(path.parent, durable=not sparse)
            unfinished = path.with_name(f"{path.name}.{next(_unfinished)}.new")
            try:
                self._make(unfinished, size, room_bytes, durable=not sparse)
            except OSError:
                unfinished.unlink(missing_ok=True)
                if path.exists():
                    return
                raise
            reach("file.allocated")
            with _placing:
                if not path.exists():
                    if not sparse:
                        self._unsettled.add(path)
                    unfinished.rename(path)
                for left in path.parent.glob(f"{path.name}.*new"):  # from slower threads and from earlier stops
                    left.unlink(missing_ok=True)
            self._settle(path)

    def _settle(self, path: Path) -> None:
        if path in self._unsettled:
            self.sync_folder(path.parent)
            self._unsettled.discard(path)

    def _make(self, path: Path, size: int, room_bytes: int, *, durable: bool) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(handle, size)
            if room_bytes:
                os.posix_fallocate(handle, 0, room_bytes)
            if durable:
                self.sync_new(handle)
        finally:
            os.close(handle)

    def give_room(self, path: Path, start: int, stop: int) -> None:
        """Allocate room on the disk for bytes `start` to `stop` of a file. Raises DiskFull."""
        self._allocate_by(os.posix_fallocate, path, start, stop)

    def give_room_ahead(self, path: Path, start: int, stop: int) -> bool:
        """Allocate room where another thread may write next. Returns False if the file system cannot. Raises DiskFull.

        `give_room` writes zeros where the file system has no call for it, and so may overwrite another thread's bytes.
        """
        return self._allocate_by(allocate_blocks, path, start, stop)

    def _allocate_by(self, call: Callable[[int, int, int], T], path: Path, start: int, stop: int) -> T:
        self.check_locked(path)
        with _needing_room(f"{stop - start} bytes", path):
            handle = os.open(path, os.O_RDWR)
            try:
                return call(handle, start, stop - start)
            finally:
                os.close(handle)

    def written(self, path: Path, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges between bytes `start` and `stop` of a file that may hold data other than zeros.

        The file system answers from its metadata, so the call touches no page.
        """
        found: list[tuple[int, int]] = []
        handle = os.open(path, os.O_RDONLY)
        try:
            while start < stop:
                try:
                    start = os.lseek(handle, start, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        return [*found, (start, stop)]  # the file system does not support SEEK_DATA
                    break
                if start < stop:
                    end = min(os.lseek(handle, start, os.SEEK_HOLE), stop)
                    found.append((start, end))
                    start = end
        finally:
            os.close(handle)
        return found

    def free_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free

    def read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False, private: bool = False) -> None:
        """Write `data` to `path` in one step, on disk on return. It gets the old file's permissions.

        With `keep_previous` the old file stays as `.bak`. A `private` file without an old one is readable for its
        owner only, from its first byte on.
        """
        self.check_locked(path)
        self.make_folder(path.parent)
        fresh = path.with_name(path.name + ".tmp")
        with open(fresh, "wb", opener=_private_opener if private else None) as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            self.sync_new(file.fileno())
        reach("replace.written")
        if keep_previous and path.exists():
            backup = path.with_name(path.name + ".bak")
            with contextlib.suppress(FileNotFoundError):
                backup.unlink()
            os.link(path, backup)
        fresh.rename(path)
        reach("replace.renamed")
        self.sync_folder(path.parent)

    def create(self, path: Path, data: bytes) -> None:
        """Create the file at `path` with `data` in one step, on disk on return. Raises FileExistsError, OSError.

        Of several processes that create it at the same time, only one succeeds.
        """
        self.check_locked(path)
        self.make_folder(path.parent)
        with unfinished_file(path) as (fresh, file):
            file.write(data)
            file.flush()
            self.sync_new(file.fileno())
            reach("create.written")
            give_name(fresh, path)
            reach("create.named")
        self.sync_folder(path.parent)

    def remove_unfinished(self, path: Path) -> bool:
        """Remove a file that a killed `create` has left. Returns False if its process runs."""
        self.check_locked(path)
        return remove_abandoned(path)

    def is_shared(self, path: Path) -> bool:
        """Return whether other users of the machine may read the file, or its group may write it."""
        return bool(path.stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP))

    def list(self, folder: Path) -> list[str]:
        """Return the sorted names in `folder`, or an empty list if it does not exist."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        self.check_locked(path)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_folder(self, folder: Path) -> None:
        self.check_locked(folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def make_folder(self, folder: Path, *, durable: bool = True) -> None:
        """Create `folder` and its parents. With `durable` each name is on disk on return. Raises DiskFull."""
        if not folder.is_dir():
            self.make_folder(folder.parent, durable=durable)
            with _needing_room("a folder", folder):
                if durable:
                    self._unsettled.add(folder)
                folder.mkdir(exist_ok=True)
        self._settle(folder)

    def used_share(self, folder: Path) -> float:
        """Return the used share of the file system that holds `folder`, 0 to 1, or 0 if the folder is gone."""
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            return 0.0
        return usage.used / usage.total

    def space(self, folder: Path) -> tuple[int, int]:
        """Return the total and the free bytes of the file system of `folder`, or zeros if the folder is gone."""
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            return 0, 0
        return usage.total, usage.free

    def sync_new(self, handle: int) -> None:
        """Sync the size and the content of a new file before it gets its name."""
        os.fsync(handle)

    def sync_folder(self, folder: Path) -> None:
        """Sync the names that were added to `folder` or removed from it."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def identity(self, path: Path) -> str:
        """Return a text that identifies the file at `path`; empty without one. Copies and other mounts have others."""
        try:
            found = path.stat()
        except OSError:
            return ""
        return f"{found.st_dev}-{found.st_ino}-{found.st_ctime_ns}"

    def lock(self, path: Path) -> Any:
        """Lock the store of lock file `path` until the process ends or the result is closed. Raises StoreLocked."""
        self.make_folder(path.parent)
        file = open(path, "a+b")  # noqa: SIM115 - held for the life of the store
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            file.close()
            raise StoreLocked(errno.EWOULDBLOCK, "another broker runs on this store", str(path)) from None
        file.seek(0)
        if file.read() != b"lock":
            file.truncate(0)
            file.write(b"lock")
            file.flush()
        found = os.fstat(file.fileno())
        self._locked[path] = found.st_dev, found.st_ino
        return file

    def check_locked(self, path: Path) -> None:
        """Check that the store of `path` is the one that this process has locked, or none is. Raises StoreRemoved.

        Without the check, a broker whose store was removed would write into the store of its successor.
        """
        for lock, identity in self._locked.items():
            if path.is_relative_to(lock.parent):
                try:
                    found = lock.stat()
                    is_same = (found.st_dev, found.st_ino) == identity
                except FileNotFoundError:
                    is_same = False
                if not is_same:
                    text = (
                        "the store was removed or replaced while the broker runs: its lock file is not the one "
                        "that the broker holds"
                    )
                    raise StoreRemoved(errno.ESTALE, text, str(lock))


class ReadOnlyDisk(Disk):
    """Maps files for reading and creates none. Spark tasks and tools read a store of another process with it."""

    def map(self, path: Path, size: int, *, sparse: bool = False, room_bytes: int | None = None) -> MappedFile:
        found = path.stat().st_size
        if found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are expected")
        return MappedFile(path, size, writable=False)

    def lock(self, path: Path) -> Any:
        """Return a lock that keeps brokers from opening the store until it is closed. The lock file does not change.

        Returns None without a lock file, because no broker ever ran there. Raises StoreLocked while a broker runs.
        """
        try:
            file = open(path, "rb")  # noqa: SIM115 - held while the caller reads the store
        except FileNotFoundError:
            return None
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError:
            file.close()
            raise StoreLocked(errno.EWOULDBLOCK, "a broker runs on this store", str(path)) from None
        return file
