"""Additional work for the timer, in ticks and in periodic tasks.

It saves and checks the timer's counts, logs its progress, and prefetches records that are released soon. It populates
the next pages of the timer log and creates its next file. It also decides when the timer begins to release: not while
timerStopDequeue is on, and not for disappearTimeAfterStart from the start. Levels and blocks do not wait for this.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.count_audit import CountAudit
from wheelmq.delay.prefetch import BlockPrefetcher, Prefetcher
from wheelmq.delay.timer.metrics import TimerMetricsTable
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.units import Millis
from wheelmq.store.preallocator import STEP_BYTES, FilePreallocator, PagePreallocator

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

PAGES_AHEAD_BYTES: Final = 4 << 20
"""Bytes of pages that are written to ahead of the timer log's end: the units of one or a few turns."""


class TimerTasks:
    """Runs with the broker's periodic tasks. Times are monotonic milliseconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self.metrics = TimerMetricsTable(broker.timer)
        self._appears_ms = broker.clock.monotonic_ms() + max(0, settings.disappear_time_after_start)
        """End of the time after the start in which the timer releases nothing."""
        self._dequeues_from_ms: int | None = None
        """When the held messages may leave. None if there are none, or while timerStopDequeue is on."""
        if settings.holds_dequeue and not settings.timer_stop_dequeue:
            self._dequeues_from_ms = self._appears_ms
        self.check = CountAudit(broker, self.metrics)
        self._warm = Prefetcher(broker.timer, broker.workers.reading) if settings.timer_warm_enable else None
        self._warm_blocks = BlockPrefetcher(broker.block_scheduler, broker.workers.reading)
        self._files = self._open_files()
        self._pages = PagePreallocator(
            broker.timer.log.files, broker.workers.populating, broker.clock, PAGES_AHEAD_BYTES // 2
        )
        self._progress: tuple[int, ...] = ()
        if settings.timer_flush_interval_ms > 0:
            broker.periodic_tasks.every(settings.timer_flush_interval_ms, self._save_metrics)
        if settings.timer_progress_log_interval_ms > 0:
            broker.periodic_tasks.every(settings.timer_progress_log_interval_ms, self._log_progress)
        self._warn_of_stops()

    def _warn_of_stops(self) -> None:
        settings = self._broker.settings
        for name, stops in (
            ("timerStopEnqueue", settings.timer_stop_enqueue),
            ("timerStopDequeue", settings.timer_stop_dequeue),
        ):
            if stops:
                log.warning("%s is on: messages in the timer queue stay there until it is off", name)

    def take_stops(self) -> None:
        """Apply timerStopEnqueue and timerStopDequeue after a change at run time.

        Messages that were already taken for release still leave.
        """
        settings, timer = self._broker.settings, self._broker.timer
        timer.stop_enqueue(settings.timer_stop_enqueue)
        if settings.timer_stop_dequeue:
            self._dequeues_from_ms = None
            timer.pending.armed.hold(timer_origin(0))
        else:
            self._dequeues_from_ms = self._appears_ms
        self._warn_of_stops()

    def _open_files(self) -> FilePreallocator:
        """Return the preallocator of timer log files, which acts when three quarters of the last file are filled.

        Most stores never fill the first file.
        """
        files, count = self._broker.timer.log.files, min(1, self._broker.settings.log_files_ahead)
        background, left_bytes = self._broker.workers.background, files.file_bytes // 4
        return FilePreallocator(files, background, count, populate_bytes=STEP_BYTES, left_bytes=left_bytes)

    def next_ms(self) -> int | None:
        """Return when there is work; None when that is not known."""
        return 0 if self.check.has_step else self._dequeues_from_ms

    def poll(self, now_ms: Millis, monotonic_ms: int) -> None:
        """Begin to release if it is time. Prepare the timer log and the records of the next releases.

        This populates the next pages and creates the next file of the timer log. It prefetches the records of blocks,
        and of timers and levels if timer_warm_enable is set.
        """
        end = self._broker.timer.log.end
        self._files.poll(end)
        self._pages.poll(end, PAGES_AHEAD_BYTES, stores=True)
        self._warm_blocks.poll()
        if self._warm is not None:
            self._warm.poll(now_ms)
        if self._dequeues_from_ms is not None and self._dequeues_from_ms <= monotonic_ms:
            self._dequeues_from_ms = None
            self._broker.timer.pending.armed.release_held()

    def _save_metrics(self) -> None:
        run_in_background(self.metrics.save_job(), self._broker.workers.background)

    def _log_progress(self) -> None:
        """Log one line if anything has changed since the last line."""
        broker, timer = self._broker, self._broker.timer
        waiting = int(timer.pending.counts.by_queue.sum())
        released = broker.releaser.counts["released"]
        progress = (int(timer.queue.end), timer.indexed_to, released, waiting)
        if progress == self._progress:
            return
        self._progress = progress
        check = timer.check(broker.releaser.earliest_in_hand_ms())
        log.info(
            "timer: %d pending messages, %d of them not indexed, %d staged; %d released since the start; all "
            "due before %d are settled",
            waiting,
            timer.queue.end - timer.indexed_to,
            timer.pending.armed.count + broker.releaser.in_hand(),
            released,
            check.last_read_ms,
        )

    def close(self) -> None:
        """Write the counts to disk, for a clean stop. Raises OSError."""
        job = self.metrics.save_job()
        if job is not None:
            job()
