"""The timer's progress: a line in the log, and the rates of indexed and released messages."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.delay.release import Releaser
from wheelmq.delay.timer.timer import Timer
from wheelmq.observe.rates import Rate

log = logging.getLogger(__name__)

TIMER_RATES_SAMPLE_MS: Final = 1000


class TimerProgressLog:
    """Logs the numbers of pending, armed and released messages."""

    def __init__(self, timer: Timer, releaser: Releaser) -> None:
        self._timer = timer
        self._releaser = releaser
        self._progress: tuple[int, ...] = ()

    def write(self) -> None:
        """Log one line if anything has changed since the last line."""
        timer, releaser = self._timer, self._releaser
        waiting = int(timer.pending.counts.by_queue.sum())
        released = releaser.counts["released"]
        progress = (int(timer.queue.end), timer.indexed_to, released, waiting)
        if progress == self._progress:
            return
        self._progress = progress
        check = timer.timercheck(releaser.earliest_in_hand_ms())
        log.info(
            "timer: %d pending messages, %d of them not indexed, %d armed; %d released since the start; all "
            "due before %d are settled",
            waiting,
            timer.queue.end - timer.indexed_to,
            timer.pending.armed.count + releaser.in_hand(),
            released,
            check.last_read_ms,
        )


class TimerRates:
    def __init__(self, timer: Timer, releaser: Releaser) -> None:
        self._clock = timer.store.clock
        self.indexed = Rate(lambda: timer.indexed_to)
        self.released = Rate(lambda: releaser.counts["released"])

    def sample(self) -> None:
        """Take a sample of each rate. Call it every `TIMER_RATES_SAMPLE_MS`."""
        now_s = self._clock.monotonic()
        self.indexed.sample(now_s)
        self.released.sample(now_s)
