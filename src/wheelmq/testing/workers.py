"""A worker whose jobs run when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from wheelmq.system.workers import Job


class HeldWorker:
    """Keeps jobs until the test runs them. A job has two halves, as with a thread: the work and the notification."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._worked: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._failures: deque[BaseException] = deque()

    def __len__(self) -> int:
        """Return the number of jobs of which the loop was not notified yet."""
        return len(self._jobs) + len(self._worked)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._jobs.append((work, done))

    def fail_next(self, error: BaseException) -> None:
        self._failures.append(error)

    def work(self, count: int | None = None) -> int:
        """Do the work of the first `count` jobs, or of all, without a notification. Returns the number of jobs."""
        worked = 0
        while self._jobs and (count is None or worked < count):
            job, done = self._jobs.popleft()
            result: Any
            try:
                if self._failures:
                    raise self._failures.popleft()
                result = job()
            except Exception as error:
                result = error
            self._worked.append((done, result))
            worked += 1
        return worked

    def report(self, count: int | None = None) -> int:
        """Notify the loop of the first `count` finished jobs, or of all. Returns the number of jobs."""
        told = 0
        while self._worked and (count is None or told < count):
            done, result = self._worked.popleft()
            done(result)
            told += 1
        return told

    def run(self, count: int | None = None) -> int:
        self.work(count)
        return self.report(count)

    def forget(self) -> None:
        """Drop all jobs and notifications, because the process has died."""
        self._jobs.clear()
        self._worked.clear()

    def close(self) -> None:
        while len(self):
            self.run()
