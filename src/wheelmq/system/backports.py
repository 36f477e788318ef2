"""Names of Python 3.11 that the client uses, also for Python 3.10. Import them from here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")

if sys.version_info >= (3, 11):
    from asyncio import timeout
    from enum import StrEnum

    def is_cancelled(task: asyncio.Task[object] | None) -> bool:
        """Return whether someone has cancelled `task`, which handles a CancelledError now."""
        return task is None or task.cancelling() > 0

    async def result_of(work: Awaitable[R]) -> R:
        """Return the result of `work`, which may raise CancelledError by itself."""
        return await work

else:
    from enum import Enum
    from types import TracebackType

    class StrEnum(str, Enum):
        """An enumeration of texts."""

        __str__ = str.__str__

        def __format__(self, format_spec: str) -> str:
            return str.__format__(self, format_spec)

    class timeout:
        """Raises TimeoutError in its block after some seconds; None for no limit."""

        def __init__(self, seconds: float | None) -> None:
            self._seconds = seconds
            self._is_over = False
            self._timer: asyncio.TimerHandle | None = None

        async def __aenter__(self) -> timeout:
            task = asyncio.current_task()
            if self._seconds is not None and task is not None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(max(0.0, self._seconds), self._end, task)
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            if self._timer is not None:
                self._timer.cancel()
            if self._is_over and kind is asyncio.CancelledError:
                raise TimeoutError from error

        def _end(self, task: asyncio.Task[object]) -> None:
            self._is_over = True
            task.cancel()

    def is_cancelled(task: asyncio.Task[object] | None) -> bool:
        """Return True: this Python does not count cancellations, so each CancelledError is taken for one."""
        return True

    async def result_of(work: Awaitable[R]) -> R:
        """Return the result of `work`. Raises RuntimeError if it raises CancelledError by itself."""
        running = asyncio.ensure_future(work)
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            raise
        if running.cancelled():
            raise RuntimeError("the callback raised CancelledError")
        return running.result()


__all__ = ["StrEnum", "is_cancelled", "result_of", "timeout"]
