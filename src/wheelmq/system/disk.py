"""The disk as a component. Nothing else in the package opens, maps, syncs or removes a file of a store.

What is written through a mapping has room on the disk before: a store into a hole of a full disk would be SIGBUS, which
no exception handler sees. A file gets its room in full when it is made, or, where there are thousands that stay nearly
empty, it is made sparse and gets room in steps (`give_room`). On a file system that copies on write (btrfs, ZFS) room
lasts for one write only, so the promise does not hold there. Syncing is msync, which is fdatasync of what is mapped.

Files are mapped by the system's calls and not by Python's `mmap`: that keeps a descriptor for each (until Python 3.13),
and holds the interpreter's lock while it flushes or gives advice.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheelmq.system.failpoint import reach

Bytes = npt.NDArray[np.uint8]

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _madvise, _msync = _libc.mmap, _libc.munmap, _libc.madvise, _libc.msync
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mlock, _munlock = _libc.mlock, _libc.munlock
for _call in (_munmap, _mlock, _munlock):
    _call.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
for _call in (_madvise, _msync):
    _call.argtypes = (*_munmap.argtypes, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
_MS_SYNC = 4

_unfinished = itertools.count()
"""Tells apart the files that are being made."""
_placing = threading.Lock()
"""Held while one of them is put in its place."""


class DiskFull(OSError):
    """There is no room for a file that is needed; nothing was written."""


@contextlib.contextmanager
def _needing_room(what: str, path: Path) -> Iterator[None]:
    """Raises DiskFull for `what` where the file system, or the user's share of it, is full."""
    try:
        yield
    except DiskFull:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(error.errno, f"no room for {what}", str(path)) from None
        raise


UNMAPPED_BYTES: Final = 32 << 20
"""What one call of the system takes out of a mapping: meanwhile nobody else in the process can map a file."""
UNMAPPED_BYTES_MIN: Final = 256 << 10
"""Less is not worth the call: a flush for which senders wait is to be short."""


POPULATED_BYTES: Final = 512 << 10
"""What one call of the system populates: meanwhile nobody else in the process can map a file or give memory back."""

LOCKED_BYTES: Final = 32 << 20
"""The size of the piece that one call of the system locks or unlocks."""


class StoreLocked(OSError):
    """Another process holds the store."""


class StoreRemoved(OSError):
    """The lock file of the store is gone, or another one is in its place: the store is not this process's any more."""


class _Mapping:
    """Mapped pages, given back when nobody holds bytes of them any more. NumPy arrays over it keep it alive."""

    def __init__(self, handle: int, size: int, *, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _mmap(None, size, protection, mmap.MAP_SHARED, handle, 0)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.address: int = address
        self._size = size
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, not writable)}

    def __del__(self, unmap: Any = _munmap) -> None:
        if hasattr(self, "address"):
            unmap(self.address, self._size)


