"""The times in which the timer, but not levels and blocks, takes or releases no messages.

timerStopEnqueue stops the intake from the timer queue, timerStopDequeue and disappearTimeAfterStart the releases.
"""

from __future__ import annotations

import logging

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.origin import timer_origin

log = logging.getLogger(__name__)


class TimerStops:
    """Decides when the timer begins to release. Times are monotonic milliseconds."""

    def __init__(self, timer: Timer, settings: BrokerSettings) -> None:
        self._timer = timer
        self._settings = settings
        self._appears_ms = timer.store.clock.monotonic_ms() + max(0, settings.timer.disappear_ms_after_start)
        """End of the time after the start in which the timer releases nothing."""
        self._dequeues_from_ms: int | None = None
        """When the held messages may leave. None if there are none, or while timerStopDequeue is on."""
        if settings.timer.holds_dequeue and not settings.timer.stop_dequeue:
            self._dequeues_from_ms = self._appears_ms
        self._warn()

    def take_settings(self) -> None:
        """Apply the switches after a change at run time. Messages that were already taken for release still leave."""
        self._timer.take_stop_enqueue()
        if self._settings.timer.stop_dequeue:
            self._dequeues_from_ms = None
            self._timer.pending.armed.hold(timer_origin(0))
        else:
            self._dequeues_from_ms = self._appears_ms
        self._warn()

    def next_ms(self) -> int | None:
        return self._dequeues_from_ms

    def poll(self, monotonic_ms: int) -> None:
        if self._dequeues_from_ms is not None and self._dequeues_from_ms <= monotonic_ms:
            self._dequeues_from_ms = None
            self._timer.pending.armed.release_held()

    def _warn(self) -> None:
        for name, stops in (
            ("timerStopEnqueue", self._settings.timer.stop_enqueue),
            ("timerStopDequeue", self._settings.timer.stop_dequeue),
        ):
            if stops:
                log.warning("%s is on: messages in the timer queue stay there until it is off", name)
