"""A clock that only a test moves."""

from __future__ import annotations

from wheelmq.formats.units import Millis

START_MS = 1_800_000_000_250
"""The start of the wall clock. It is no full second, so that a rounded time is visible."""


class ManualClock:
    """Wall and monotonic time, moved by hand. Each reading takes `creep_ms`, to end a time slice inside a tick."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 1_000_000.0
        self.creep_ms = 0.0

    def now_ms(self) -> Millis:
        return Millis(self._now_ms)

    def processor(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        self._monotonic_ms += self.creep_ms
        # off the grid, so that int(seconds * 1000) rounds down to the set value
        return (self._monotonic_ms + 0.25) / 1000

    def monotonic_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def advance(self, ms: int) -> None:
        assert ms >= 0, ms
        self._now_ms += ms
        self._monotonic_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back, without any time passing."""
        self._now_ms += ms


class SkewedClock(ManualClock):
    """The clock of one machine among several: the time of another clock, and a constant difference."""

    def __init__(self, clock: ManualClock, skew_ms: int) -> None:
        super().__init__()
        self._clock = clock
        self._skew_ms = skew_ms

    def now_ms(self) -> Millis:
        return Millis(self._clock.now_ms() + self._skew_ms)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def advance(self, ms: int) -> None:
        raise AssertionError("move the other clock")
