"""An worker whose jobs run when the test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from wheelmq.system.workers import Job


class HeldWorker:
    """Keeps jobs until they are let go. A job has two halves, as off a real loop: the work, and the telling."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._worked: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._failures: deque[BaseException] = deque()

    def __len__(self) -> int:
        """Jobs handed in whose end was not told."""
        return len(self._jobs) + len(self._worked)

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._jobs.append((work, done))

    def fail_next(self, error: BaseException) -> None:
        """The next job that would work raises `error` in place of working."""
        self._failures.append(error)

    def work(self, count: int | None = None) -> int:
        """Do the work of the first `count` jobs, or of all; tell nobody yet. How many there were."""
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

    def tell(self, count: int | None = None) -> int:
        """Tell the loop of the first `count` jobs that worked, or of all. How many there were."""
        told = 0
        while self._worked and (count is None or told < count):
            done, result = self._worked.popleft()
            done(result)
            told += 1
        return told

    def run(self, count: int | None = None) -> int:
        """Work and tell."""
        self.work(count)
        return self.tell(count)

    def forget(self) -> None:
        """The process is gone: what did not work never will, and nobody is told."""
        self._jobs.clear()
        self._worked.clear()

    def close(self) -> None:
        """Finish what was handed in, and what that hands in."""
        while len(self):
            self.run()
