"""The machine's memory, and what this process does with what it has of it."""

from __future__ import annotations

import ctypes
import os
from typing import Final

PHYSICAL_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

KEPT_ARRAY_BYTES: Final = 32 << 20
"""Arrays below this come from the heap: the most that every glibc allows."""
KEPT_BYTES: Final = 64 << 20
"""What is free at the end of the heap is kept up to this. All threads have one heap, else each would keep as much."""
STEP_BYTES: Final = 16 << 20
"""The heap grows by so much more than is asked for."""


def keep_freed_memory() -> bool:
    """Have freed memory used again instead of given back to the system and asked for anew; False where the C library
    has no `mallopt` (musl) or refuses.

    A few megabytes that are freed and wanted again are otherwise given back and come as new pages, each with a fault.
    Both take the lock of the process's mappings, which waits for any thread that populates pages, and every fault waits
    behind it. Call it before there are threads that allocate: each may have a heap of its own by then.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(
        mallopt(name, value)
        for name, value in (
            (_M_ARENA_MAX, 1),
            (_M_MMAP_THRESHOLD, KEPT_ARRAY_BYTES),
            (_M_TRIM_THRESHOLD, KEPT_BYTES),
            (_M_TOP_PAD, STEP_BYTES),
        )
    )
