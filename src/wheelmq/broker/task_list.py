"""The tasks of a broker: one list, in the order in which each tick runs them.

A task says when it next needs a tick, and runs in every tick. It also says how it ends at a clean stop. A task that
raises an exception does not stop the others: see `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheelmq.broker.steps import Steps
from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock


class TickTime(NamedTuple):
    """The moment of a tick."""

    wall_ms: Millis
    monotonic_ms: int
    requests_s: float = 0.0
    """Seconds that requests took since the last tick."""

    def after_wall_ms(self, wall_ms: int | None) -> int | None:
        """Return the monotonic time of `wall_ms`, if nobody sets the clock; None for None."""
        return None if wall_ms is None else wall_ms - self.wall_ms + self.monotonic_ms


NextMs = Callable[[TickTime], int | None]
"""Returns the monotonic time at which a task needs a tick; None if it needs none."""


@dataclass(frozen=True, slots=True)
class TickTask:
    """Work that ticks do, that a clean stop does, or both."""

    name: str
    """Name in the log and in the metrics of failed steps."""
    run: Callable[[TickTime], int | None] | None = None
    """Returns the number of records that it appended or dispatched; None counts as 0."""
    next_ms: NextMs | None = None
    close: Callable[[], object] | None = None
    """Ends the task at a clean stop. No job of a worker may run any more."""
    closes_after_failure: bool = False
    """Whether `close` runs even if the broker has failed."""


class TaskList:
    """Runs the tasks, and computes when they need the next tick."""

    def __init__(self, tasks: Sequence[TickTask], steps: Steps) -> None:
        self._tasks = list(tasks)
        self._steps = steps

    def add(self, task: TickTask) -> None:
        """Run `task` after all others."""
        self._tasks.append(task)

    def run(self, time: TickTime) -> int:
        """Run all tasks once. Returns the number of records that they appended or dispatched."""
        count = 0
        for task in self._tasks:
            if task.run is not None:
                found: int | None = self._steps.run(task.name, task.run, time)
                count += found or 0
        return count

    def next_ms(self, time: TickTime) -> int | None:
        """Return the monotonic time at which the first task needs a tick; None if none needs one."""
        times_ms = [task.next_ms(time) for task in self._tasks if task.next_ms is not None]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def close(self, has_failed: Callable[[], bool]) -> None:
        """Close the tasks in their order. `has_failed` returns whether the broker has failed so far. Raises OSError."""
        for task in self._tasks:
            if task.close is not None and (task.closes_after_failure or not has_failed()):
                task.close()


class _Interval:
    """Runs a function at an interval, for the first time one interval after its creation."""

    __slots__ = ("_due_ms", "_function", "_interval_ms")

    def __init__(self, interval_ms: int, function: Callable[[], object], now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._function = function
        self._due_ms = now_ms + interval_ms

    def run(self, time: TickTime) -> None:
        if self._due_ms <= time.monotonic_ms:
            self._due_ms = time.monotonic_ms + self._interval_ms
            self._function()

    def next_ms(self, time: TickTime) -> int:
        return self._due_ms


def every(name: str, interval_ms: int, function: Callable[[], object], clock: Clock) -> TickTask:
    """Return the task that calls `function` every `interval_ms`."""
    interval = _Interval(interval_ms, function, clock.monotonic_ms())
    return TickTask(name, interval.run, interval.next_ms)
