"""Memory as large as a file. Only pages that were written to take room."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class SparseFile:
    """Zeros, except for written bytes. `array` and `view` are the same bytes, as in a mapped file."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=_FLAGS)
        with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self.view = memoryview(self._memory)

    def forget(self) -> None:
        """Set all bytes to zero and return the memory to the system."""
        self._memory.madvise(mmap.MADV_DONTNEED)
