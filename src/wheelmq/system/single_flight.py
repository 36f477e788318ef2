"""Single flight: a component has at most one job on its worker at a time (Go: singleflight)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from wheelmq.system.clock import Clock
from wheelmq.system.workers import Worker

Result = TypeVar("Result")


def ignore(result: object) -> None:
    """Do nothing with the result or the exception of a job."""


class SingleFlight:
    """Runs jobs on a worker, one at a time until the loop has its result. Its methods are called on the loop."""

    def __init__(self, worker: Worker, clock: Clock | None = None, *, retry_s: float = 0.0) -> None:
        """After a failed job, `next_s` is `retry_s` later by the monotonic time of `clock`."""
        assert clock is not None or not retry_s, "a delay needs a clock"
        self._worker = worker
        self._clock = clock
        self._retry_s = retry_s
        self._is_running = False
        self._next_s = 0.0

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def next_s(self) -> float | None:
        """Monotonic time from which the next job may begin: 0 if at once, None while a job runs."""
        return None if self._is_running else self._next_s

    def submit(
        self,
        job: Callable[[], Result],
        *,
        done: Callable[[Result], None] = ignore,
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `job` on the worker. Then run `done` with its result, or `failed` with its exception, on the loop.

        Both may submit the next job. The caller submits no job while one runs, and should wait for `next_s`.
        """
        assert not self._is_running, "a job runs already"
        self._is_running = True
        self._worker.submit(job, partial(self._end, done, failed))

    def rest(self) -> None:
        """Begin the next job `retry_s` later, because the last one has done only a part of its work."""
        assert self._clock is not None, "a delay needs a clock"
        self._next_s = self._clock.monotonic() + self._retry_s

    def _end(
        self, done: Callable[[Result], None], failed: Callable[[Exception], None], result: Result | Exception
    ) -> None:
        self._is_running, self._next_s = False, 0.0
        if isinstance(result, Exception):
            if self._clock is not None:
                self._next_s = self._clock.monotonic() + self._retry_s
            failed(result)
        else:
            done(result)
