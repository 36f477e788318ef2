"""The number of pending messages per topic, stored for Apache in config/timermetrics (RocketMQ: TimerMetricsTable).

The timer's counts are recounted at every start and once a day (`delay.recount`). The file keeps the version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wheelmq.delay import intake
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, DataVersion, TimingCount
from wheelmq.store import config_file

log = logging.getLogger(__name__)


class TimerMetricsTable:
    """The table, which is updated from the timer when it is read."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._disk = timer.store.disk
        self._path = timer.store.paths.config_file("timermetrics")
        self._changes: dict[str, int] = {}
        """Messages parked or settled since the start, by topic, at the last read."""
        self._table = self._load()
        self._saved: int | None = None
        """The version in the file; None before the first save."""

    def _load(self) -> bodies.TimerMetrics:
        waiting = self._waiting()
        try:
            found = config_file.load(self._disk, self._path, bodies.TimerMetrics) or bodies.TimerMetrics()
        except BodyError as error:
            log.warning("timer: the saved counts are unreadable, and the broker counts again: %s", error)
            found = bodies.TimerMetrics()
        now_ms = self._timer.store.clock.now_ms()
        since = {topic: one.time_stamp for topic, one in found.timing_count.items()}
        counts = {topic: TimingCount(count=n, time_stamp=since.get(topic, now_ms)) for topic, n in waiting.items()}
        told = {topic: one.count for topic, one in found.timing_count.items() if one.count}
        if told != waiting:
            log.info(
                "timer: %s has %d pending messages, but there are %d",
                self._path,
                sum(told.values()),
                sum(waiting.values()),
            )
        return bodies.TimerMetrics(data_version=found.data_version, timing_count=counts)

    def _waiting(self) -> dict[str, int]:
        return self._timer.store.queues.by_topic(self._timer.pending.counts.by_queue)

    def recounted(self, wrong: npt.NDArray[np.int64]) -> None:
        """Note corrections of the timer's counts, by the row of the real queue."""
        table, now_ms, waiting = self.table(), self._timer.store.clock.now_ms(), self._waiting()
        by_topic = {topic: off for topic, off in self._timer.store.queues.by_topic(wrong).items() if off}
        for topic, off in by_topic.items():
            table.timing_count[topic] = TimingCount(count=waiting.get(topic, 0), time_stamp=now_ms)
            log.error("timer: corrected the count of topic %s, which was wrong by %d", topic, -off)
        if by_topic:
            version = table.data_version
            table.data_version = DataVersion(
                state_version=version.state_version, timestamp=now_ms, counter=version.counter + 1
            )

    def table(self) -> bodies.TimerMetrics:
        """Return the table as it is now. A topic without pending messages keeps a zero until the next start."""
        timer, now_ms = self._timer, self._timer.store.clock.now_ms()
        came_and_went = timer.pending.counts.table[:, intake.PARKED] + timer.pending.counts.table[:, intake.SETTLED]
        changes = timer.store.queues.by_topic(came_and_went)
        waiting = self._waiting()
        counts = self._table.timing_count
        for topic, total in changes.items():
            if total != self._changes.get(topic, 0):
                counts[topic] = TimingCount(count=waiting.get(topic, 0), time_stamp=now_ms)
        fresh = sum(changes.values()) - sum(self._changes.values())
        if fresh:
            version = self._table.data_version
            counter = version.counter + fresh
            self._table.data_version = DataVersion(
                state_version=version.state_version, timestamp=now_ms, counter=counter
            )
            self._changes = changes
        return self._table

    def close(self) -> None:
        job = self.save_job()
        if job is not None:
            job()

    def save_job(self) -> Callable[[], None] | None:
        """Return a job that writes the table, off the loop too; None without changes. Failed writes are repeated."""
        table = self.table()
        version = table.data_version.counter
        if version == self._saved:
            return None
        raw = bodies.write(table)
        self._saved = version

        def job() -> None:
            try:
                self._disk.replace(self._path, raw, keep_previous=True)
            except BaseException:
                self._saved = None
                raise

        return job
