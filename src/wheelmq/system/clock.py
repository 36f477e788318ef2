"""The clock as a component. Nothing else in the package reads the time."""

from __future__ import annotations

import time
from typing import Protocol

from wheelmq.formats.units import Millis


class Clock(Protocol):
    """Wall time for users and files; monotonic time for durations."""

    def now_ms(self) -> Millis:
        """Return the time of the wall clock. It may step in either direction."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start. The value never decreases."""
        ...

    def monotonic_ms(self) -> int:
        """Return `monotonic` in whole milliseconds, rounded down."""
        ...

    def processor(self) -> float:
        """Return the processor seconds that the calling thread has used."""
        ...


class SystemClock:
    monotonic = staticmethod(time.monotonic)
    processor = staticmethod(time.thread_time)

    def now_ms(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> int:
        return int(time.monotonic() * 1000)
