"""Once a day, compare the counts of pending messages with their records (RocketMQ: timerCheckMetricsWhen)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.api import Generations
from wheelmq.delay.prefetch import bring_in
from wheelmq.delay.recount import Recount, Step
from wheelmq.delay.timer.metrics import TimerMetricsTable
from wheelmq.delay.timer.timer import Timer
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

LOOK_MS: Final = 60_000
APART_MS: Final = 70 * 60_000
"""Minimum time from one count to the next, and from the start to the first (RocketMQ: TimerMessageStore)."""


class CountAudit:
    """Counts the pending messages at the configured hours. A tick counts one step once its records are in memory."""

    def __init__(
        self,
        timer: Timer,
        generations: Generations,
        metrics: TimerMetricsTable,
        settings: BrokerSettings,
        reading: Worker,
    ) -> None:
        self._timer = timer
        self._generations = generations
        self._metrics = metrics
        self._reading = reading
        self._journal = timer.store.journal
        self._clock = timer.store.clock
        self._hours = settings.timer.check_hours
        self._last_ms = self._clock.now_ms()
        self._is_due = False
        self._recount: Recount | None = None
        self._steps: Iterator[Step] = iter(())
        self._step: Step | None = None

    def next_ms(self) -> int | None:
        return None if self._step is None else 0

    def check_clock(self) -> None:
        """Begin a count in a later tick if it is time. Call it every `LOOK_MS`, if counts are enabled."""
        now_ms = self._clock.now_ms()
        if abs(now_ms - self._last_ms) > APART_MS and time.localtime(now_ms // 1000).tm_hour in self._hours:
            self._is_due = self._recount is None

    def poll(self) -> None:
        """Run one step. Call it when the tick has written its queue units."""
        if self._is_due and self._journal.count == 0:
            self._is_due, self._last_ms = False, self._clock.now_ms()
            self._recount = Recount(self._timer, self._generations)
            self._steps = self._recount.steps()
            self._fetch(self._recount)
        elif self._step is not None and self._recount is not None:
            step, self._step = self._step, None
            self._recount.count(step)
            self._fetch(self._recount)

    def _fetch(self, recount: Recount) -> None:
        """Have a worker read the records of the next step. End the count after the last step."""
        step = next(self._steps, None)
        if step is not None:
            spans = step.spans()
            self._reading.submit(lambda: bring_in(spans), lambda result: self._take(step))
            return
        self._recount = None
        if recount.is_void:
            log.warning(
                "timer: the count of pending messages failed, because the log no longer has some records. The "
                "broker tries again later"
            )
            return
        wrong = recount.correct()
        self._metrics.recounted(wrong)
        log.info("timer: the count found %d pending messages", self._timer.pending.counts.by_queue.sum())

    def _take(self, step: Step) -> None:
        self._step = step
