"""How long ticks take that have work to do: from the first frame of a round of reading to the end of its tick."""

from __future__ import annotations

from wheelmq.observe.histogram import Histogram
from wheelmq.system.clock import Clock


class Ticks:
    """The length of ticks in seconds, by the wall and by the processor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wall = Histogram(least=0.00002)
        self.processor = Histogram(least=0.00002)
        self.idle = 0
        """Ticks that found nothing to do."""
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Work begins; told again within the tick, it began the first time."""
        if self._began is None:
            self._began = (self._clock.monotonic(), self._clock.processor())

    def end(self, *, worked: bool) -> None:
        """The tick is over."""
        assert self._began is not None
        if worked:
            wall, processor = self._began
            self.wall.add(self._clock.monotonic() - wall)
            self.processor.add(self._clock.processor() - processor)
        else:
            self.idle += 1
        self._began = None
