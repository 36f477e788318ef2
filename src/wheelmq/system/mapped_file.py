"""A mapped file of fixed size, over system calls.

Until Python 3.13, `mmap` keeps a descriptor per file. It also holds the interpreter's lock during a flush or madvise.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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

UNMAPPED_BYTES: Final = 32 << 20
"""Bytes that one system call removes from a mapping. During the call, no other thread can map a file."""
UNMAPPED_BYTES_MIN: Final = 256 << 10
"""A smaller range is not worth the call, because a flush that senders wait for must be short."""


POPULATED_BYTES: Final = 512 << 10
"""Bytes that one system call populates. During the call, no other thread can map a file or free memory."""

LOCKED_BYTES: Final = 32 << 20
"""The size of the piece that one call of the system locks or unlocks."""


class _Mapping:
    """Mapped pages, unmapped when no object refers to their bytes. NumPy arrays over them keep them alive."""

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
    """A file of fixed size, mapped and shared. `array` and `view` are the same bytes."""

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
        _madvise(self._address, size, mmap.MADV_RANDOM)  # reads are random: readahead would only evict pages
        self.array: Bytes = np.asarray(mapping)
        self.read_array: Bytes = self.array.view()
        """The same bytes for kernels that only read them, see `formats.kernels.arrays`."""
        self.read_array.setflags(write=False)
        self.view = memoryview(self.array)  # type: ignore[arg-type] # NumPy says so for Python 3.12 and newer
        self.synced_bytes = 0
        """Bytes from the start that are known to be on disk. Grows only in `sync`."""
        self.is_written = False
        """Whether the file may hold bytes that no sync has covered. `store.mapped` never closes such a file."""

    def sync(self, upto_bytes: int, *, new_from: int | None = None) -> None:
        """Sync the file to the disk. `upto_bytes` is the number of bytes written at the request. Raises OSError.

        `new_from` is the first byte that no sync has covered. With it, the sync ends at the page of `upto_bytes`: a
        sync write-protects its pages, and the pages after the log's end were stored to in advance to avoid faults. The
        sync uses the mapping and needs no descriptor, even when the broker may open no more files.
        """
        if new_from is None:
            self._sync(self.size)
        else:
            self._unmap(new_from, upto_bytes)
            self._sync(min(-(-upto_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, self.size))
        self.synced_bytes = max(self.synced_bytes, upto_bytes)

    def _unmap(self, start: int, stop: int) -> None:
        """Remove whole pages that are about to be written from the mapping, if there are many of them.

        The kernel write-protects each mapped page before it writes it, and interrupts every other processor of this
        process. When pages are removed together, one interrupt covers hundreds. A later read brings them back by a
        fault, sixteen pages at a time.
        """
        start, stop = (at - at % mmap.PAGESIZE for at in (start, stop))
        if stop - start >= UNMAPPED_BYTES_MIN:
            for at in range(start, stop, UNMAPPED_BYTES):
                _madvise(self._address + at, min(UNMAPPED_BYTES, stop - at), mmap.MADV_DONTNEED)

    def _sync(self, stop: int) -> None:
        if _msync(self._address, stop, _MS_SYNC):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(self.path))

    def lock(self) -> None:
        """Lock all pages in memory, so that the system does not evict them. Raises OSError, with no page locked.

        Each call covers a piece, so that other threads can map files in between.
        """
        for at in range(0, self.size, LOCKED_BYTES):
            if _mlock(self._address + at, min(LOCKED_BYTES, self.size - at)):
                code = ctypes.get_errno()
                self.unlock()
                raise OSError(code, os.strerror(code), str(self.path))

    def unlock(self) -> None:
        for at in range(0, self.size, LOCKED_BYTES):
            _munlock(self._address + at, min(LOCKED_BYTES, self.size - at))

    def read_ahead(self, start: int, stop: int) -> None:
        """Begin to read bytes `start` to `stop` in large pieces for a scan, not single pages at their first touch."""
        start -= start % mmap.PAGESIZE
        _madvise(self._address + start, stop - start, mmap.MADV_WILLNEED)

    def populate(self, start: int, stop: int, *, stores: bool = False) -> bool:
        """Populate the pages of bytes `start` to `stop`, which have room on the disk, so that stores there are cheap.

        The pages stay clean: the system may evict them. A store to a populated page costs 0.6 us; a store to a missing
        page costs 17 us. With `stores` the pages are dirty and a store costs nothing more. Use that only for the bytes
        that are written next: the system may write dirty pages at any time. Returns False, without harm, before Linux
        5.14 or when the file is shorter.
        """
        from wheelmq.formats.kernels import jit

        advice = _MADV_POPULATE_WRITE if stores else _MADV_POPULATE_READ
        start -= start % mmap.PAGESIZE
        if jit.available():
            from wheelmq.system import pages  # only threads that populate pages load its library

            return pages.advise_by_pieces(self._address, start, stop, POPULATED_BYTES, advice) == 0
        pieces = [(at, min(POPULATED_BYTES, stop - at)) for at in range(start, stop, POPULATED_BYTES)]
        return not sum(_madvise(self._address + at, size, advice) != 0 for at, size in pieces)
