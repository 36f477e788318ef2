"""The machine's memory, and the allocator and garbage collector of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from typing import Final

PHYSICAL_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

KEPT_ARRAY_BYTES: Final = 32 << 20
"""Smaller arrays come from the heap. This is the largest value that every glibc accepts."""
KEPT_BYTES: Final = 64 << 20
"""Free bytes that the process keeps at the end of the heap. All threads share one heap: else each would keep them."""
STEP_BYTES: Final = 16 << 20
"""Bytes that the heap grows by, beyond each request."""


def keep_freed_memory() -> bool:
    """Configure the C library to reuse freed memory instead of returning it to the system.

    Otherwise megabytes that are freed and allocated again come back as new pages, each with a fault. Both steps take
    the lock of the process's mappings, which waits for threads that populate pages. Call this before other threads
    allocate: each may get its own heap. Returns False if the C library cannot (musl) or rejects a value.
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
"""Least time between two full collections of garbage."""
CROWDED_COLLECTION_S: Final = 3600.0
"""Least time between two full collections while the process is crowded with objects."""
COLLECTION_REST: Final = 2000
"""The time between two collections is also at least this multiple of the length of the last one."""
GROWN_BYTES: Final = 128 << 20
"""Growth of the process at which it checks for freed memory."""
LOOKS_MAX: Final = 256
"""Greatest number of checks between two trims."""


def trim_heap() -> None:
    """Return freed memory to the system, if the C library can (glibc: malloc_trim)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(STEP_BYTES)


class FreedMemory:
    """Returns freed pages to the system after a peak, for example of answers to peers that did not read them.

    Only a trim shows how much memory is free. So the process tries again while it is larger than at its smallest. The
    time between two trims doubles until a trim returns much memory.
    """

    def __init__(self) -> None:
        self._least_bytes = self._tried_bytes = anonymous_bytes()
        """The memory of the process at its smallest, and after the last trim."""
        self._looks = 0
        """Checks since the last trim."""
        self._looks_wanted = 1

    def trim_job(self) -> Callable[[], None] | None:
        """Return the job that trims the heap, or None if it is not time. Call it at regular times.

        The job takes up to 0.1 s per gigabyte. It may run on a worker.
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
        trim_heap()
        self._tried_bytes = anonymous_bytes()
        has_returned = before - self._tried_bytes >= GROWN_BYTES
        self._looks_wanted = 1 if has_returned else min(2 * self._looks_wanted, LOOKS_MAX)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile. Code that creates many lasting objects takes a tenth less time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Collections:
    """Full collections of cyclic garbage, at times that this process chooses.

    The interpreter starts one whenever the number of objects has grown by a quarter. With 200,000 held requests it
    takes a second, in which nothing else runs.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        gc.set_threshold(*gc.get_threshold()[:2], NEVER)
        self._now_s = now_s
        self._ended_s = now_s()
        """The end of the last full collection, in seconds."""
        self._rest_s = 0.0

    def poll(self, *, is_crowded: bool) -> bool:
        """Collect garbage if it is time, and less often in a crowded process. Returns whether it did."""
        began_s = self._now_s()
        wait_s = CROWDED_COLLECTION_S if is_crowded else COLLECTION_S
        if began_s < self._ended_s + max(wait_s, self._rest_s):
            return False
        gc.collect()
        self._ended_s = self._now_s()
        self._rest_s = COLLECTION_REST * (self._ended_s - began_s)
        return True


def anonymous_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