class MappedFile:
    """A file of fixed size, mapped and shared; `array` and `view` are the same bytes."""

    def __init__(self, path: Path, size: int, *, writable: bool) -> None:
        self.path = path
        self.size = size
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            mapping = _Mapping(handle, size, writable=writable)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        finally:
            os.close(handle)
        self._address = mapping.address
        _madvise(self._address, size, mmap.MADV_RANDOM)  # reads go where they go: reading ahead only evicts
        self.array: Bytes = np.asarray(mapping)
        self.view = memoryview(self.array)  # type: ignore[arg-type] # NumPy says so for Python 3.12 and newer
        self.synced_bytes = 0
        """Bytes from the start that are known to be on disk. Grows only in `sync`."""
        self.is_written = False
        """Whether it may hold what no sync has covered. Whoever lets go of files keeps it so (store.mapped)."""

    def sync(self, upto_bytes: int, *, new_from: int | None = None) -> None:
        """Bring the file to disk. `upto_bytes` says how much of it the caller had written when it asked.

        With `new_from`, where what no sync has covered begins, nothing behind the page of `upto_bytes`. A page that is
        brought to disk is write-protected, and the next store to it a fault: those ahead of a log's end, which were
        stored to so that there is none, are left alone.

        Goes by the mapping, so it needs no descriptor: a broker that may open no more files still keeps its word.
        Raises OSError.
        """
        if new_from is None:
            self._sync(self.size)
        else:
            self._unmap(new_from, upto_bytes)
            self._sync(min(-(-upto_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.size))
        self.synced_bytes = max(self.synced_bytes, upto_bytes)

    def _unmap(self, start: int, stop: int) -> None:
        """Take whole pages out of the mapping that are about to be written, if they are many; who reads there has them
        back by a fault, sixteen at a time.

        A mapped page is write-protected before it is written, and each such page interrupts every other processor that
        this process runs on. Taken out together they do so hundreds at a time.
        """
        start, stop = (at - at % mmap.PAGESIZE for at in (start, stop))
        if stop - start >= UNMAPPED_BYTES_MIN:
            for at in range(start, stop, UNMAPPED_BYTES):
                _madvise(self._address + at, min(UNMAPPED_BYTES, stop - at), mmap.MADV_DONTNEED)

    def _sync(self, stop: int) -> None:
        """Bring the bytes before `stop` to disk. Raises OSError."""
        if _msync(self._address, stop, _MS_SYNC):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def lock(self) -> None:
        """Lock all pages in memory, so that the system does not take them back. Raises OSError.

        After an error no page is locked. Each call covers a piece, so that other threads can map files in between.
        """
        for at in range(0, self.size, LOCKED_BYTES):
            if _mlock(self._address + at, min(LOCKED_BYTES, self.size - at)):
                code = ctypes.get_errno()
                self.unlock()
                raise OSError(code, os.strerror(code), str(self.path))

    def unlock(self) -> None:
        """Unlock all pages: the system may take them back again."""
        for at in range(0, self.size, LOCKED_BYTES):
            _munlock(self._address + at, min(LOCKED_BYTES, self.size - at))

    def read_ahead(self, start: int, stop: int) -> None:
        """Begin to read bytes `start` to `stop` from disk, in large pieces: they will be walked over one after another.

        Without, each page would be read by itself when it is touched.
        """
        start -= start % mmap.PAGESIZE
        _madvise(self._address + start, stop - start, mmap.MADV_WILLNEED)

    def populate(self, start: int, stop: int, *, stores: bool = False) -> bool:
        """Bring the pages of bytes `start` to `stop` in, so that storing there is cheap; they have room on the disk.

        They stay clean: what nobody stores to is never written to disk, and can be taken back. A store to one costs
        0.6 us then, where one to a page that is not there costs 17. With `stores` they are as after a store, and a
        further one costs nothing: for what is stored to next, since the system may write them to disk any time.
        Where the system cannot do that (Linux before 5.14), or the file ends before, it is False, and no harm.
        """
        from wheelmq.formats.kernels import jit

        advice = _MADV_POPULATE_WRITE if stores else _MADV_POPULATE_READ
        start -= start % mmap.PAGESIZE
        if jit.available():
            from wheelmq.formats.kernels import pages  # its library is loaded by those who populate

            return pages.advise_by_pieces(self._address, start, stop, POPULATED_BYTES, advice) == 0
        pieces = [(at, min(POPULATED_BYTES, stop - at)) for at in range(start, stop, POPULATED_BYTES)]
        return not sum(_madvise(self._address + at, size, advice) != 0 for at, size in pieces)


class Disk:
    """The machine's file system."""

    owner_id = os.getpid()
    """Who holds the store, as `abort` names it."""

    def __init__(self) -> None:
        self._unsettled: set[Path] = set()
        """Names that were added and are not known to be on disk; whoever wants to use one brings it there first."""
        self._locked: dict[Path, tuple[int, int]] = {}
        """Lock files that this process holds, each with its device and inode number."""

    def map(self, path: Path, size: int, *, sparse: bool = False) -> MappedFile:
        """The file at `path`, made with `size` zero bytes when it is not there. Raises DiskFull.

        Raises OSError (EINVAL) when it is there with another size; but a sparse one may be shorter, by a power cut.
        """
        self.check_locked(path)
        self.allocate(path, size, sparse=sparse)
        found = path.stat().st_size
        if sparse and found < size:
            os.truncate(path, size)
        elif found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are configured")
        return MappedFile(path, size, writable=True)

    def allocate(self, path: Path, size: int, *, sparse: bool = False) -> None:
        """Make the file at `path` with `size` zero bytes if it is not there. Raises DiskFull.

        It has its room, and is durable, on return. A sparse one has no room and is not durable: its writer calls
        `give_room`, and syncs the file and the folders that it lies in.
        Several threads may want one file: each makes its own, the first that is done puts it in place, and the others
        are content with it. It never gives way to a later one, since it may be mapped and written by then. Where it was
        there already, its name may still have to be brought to disk: who made it may not have come so far.
        """
        if path.exists():
            self._settle(path)
            return
        self.check_locked(path)
        with _needing_room(f"{size} bytes", path):
            self.make_folder(path.parent, durable=not sparse)
            unfinished = path.with_name(f"{path.name}.{next(_unfinished)}.new")
            try:
                self._make(unfinished, size, sparse=sparse)
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
                for left in path.parent.glob(f"{path.name}.*new"):  # of those who come too late, and of stops
                    left.unlink(missing_ok=True)
            self._settle(path)

    def _settle(self, path: Path) -> None:
        """Make a name durable that was to be so when it was added."""
        if path in self._unsettled:
            self.sync_folder(path.parent)
            self._unsettled.discard(path)

    def _make(self, path: Path, size: int, *, sparse: bool) -> None:
        """A new file at `path` with `size` zero bytes; its size is durable, unless it is sparse."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            if sparse:
                os.ftruncate(handle, size)
            else:
                os.posix_fallocate(handle, 0, size)
                self.sync_new(handle)
        finally:
            os.close(handle)

    def give_room(self, path: Path, start: int, stop: int) -> None:
        """See to it that bytes `start` to `stop` of a file have room on the disk. Raises DiskFull."""
        self.check_locked(path)
        with _needing_room(f"{stop - start} bytes", path):
            handle = os.open(path, os.O_RDWR)
            try:
                os.posix_fallocate(handle, start, stop - start)
            finally:
                os.close(handle)

    def written(self, path: Path, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges between bytes `start` and `stop` of a file that may hold anything but zeros, from the system's
        books: asking touches no page."""
        found: list[tuple[int, int]] = []
        handle = os.open(path, os.O_RDONLY)
        try:
            while start < stop:
                try:
                    start = os.lseek(handle, start, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        return [*found, (start, stop)]  # a file system that keeps no such books
                    break
                if start < stop:
                    end = min(os.lseek(handle, start, os.SEEK_HOLE), stop)
                    found.append((start, end))
                    start = end
        finally:
            os.close(handle)
        return found

    def free_bytes(self, folder: Path) -> int:
        """Room that is left on the file system that holds `folder`."""
        return shutil.disk_usage(folder).free

    def read(self, path: Path) -> bytes | None:
        """What the file holds; None when it is not there."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, path: Path, data: bytes, *, keep_previous: bool = False) -> None:
        """Put `data` at `path` in one step, on disk when this returns; the old file stays as `.bak` if asked. Who may
        read and write the old one may the new one, and nobody else."""
        self.check_locked(path)
        self.make_folder(path.parent)
        fresh = path.with_name(path.name + ".tmp")
        with open(fresh, "wb") as file:
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

    def list(self, folder: Path) -> list[str]:
        """The names in `folder`, sorted; none when it is not there."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        self.check_locked(path)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder that is empty, if it is there."""
        self.check_locked(folder)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()

    def make_folder(self, folder: Path, *, durable: bool = True) -> None:
        """Make `folder`, and those it lies in, if they are not there; each name durable on return, unless that is left
        to the caller. Raises DiskFull."""
        if not folder.is_dir():
            self.make_folder(folder.parent, durable=durable)
            with _needing_room("a folder", folder):
                if durable:
                    self._unsettled.add(folder)
                folder.mkdir(exist_ok=True)
        self._settle(folder)

    def used_share(self, folder: Path) -> float:
        """Return the used share of the file system that holds `folder`, 0 to 1; 0 if the folder is gone."""
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            return 0.0
        return usage.used / usage.total

    def space(self, folder: Path) -> tuple[int, int]:
        """Return the bytes of the file system that holds `folder`, and its free bytes; zeros if the folder is gone."""
        try:
            usage = shutil.disk_usage(folder)
        except FileNotFoundError:
            return 0, 0
        return usage.total, usage.free

    def sync_new(self, handle: int) -> None:
        """Make a new file durable, its size and what is in it, before it gets its name."""
        os.fsync(handle)

    def sync_folder(self, folder: Path) -> None:
        """Make names that were added to or taken from `folder` durable."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def identity(self, path: Path) -> str:
        """What tells the file at `path` from any other, its copies and those of other machines too; empty without it.

        A copy has another time of change; another machine, or another mount of the network's, another device number.
        """
        try:
            found = path.stat()
        except OSError:
            return ""
        return f"{found.st_dev}-{found.st_ino}-{found.st_ctime_ns}"

    def lock(self, path: Path) -> Any:
        """Hold the store whose lock file is `path` until the process ends or the result is closed."""
        self.make_folder(path.parent)
        file = open(path, "a+b")  # noqa: SIM115 - held as long as the store is
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
        """Check that a store in which `path` lies is the one that this process has locked, if it has locked any.

        Without this check a broker whose store was removed would write into the store of its successor. Raises
        StoreRemoved.
        """
        for lock, identity in self._locked.items():
            if path.is_relative_to(lock.parent):
                try:
                    found = lock.stat()
                    is_same = (found.st_dev, found.st_ino) == identity
                except FileNotFoundError:
                    is_same = False
                if not is_same:
                    text = "the store was removed or replaced under the broker, its lock file is not the one it holds"
                    raise StoreRemoved(errno.ESTALE, text, str(lock))


class ReadOnlyDisk(Disk):
    """Maps files for reading and makes none: how a Spark task, or a tool, looks at a store that it does not own."""

    def map(self, path: Path, size: int, *, sparse: bool = False) -> MappedFile:
        found = path.stat().st_size
        if found != size:
            raise OSError(errno.EINVAL, f"{path} has {found} bytes where {size} are expected")
        return MappedFile(path, size, writable=False)

    def lock(self, path: Path) -> Any:
        """Keep brokers from opening the store until the result is closed, without changing its lock file.

        None where there is no such file: then no broker ever ran there. Raises StoreLocked while one does.
        """
        try:
            file = open(path, "rb")  # noqa: SIM115 - held as long as the store is looked at
        except FileNotFoundError:
            return None
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError:
            file.close()
            raise StoreLocked(errno.EWOULDBLOCK, "a broker runs on this store", str(path)) from None
        return file
