"""An event loop on a manual clock, whose connections are those of a simulated network.

The real shells of a broker run on it: the registration, the watch for a later master, and the copy of a master. Its
callbacks run in the order of their calls and times, so a run depends on nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from wheelmq.testing.clock import ManualClock
from wheelmq.testing.stops import Died

ROUNDING_S: Final = 1e-6
"""Times are sums of fractions. A callback that is due within this time is due now."""
CALLBACKS_MAX: Final = 100_000
"""The loop fails if more callbacks than this run at one moment."""
GRACE_S: Final = 20.0
"""Time until a failed task must be awaited. `gather` awaits its tasks once all have ended."""


class Dialer(Protocol):
    """The network, as one machine sees it."""

    def dial(self, protocol: asyncio.BaseProtocol, address: str) -> asyncio.Future[asyncio.Transport]:
        """Connect to `address`. The future gets the transport once the connection is open, or ConnectionError."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one process. `run` calls the ready callbacks. None runs between two calls."""

    def __init__(self, clock: ManualClock, network: Dialer, has_died: Callable[[], bool]) -> None:
        """Create a loop. After a callback that `has_died` reports, no other callback runs."""
        super().__init__()
        self._clock = clock
        self._network = network
        self._has_died = has_died
        self._queue: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._failed_s: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
        """The time at which a task was found that has failed and that nothing has awaited."""
        self._errors: list[BaseException] = []
        """Exceptions of callbacks, and of tasks that nothing awaits."""

    # Driven by the simulation --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop, as code that creates tasks needs it."""
        asyncio.events._set_running_loop(self)
        try:
            yield
        finally:
            asyncio.events._set_running_loop(None)

    def run(self) -> bool:
        """Call the callbacks that are ready, and those that they add. Returns whether there was one."""
        self._take_due()
        if not self._queue:
            return False
        with self.running():
            for _ in range(CALLBACKS_MAX):
                if not self._queue or self._has_died():
                    return True
                handle = self._queue.popleft()
                if not handle.cancelled():
                    handle._run()
        raise AssertionError("a loop always has more callbacks")

    def _take_due(self) -> None:
        now_s = self.time() + ROUNDING_S
        while self._timers and (self._timers[0][0] <= now_s or self._timers[0][2].cancelled()):
            self._queue.append(heapq.heappop(self._timers)[2])

    def next_ms(self) -> int | None:
        """Return the milliseconds until the next callback; None without one."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._queue:
            return 0
        if not self._timers:
            return None
        return max(0, math.ceil((self._timers[0][0] - self.time() - ROUNDING_S) * 1000))

    def check(self) -> None:
        """Check that code has handled all exceptions of callbacks and tasks. Raises AssertionError for the first."""
        now_s = self.time()
        for task in self._tasks:
            if task.done() and task._log_traceback and now_s - self._failed_s.setdefault(task, now_s) >= GRACE_S:
                self._note(task.exception())
        if self._errors:
            error = self._errors[0]
            raise AssertionError(f"a callback or task failed: {type(error).__name__}: {error}") from error

    def _note(self, error: object) -> None:
        """Note an exception. The simulation itself raises Died."""
        if isinstance(error, BaseException) and not isinstance(error, Died):
            self._errors.append(error)

    def end(self) -> None:
        """End all tasks, because the process is gone. Their last steps have no effect."""
        for _ in range(CALLBACKS_MAX):
            self._tasks = [task for task in self._tasks if not task.done()]
            if not self._tasks:
                break
            for task in self._tasks:
                task.cancel()
            self._queue.extend(handle for _, _, handle in sorted(self._timers, key=lambda one: one[:2]))
            self._timers.clear()
            with self.running():
                for handle in list(self._queue):
                    self._queue.popleft()
                    if not handle.cancelled():
                        handle._run()
        self._queue.clear()
        self._timers.clear()
        self.close()

    # Called by asyncio ---------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._queue.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect by the simulated network, without TLS. Raises ConnectionError."""
        protocol = protocol_factory()
        transport = await self._network.dial(protocol, f"{host}:{port}")
        return transport, protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._note(context.get("exception"))
