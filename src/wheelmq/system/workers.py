"""Work that must not hold up the loop: fsync, large scans.

`work` runs elsewhere; `done` runs later on the loop, with what `work` returned or the exception it raised. Jobs of
one worker run one after another, in the order in which they were handed in.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker(Protocol):
    """A single worker beside the loop."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` off the loop, then `done(result or exception)` on it."""
        ...

    def close(self) -> None:
        """Finish what was handed in; take no more."""
        ...


class InlineWorker:
    """Runs work at once, in place: for tools and tests that have no loop."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        done(result)

    def close(self) -> None:
        """Nothing is ever left to finish."""


class ThreadWorker:
    """One daemon thread; `on_loop` hands a callback back to the loop (asyncio: call_soon_threadsafe)."""

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
    """The workers of a broker by what they do, so that what somebody waits for is not behind what nobody does."""

    flushing: Worker
    """Flushes of the log, and marks: somebody waits for them."""
    blocks: Worker
    """Flushes of the blocks."""
    background: Worker
    """What nobody waits for, if it does not take too long: files that are written, made ahead or removed, the index."""
    reading: Worker
    """What may have to come from a cold disk: reads of the pipeline's tasks, searches."""
    tables: Worker
    """Writes of the JSON tables of the config folder: answers to administration and to sends of new topics wait."""
    timers: Worker
    """Reads of the timer wheel and the timer queue while the pipeline is away."""
    populating: Worker
    """Pages ahead of what is written, and nothing that takes longer."""

    @classmethod
    def of(cls, make: Callable[[str], Worker]) -> Workers:
        """Each made by its name."""
        return cls(**{field.name: make(field.name) for field in fields(cls)})

    def __iter__(self) -> Iterator[Worker]:
        return (getattr(self, field.name) for field in fields(self))

    def close(self) -> None:
        """Have each finish what was handed in before; what a tick hands in meanwhile may never run."""
        for one in self:
            one.close()
