"""A clock that stands still until it is moved."""

from __future__ import annotations

from wheelmq.formats.units import Millis

START_MS = 1_800_000_000_250
"""Where the wall clock starts: on no full second, so that a time that was floored shows."""


class ManualClock:
    """Wall and monotonic time, moved by hand. `creep_ms` makes monotonic time pass each time it is read, which is how
    a test lets a slice of time run out inside one tick."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 1_000_000.0
        self.creep_ms = 0.0

    def now_ms(self) -> Millis:
        return Millis(self._now_ms)

    def processor(self) -> float:
        """A test uses no processor time."""
        return 0.0

    def monotonic(self) -> float:
        self._monotonic_ms += self.creep_ms
        return (self._monotonic_ms + 0.25) / 1000  # off the grid, so that int(seconds * 1000) floors to what was set

    def advance(self, ms: int) -> None:
        """Time passes: both clocks move on."""
        assert ms >= 0, ms
        self._now_ms += ms
        self._monotonic_ms += ms

    def step(self, ms: int) -> None:
        """Somebody sets the wall clock, forward or back; no time passes."""
        self._now_ms += ms
