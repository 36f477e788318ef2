"""The length of rounds, from the first frame to the end, and of ticks with work. The metrics call both ticks."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.observe.histogram import Histogram
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

SLOW_S: Final = 0.5
"""A longer tick is logged. Its puts and releases have waited for it, even if another step was slow."""
PROCESSOR_EVERY: Final = 17
"""One tick in 17 reads the processor's clock: on a virtual machine, a read takes as long as a short tick. The number
is odd, because rounds and ticks may alternate."""


class Ticks:
    """The length of rounds and ticks in seconds: wall time of all, processor time of some."""

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
        """Start the measurement. Within a running tick, this does nothing."""
        if self._began is not None:
            return
        self._began = self._clock.monotonic()
        self._count += 1
        self._processor_began = self._clock.processor() if self._count % PROCESSOR_EVERY == 0 else None

    @property
    def elapsed_s(self) -> float:
        return 0.0 if self._began is None else self._clock.monotonic() - self._began

    def forget(self) -> None:
        """Cancel the measurement, because there was no work."""
        self._began = None

    def end(self, *, worked: bool) -> None:
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
