"""Tasks that run at intervals, in ticks of the broker."""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.system.clock import Clock


class PeriodicTasks:
    """Tasks and their intervals. Times are monotonic milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._every: list[tuple[int, int, Callable[[], object]]] = []
        """Each with the time at which it is due, its interval and its function."""

    def every(self, interval_ms: int, task: Callable[[], object]) -> None:
        """Run `task` in a tick, every `interval_ms`. An interval of 0 turns the task off."""
        if interval_ms > 0:
            self._every.append((self._clock.monotonic_ms() + interval_ms, interval_ms, task))

    def run_due(self, monotonic_ms: int) -> None:
        """Run the due tasks."""
        for i, (due_ms, interval_ms, task) in enumerate(self._every):
            if due_ms <= monotonic_ms:
                self._every[i] = (monotonic_ms + interval_ms, interval_ms, task)
                task()

    def waits_ms(self, monotonic_ms: int) -> list[int]:
        """Return the times until each task is due."""
        return [due_ms - monotonic_ms for due_ms, _, _ in self._every]
