"""The tasks of a broker: one list, in the order in which each tick runs them.

A task runs in every tick, at intervals, or rests after each run. `steps` isolates it from the others' exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wheelmq.broker.steps import Steps
from wheelmq.formats.units import Millis
from wheelmq.system.clock import Clock


class TickTime(NamedTuple):
    wall_ms: Millis
    monotonic_ms: int
    requests_s: float = 0.0
    """Seconds that requests took since the last tick."""
    by_event: bool = False
    """Whether a worker's result or another event caused the tick. Then no task rests."""

    def after_wall_ms(self, wall_ms: int | None) -> int | None:
        """Return the monotonic time of `wall_ms`, if nobody sets the clock; None for None."""
        return None if wall_ms is None else wall_ms - self.wall_ms + self.monotonic_ms


NextMs = Callable[[TickTime], int | None]
"""Returns the monotonic time at which a task needs a tick; None if it needs none."""


class Interval:
    """When a task that does not run in every tick may run next, and when it needs a tick. Both are monotonic times."""

    __slots__ = ("due_ms", "interval_ms", "next_ms", "rests")

    def __init__(self, interval_ms: int, now_ms: int, *, rests: bool = False) -> None:
        """Be due one interval after `now_ms`; with `rests`, at `now_ms`."""
        self.interval_ms = interval_ms
        self.rests = rests
        """Whether ticks without an event skip the task before `due_ms`. Then it needs a tick at `due_ms`."""
        self.due_ms = now_ms if rests else now_ms + interval_ms
        self.next_ms: int | None = self.due_ms


@dataclass(frozen=True, slots=True)
class TickTask:
    """Work that ticks do, that a clean stop does, or both."""

    name: str
    run: Callable[[TickTime], int | None] | None = None
    """Returns the number of records that it appended or dispatched; None counts as 0."""
    next_ms: NextMs | None = None
    close: Callable[[], object] | None = None
    """Ends the task at a clean stop. No job of a worker may run any more."""
    closes_after_failure: bool = False
    """Whether `close` runs even if the broker has failed."""
    interval: Interval | None = None
    """When the task may run; None if it runs in every tick."""


class TaskList:
    """Runs the tasks. A tick follows nearly each request, so a task that is not due costs one comparison."""

    def __init__(self, tasks: Sequence[TickTask], steps: Steps) -> None:
        self._tasks: list[TickTask] = []
        self._runs: list[tuple[str, Callable[[TickTime], int | None], NextMs | None, Interval | None]] = []
        self._next_ms: list[NextMs] = []
        """The functions of the tasks that run in every tick."""
        self._intervals: list[Interval] = []
        self._steps = steps
        for task in tasks:
            self.add(task)

    def add(self, task: TickTask) -> None:
        self._tasks.append(task)
        if task.run is not None:
            self._runs.append((task.name, task.run, task.next_ms, task.interval))
        if task.run is not None and task.interval is not None:
            self._intervals.append(task.interval)
        elif task.next_ms is not None:
            self._next_ms.append(task.next_ms)

    def run(self, time: TickTime) -> int:
        """Run the due tasks. Returns the number of records that they appended or dispatched."""
        count, now_ms = 0, time.monotonic_ms
        for name, run, next_ms, interval in self._runs:
            if interval is not None:
                if interval.due_ms > now_ms and not (interval.rests and time.by_event):
                    interval.next_ms = interval.due_ms
                    continue
                interval.due_ms = now_ms + interval.interval_ms
                interval.next_ms = interval.due_ms
            try:
                count += run(time) or 0
                if interval is not None and interval.rests:
                    asked_ms = None if next_ms is None else next_ms(time)
                    interval.next_ms = None if asked_ms is None else max(asked_ms, interval.due_ms)
            except Exception as error:
                self._steps.note_failure(name, error)
        return count

    def next_ms(self, time: TickTime) -> int | None:
        times_ms = [time_ms for interval in self._intervals if (time_ms := interval.next_ms) is not None]
        times_ms += [time_ms for next_ms in self._next_ms if (time_ms := next_ms(time)) is not None]
        return min(times_ms, default=None)

    def close(self, has_failed: Callable[[], bool]) -> None:
        """Close the tasks in their order. `has_failed` returns whether the broker has failed so far. Raises OSError."""
        for task in self._tasks:
            if task.close is not None and (task.closes_after_failure or not has_failed()):
                task.close()


def every(name: str, interval_ms: int, function: Callable[[], object], clock: Clock) -> TickTask:
    def run(time: TickTime) -> None:
        function()

    return TickTask(name, run, interval=Interval(interval_ms, clock.monotonic_ms()))


def resting(task: TickTask, rest_ms: int, clock: Clock) -> TickTask:
    """Return `task` with at least `rest_ms` between two runs, unless an event causes the tick."""
    return replace(task, interval=Interval(rest_ms, clock.monotonic_ms(), rests=True))
