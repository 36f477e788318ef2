"""Allocation of disk blocks by the system call `fallocate`, which changes no byte of a file."""

from __future__ import annotations

import ctypes
import errno
import os

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def allocate_blocks(handle: int, start: int, size: int) -> bool:
    """Allocate the blocks of `size` bytes from byte `start` on. Returns False if the file system cannot.

    Raises OSError. Unlike `os.posix_fallocate`, the call never writes to the file.
    """
    if _fallocate is None:
        return False
    while _fallocate(handle, 0, start, size):
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True
