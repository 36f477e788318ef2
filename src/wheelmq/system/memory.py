"""The machine's memory, and what this process does with what it has of it."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
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


NEVER: Final = 1 << 30
COLLECTION_S: Final = 60.0
"""Time between two full collections of garbage, at least."""
CROWDED_COLLECTION_S: Final = 3600.0
"""The same, while the process is crowded with objects."""
COLLECTION_REST: Final = 2000
"""The time between two is also at least this multiple of the time that the last one took."""
GROWN_BYTES: Final = 128 << 20
"""Growth of the process at which it looks for freed memory."""
LOOKS_MAX: Final = 256
"""Looks from one trim to the next, at most."""


class FreedMemory:
    """Returns freed pages to the system after a peak, such as answers to peers that did not read them.

    Only a trim finds out how much of the memory is free. During a peak it finds little. So the process tries again
    while it is larger than it was at its smallest. The time between two trims doubles until one returns much.
    """

    def __init__(self) -> None:
        self._least_bytes = self._tried_bytes = anonymous_bytes()
        """The memory of the process at its smallest, and after the last trim."""
        self._looks = 0
        """Looks since the last trim."""
        self._looks_wanted = 1

    def trim_job(self) -> Callable[[], None] | None:
        """Return the job that returns the pages, or None if it is not time for it. Call it at regular times.

        The job takes up to 0.1 s for each gigabyte. It may run off the loop.
        """
        now_bytes = anonymous_bytes()
        self._least_bytes = min(self._least_bytes, now_bytes)
        self._looks += 1
        if now_bytes - self._tried_bytes >= GROWN_BYTES:
            self._looks_wanted = 1
        if now_bytes - self._least_bytes < GROWN_BYTES or self._looks < self._looks_wanted:
            return None
        self._looks = 0
        return self._trim

    def _trim(self) -> None:
        before = anonymous_bytes()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(STEP_BYTES)
        self._tried_bytes = anonymous_bytes()
        has_returned = before - self._tried_bytes >= GROWN_BYTES
        self._looks_wanted = 1 if has_returned else min(2 * self._looks_wanted, LOOKS_MAX)


class Collections:
    """Full collections of cyclic garbage, at times that this process chooses.

    The interpreter begins one after each growth by a quarter. With 200,000 held requests it takes a second, in which
    nothing else runs.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)
        self._now_s = now_s
        self._ended_s = now_s()
        """When the last full collection ended."""
        self._rest_s = 0.0

    def poll(self, *, is_crowded: bool) -> bool:
        """Collect if it is time to: more rarely if the process is crowded with objects. Returns whether it did."""
        began_s = self._now_s()
        wait_s = CROWDED_COLLECTION_S if is_crowded else COLLECTION_S
        if began_s < self._ended_s + max(wait_s, self._rest_s):
            return False
        gc.collect()
        self._ended_s = self._now_s()
        self._rest_s = COLLECTION_REST * (self._ended_s - began_s)
        return True


def anonymous_bytes() -> int:
    """Return the memory of the process that no file holds."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
