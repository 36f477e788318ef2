"""Calls the functions of the user: a coroutine function on the event loop, a plain function in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import ParamSpec, TypeVar, cast

from wheelmq.system.backports import result_of

P = ParamSpec("P")
R = TypeVar("R")


class Callbacks:
    """Runs callbacks. Creates its threads, at most `threads`, when the first plain function is called."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._busy = 0
        self._freed = asyncio.Event()

    async def room(self, function: Callable[..., object]) -> None:
        """Wait for a free thread, for a plain function. An abandoned callback occupies its thread until it returns."""
        while is_plain(function) and self._busy >= self._threads:
            self._freed.clear()
            await self._freed.wait()

    async def call(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` and return its result, awaited if it is awaitable. Raises the exception of `function`.

        Raises RuntimeError for SystemExit, which would end the event loop but not the program.
        """
        try:
            return await self._called(function, *args, **kwargs)
        except SystemExit as error:
            raise RuntimeError(f"the callback called sys.exit({error.code!r})") from error

    async def _called(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        if not is_plain(function):
            return await result_of(cast("Awaitable[R]", function(*args, **kwargs)))
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, "wheelmq-callback")
        bound = partial(copy_context().run, partial(function, *args, **kwargs))
        loop = asyncio.get_running_loop()
        running = self._executor.submit(bound)
        self._busy += 1
        running.add_done_callback(lambda _: self._returned(loop))
        found = await asyncio.wrap_future(running)
        return await result_of(found) if isawaitable(found) else found

    def _returned(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report from the thread that it is free again. The loop may be closed by then."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._free)

    def _free(self) -> None:
        self._busy -= 1
        self._freed.set()

    def close(self) -> None:
        """Accept no more calls. Running calls are not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def is_plain(function: Callable[..., object]) -> bool:
    return not (iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)))  # noqa: B004
