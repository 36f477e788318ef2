"""How long rounds of reading take, from the first frame to the end, and ticks that have work to do.

Both are called ticks where they are told, and each is counted by itself."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.observe.histogram import Histogram
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

SLOW_S: Final = 0.5
"""A longer tick is logged. Its puts and releases have waited for it, whichever of its steps was slow."""
PROCESSOR_EVERY: Final = 17
"""The processor's clock is read for one tick in so many: on a virtual machine that takes as long as a short tick. It is
odd, since rounds and ticks may take turns."""


class Ticks:
    """The length of rounds and ticks in seconds, by the wall and (of some) by the processor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wall = Histogram(least=0.00002)
        self.processor = Histogram(least=0.00002)
        self.idle = 0
        """Ticks that found nothing to do."""
        self._count = 0
        self._began: float | None = None
        self._processor_began: float | None = None

    def begin(self) -> None:
        """Work begins; told again within the tick, it began the first time."""
        if self._began is not None:
            return
        self._began = self._clock.monotonic()
        self._count += 1
        self._processor_began = self._clock.processor() if self._count % PROCESSOR_EVERY == 0 else None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the work of this tick began; 0 outside of one."""
        return 0.0 if self._began is None else self._clock.monotonic() - self._began

    def forget(self) -> None:
        """What began was nothing."""
        self._began = None

    def end(self, *, worked: bool) -> None:
        """The tick is over."""
        assert self._began is not None
        if not worked:
            self.idle += 1
        else:
            elapsed_s = self._clock.monotonic() - self._began
            self.wall.add(elapsed_s)
            if elapsed_s > SLOW_S:
                log.warning("a tick took %d ms: its sends, pulls and releases waited", round(1000 * elapsed_s))
            if self._processor_began is not None:
                self.processor.add(self._clock.processor() - self._processor_began)
        self._began = None
