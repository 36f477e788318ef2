"""The clock as a component. Nothing else in the package reads the time."""

from __future__ import annotations

import time
from typing import Protocol

from wheelmq.formats.units import Millis


class Clock(Protocol):
    """Wall time for what users see and files keep; monotonic time for how long a thing took."""

    def now_ms(self) -> Millis:
        """The wall clock. May step in either direction."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never steps back."""
        ...

    def processor(self) -> float:
        """Processor seconds that the calling thread has used."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    def processor(self) -> float:
        return time.thread_time()
