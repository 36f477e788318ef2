"""Worker threads for work that must not block the event loop, such as an fsync or a large scan.

A worker runs `work`, in the order of submission. Later, the loop runs `done` with the result or the exception.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker(Protocol):
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` on the worker, then `done(result or exception)` on the loop."""
        ...

    def close(self) -> None:
        """Finish the submitted jobs. Accept no more."""
        ...


class InlineWorker:
    """Runs each job at once in the calling thread, for tools and tests that have no loop."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        done(result)

    def close(self) -> None:
        """Do nothing: no job is ever left."""


class ThreadWorker:
    """One daemon thread. `on_loop` runs a callback on the loop (asyncio: call_soon_threadsafe)."""

    def __init__(self, name: str, on_loop: Callable[[Callable[[], None]], object]) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._on_loop = on_loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._jobs.put((work, done))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except Exception as error:
                result = error
            self._on_loop(lambda done=done, result=result: done(result))  # type: ignore[misc]


@dataclass(frozen=True)
class Workers:
    """The workers of a broker, one per kind of work: jobs with a waiter do not queue after jobs without one."""

    flushing: Worker
    """Flushes of the log, and marks. Senders wait for them."""
    blocks: Worker
    """Flushes of the blocks."""
    background: Worker
    """Short jobs without a waiter: write, create ahead and remove files, and build the message index."""
    reading: Worker
    """Reads that may come from a cold disk: those of the pipeline's tasks, and searches."""
    tables: Worker
    """Writes of the JSON tables of the config folder. Answers to administration and to sends of new topics wait."""
    timers: Worker
    """Reads of the timer wheel and the timer queue while the pipeline is away."""
    populating: Worker
    """Populates the pages before they are written, and does nothing that takes longer."""

    @classmethod
    def of(cls, make: Callable[[str], Worker]) -> Workers:
        return cls(**{field.name: make(field.name) for field in fields(cls)})

    def __iter__(self) -> Iterator[Worker]:
        return (getattr(self, field.name) for field in fields(self))

    def close(self) -> None:
        """Finish all jobs that were submitted before. A job that a tick submits meanwhile may never run."""
        for one in self:
            one.close()
