"""The answers that wait for replicas (RocketMQ: GroupTransferService)."""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.broker.flush import WaitingAnswers
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.settings import ReplicationSettings
from wheelmq.formats.units import LogPosition
from wheelmq.system.clock import Clock


class ReplicaAcks:
    """Ends waits once enough replicas have the log. Times are monotonic milliseconds."""

    def __init__(self, replicas: Replicas, settings: ReplicationSettings, clock: Clock) -> None:
        self._replicas = replicas
        self._settings = settings
        self._clock = clock
        self._answers = WaitingAnswers()

    def wait(self, position: LogPosition, end: Callable[[bool], None]) -> None:
        """Call `end` with True once enough replicas have the log up to `position`, or with False after the timeout."""
        if position <= self._replicas.confirmed:
            end(True)
        else:
            self._answers.add(position, self._clock.monotonic_ms(), end)

    def poll(self, now_ms: int) -> None:
        """End the waits that are over."""
        if self._answers:
            self._answers.free(self._replicas.confirmed)
            self._answers.end_overdue(now_ms - self._settings.slave_timeout_ms)

    def next_ms(self) -> int | None:
        """Return when the next wait is over; None without a wait."""
        oldest_ms = self._answers.oldest_ms()
        return None if oldest_ms is None else oldest_ms + self._settings.slave_timeout_ms

    def end_all(self) -> None:
        """End all waits without success, because the broker is a master no more."""
        self._answers.end_overdue(None)
