"""Calling what the user gave: a coroutine function in the loop, a plain function in a thread of the client's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class Callbacks:
    """Threads for plain functions, made when the first one is called; as many as callbacks may run at once."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._busy = 0
        self._freed = asyncio.Event()

    async def room(self, function: Callable[..., object]) -> None:
        """Wait until a thread is free for a plain function: one that was given up has its own until it returns."""
        while is_plain(function) and self._busy >= self._threads:
            self._freed.clear()
            await self._freed.wait()

    async def call(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `function` returns, awaited if that is to be. Raises what it raises; RuntimeError for SystemExit, which
        would end the loop and no program."""
        try:
            return await self._called(function, *args, **kwargs)
        except SystemExit as error:
            raise RuntimeError(f"the callback called sys.exit({error.code!r})") from error

    async def _called(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        if not is_plain(function):
            return await cast("Awaitable[R]", function(*args, **kwargs))
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, "wheelmq-callback")
        bound = partial(copy_context().run, partial(function, *args, **kwargs))
        loop = asyncio.get_running_loop()
        running = self._executor.submit(bound)
        self._busy += 1
        running.add_done_callback(lambda _: self._returned(loop))
        found = await asyncio.wrap_future(running)
        return await found if isawaitable(found) else found

    def _returned(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread is free again, which it says itself; the loop may be closed by then."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._free)

    def _free(self) -> None:
        self._busy -= 1
        self._freed.set()

    def close(self) -> None:
        """Take no more calls; those that run are not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def is_plain(function: Callable[..., object]) -> bool:
    """Whether it runs in a thread, being no coroutine function."""
    return not (iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)))  # noqa: B004
