"""Calling what the user gave: a coroutine function in the loop, a plain function in a thread of the client's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
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

    async def call(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `function` returns, awaited if that is to be. Raises what it raises."""
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await cast("Awaitable[R]", function(*args, **kwargs))
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, "wheelmq-callback")
        bound = partial(copy_context().run, partial(function, *args, **kwargs))
        found = await asyncio.get_running_loop().run_in_executor(self._executor, bound)
        return await found if isawaitable(found) else found

    def close(self) -> None:
        """Take no more calls; those that run are not waited for."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
