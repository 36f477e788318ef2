"""The schedule of a server: the ends of rounds, and ticks.

The first bytes of a round schedule its end. At the end of the round all queued answers are written. Then the tick runs
if it is due. The core names the time of the next tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from wheelmq.net.core import RoundCore
from wheelmq.net.round_robin import RoundRobin
from wheelmq.system.rate_limited_log import RateLimitedLog

FAILED_TICK_MS = 100
SAME_ALARM_S: Final = 0.001
"""An alarm stays if the next tick is due within this time after it: a core computes times to the millisecond."""

T = TypeVar("T")


class TickAlarm:
    """The timer of the next tick. It calls `ring` when the time has come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, wait_ms: int | None) -> None:
        """Schedule the next tick in `wait_ms`, in place of the one that was scheduled."""
        if wait_ms == 0:
            self._ring()
            wait_ms = None
        at = None if wait_ms is None else self._loop.time() + wait_ms / 1000
        if self._timer is not None:
            if at is not None and 0 <= at - self._at < SAME_ALARM_S:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer, self._at = self._loop.call_at(at, self._end), at

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._timer = None
        self._ring()


class RoundSchedule:
    """Ends the rounds of a core, and runs its ticks. `write` writes all queued answers."""

    def __init__(
        self,
        core: RoundCore,
        loop: asyncio.AbstractEventLoop,
        round_robin: RoundRobin,
        write: Callable[[], None],
        after_tick: Callable[[], None] | None,
        log: RateLimitedLog,
    ) -> None:
        """Create a schedule without a round. It calls `after_tick` after each round and tick."""
        self._core = core
        self._loop = loop
        self._round_robin = round_robin
        self._write = write
        self._after_tick = after_tick
        self._log = log
        self._is_closed = False
        """Whether the core is closed, or will be soon. It then ends no round and runs no tick."""
        self.is_round_scheduled = False
        """Whether the end of a round is scheduled."""
        self._tick_asked = False
        """Whether to run a tick even if the core needs none."""
        self._alarm_rang = False
        """Whether the time of the next tick has come."""
        self._alarm = TickAlarm(loop, self._ring)
        self.failed_ticks = 0

    def schedule_round(self) -> None:
        if not self.is_round_scheduled and not self._is_closed:
            self.is_round_scheduled = True
            self._loop.call_soon(self._end_round)

    def schedule_tick(self) -> None:
        self._tick_asked = True
        self.schedule_round()

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop, then tick. Any thread may call this."""

        def run() -> None:
            callback()
            self.schedule_tick()

        self._loop.call_soon_threadsafe(run)

    def close(self) -> None:
        """End no round and run no tick from now on."""
        self._is_closed = True
        self._alarm.cancel()

    def _end_round(self) -> None:
        """End the round. Tick if that is due or requested, or if the end of the round failed."""
        self.is_round_scheduled = False
        if self._is_closed:
            return
        failed = self.failed_ticks
        is_due = self._attempt(self._core.end_round)
        self._write()
        if is_due or self._tick_asked or self._alarm_rang or self.failed_ticks > failed:
            tick = partial(self._core.tick, by_event=self._tick_asked)
            self._tick_asked = self._alarm_rang = False
            self._attempt(tick)
        wait_ms = self._attempt(self._core.next_tick_ms)
        self._write()
        self._round_robin.end_round()
        self._alarm.set(wait_ms if self.failed_ticks == failed else FAILED_TICK_MS)
        if self._after_tick is not None:
            self._after_tick()
        if self._round_robin.waiting:
            self.schedule_round()
            self._round_robin.serve_waiting()

    def _attempt(self, step: Callable[[], T]) -> T | None:
        """Return the result of `step`. Log and count a failure, and return None."""
        try:
            return step()
        except Exception:
            self.failed_ticks += 1
            self._log.exception("tick", "a tick failed; the next one is in %d ms", FAILED_TICK_MS)
            return None

    def _ring(self) -> None:
        self._alarm_rang = True
        self.schedule_round()
