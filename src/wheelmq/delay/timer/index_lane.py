"""The index lane: the broker indexes the timer queue itself, in bounded steps, while the pipeline is away.

A job off the loop reads and decides messages on disk with the pipeline's code (`staging`). The tick applies them as a
turn of the broker's own epoch.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from wheelmq.delay.timer.live_view import LiveView
from wheelmq.delay.timer.own_turn import apply_index, index_plan, index_rows
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

ROWS_MAX: Final = 20_000
"""Messages per step."""


class IndexLane:
    """Indexes the timer queue in steps. One job at a time."""

    def __init__(self, timer: Timer, worker: Worker) -> None:
        self._timer = timer
        self._worker = worker
        self._plan: TurnPlan | None = None
        self._result: TurnRows | BaseException | None = None

    @property
    def is_busy(self) -> bool:
        return self._plan is not None

    @property
    def has_result(self) -> bool:
        return self._result is not None

    def has_work(self, now_ms: Millis) -> bool:
        timer = self._timer
        return timer.queue.end > timer.indexed_to and not timer.settings.stop_enqueue and timer.wheel_has_room(now_ms)

    def start(self, now_ms: Millis, durable: LogPosition) -> bool:
        """Start a job over messages below `durable`; False without any. The broker must hold the lease.

        Raises OSError when a file cannot be mapped.
        """
        timer = self._timer
        assert timer.turns.plan is None and self._plan is None
        assert timer.log.synced == timer.log.end
        timer.skip_blanks()
        first, durable_end = timer.indexed_to, timer.durable_queue_end(durable)
        if first == durable_end:
            return False
        count = len(timer.queue.read(QueueOffset(first), min(ROWS_MAX, durable_end - first)))  # units of one file
        plan = index_plan(timer, first, first + count, timer.wheel.floor_slot(now_ms))
        view, settings = LiveView.of_queue(timer, plan.index_from, plan.index_to), timer.settings

        def job() -> TurnRows:
            return index_rows(view, plan, settings.roll_window_slots * settings.precision_ms, settings.precision_ms)

        self._plan = plan
        self._worker.submit(job, self._done)
        return True

    def _done(self, result: Any) -> None:
        self._result = result

    def take(self) -> int:
        """Apply the result of the job that ended, as a turn of the broker. Returns the number of indexed messages.

        Drops the result if a pipeline has opened a lease meanwhile. Raises the error of the job, and OSError with
        nothing changed when the units do not fit on the disk.
        """
        plan, result, timer = self._plan, self._result, self._timer
        assert plan is not None and result is not None
        self._plan = self._result = None
        if isinstance(result, BaseException):
            raise result
        if timer.turns.epoch != plan.epoch or timer.turns.plan is not None or timer.indexed_to != plan.index_from:
            return 0
        timer.log.make_room(len(result))
        # S may have moved since the job began, and turns of a lease that has ended may have been committed.
        apply_index(timer, index_plan(timer, plan.index_from, plan.index_to, plan.write_ms), result, by="index_lane")
        return len(result)
