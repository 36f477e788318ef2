"""What is done for the timer beside the ticks: its counts are written down, its progress is told.

And whether it releases: not while timerStopDequeue says so, nor for disappearTimeAfterStart from the start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wheelmq.delay.timer.metrics import TimerMetrics

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)


class TimerChores:
    """Runs with the broker's chores. Times are monotonic milliseconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self.metrics = TimerMetrics(broker.timer)
        self._stops_dequeue = settings.timer_stop_dequeue
        self._dequeues_from_ms = broker.now_monotonic_ms() + max(0, settings.disappear_time_after_start)
        self._progress: tuple[int, ...] = ()
        if settings.timer_flush_interval_ms > 0:
            broker.every(settings.timer_flush_interval_ms, self._save_metrics)
        if settings.timer_progress_log_interval_ms > 0:
            broker.every(settings.timer_progress_log_interval_ms, self._tell_progress)
        for name, stops in (
            ("timerStopEnqueue", settings.timer_stop_enqueue),
            ("timerStopDequeue", self._stops_dequeue),
        ):
            if stops:
                log.warning("%s is on: what is parked waits until it is off", name)

    def next_release_ms(self, monotonic_ms: int) -> int | None:
        """For how many milliseconds nothing is released yet, 0 for none; None while releasing is stopped."""
        return None if self._stops_dequeue else max(0, self._dequeues_from_ms - monotonic_ms)

    def _save_metrics(self) -> None:
        job = self.metrics.save_job()
        if job is not None:
            self._broker.background.submit(job, self._broker.note_saved)

    def _tell_progress(self) -> None:
        """One line, if anything has moved since the last one."""
        broker, timer = self._broker, self._broker.timer
        waiting = int(timer.pending_by_queue.sum())
        released = broker.releaser.counts["released"]
        progress = (int(timer.queue.end), timer.indexed_to, released, waiting)
        if progress == self._progress:
            return
        self._progress = progress
        check = timer.check(broker.releaser.earliest_in_hand_ms())
        log.info(
            "timer: %d wait, %d of them not indexed, %d staged; %d released since the start; all before %d is out",
            waiting,
            timer.queue.end - timer.indexed_to,
            timer.armed.count + broker.releaser.in_hand(),
            released,
            check.last_read_ms,
        )

    def close(self) -> None:
        """A clean stop: the counts to disk. Raises OSError."""
        job = self.metrics.save_job()
        if job is not None:
            job()
