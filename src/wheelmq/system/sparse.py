"""Memory as large as a file, of which only the pages take room that were written to."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class SparseFile:
    """Zeros, but for what was written; `array` and `view` are the same bytes, as with a mapped file."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=_FLAGS)
        with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self.view = memoryview(self._memory)

    def forget(self) -> None:
        """Make all of it zeros again, and give the memory back."""
        self._memory.madvise(mmap.MADV_DONTNEED)
