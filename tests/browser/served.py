"""A dashboard of a broker with messages and a history, served from a thread of its own."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from random import Random
from typing import Self

from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.history import HourHistory, Sample
from wheelmq.dashboard.metrics import BrokerMetrics
from wheelmq.dashboard.server import Dashboard
from wheelmq.dashboard.sessions import Operation, Sessions, UserRole
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

LONG_NAME = "a-topic-with-a-very-long-name-" + "x" * 60
OPERATOR = AccessKey("olga", "the secret of olga")
NOW_MS = 1_800_000_000_000
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 60_000)
USUAL_SIZES = {
    "queue_file_bytes": 20 * 10_000,
    "timer_log_file_bytes": 52 * 10_000,
    "timer_slots": 604_800,
    "timer_roll_window_slots": 172_800,
}
"""The wheel of a week, and files that one request counts."""
USUAL = (0.55, 0.8, 0.93, 0.985, 0.997, *[1.0] * 9)
SLOW = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.985, 1.0, 1.0, 1.0)
"""The shares of releases up to each bound, usually and while the disk is slow."""


class SteppingClock(ManualClock):
    """A clock that moves with each look at it, so that no figures are kept."""

    def monotonic(self) -> float:
        """Return a time that is a second later than the last one."""
        self.advance(1000)
        return super().monotonic()


class PicturedFigures(DashboardFigures):
    """Figures whose history does not grow."""

    async def sample(self) -> None:
        """Take no sample."""


class ServedBroker:
    """A dashboard. The clock of its broker moves a second with each request."""

    def __init__(self, store: Path, *, has_users: bool = False) -> None:
        self._has_users = has_users
        self.operations: list[Operation] = []
        """The operations of users."""
        self.is_rejecting = False
        """Reject sends from the next request on."""
        self._store = store
        self._ready, self._ended = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60), "the dashboard did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)

    async def role_of(self, key: AccessKey) -> UserRole | None:
        """Return the role of the only user."""
        return UserRole.OPERATE if key == OPERATOR else None

    async def operate(self, key: AccessKey, operation: Operation) -> None:
        """Note an operation."""
        assert key == OPERATOR
        self.operations.append(operation)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with BrokerHarness(self._store, clock=ManualClock(NOW_MS), **USUAL_SIZES) as harness:
            fill(harness)
            model = PipelineModel(harness)
            harness.advance(5000, model.work)

            async def ask(command: Command) -> Command:
                if command.code == RequestCode.WMQ_METRICS:
                    harness.advance(1000, model.work)
                if self.is_rejecting:
                    harness.broker.parts.health.reject_sends("the disk is full: No space left on device")
                return harness.ask(command)

            harness.disk.used = 0.41
            figures = PicturedFigures(ask, SteppingClock())
            figures.history = wavy_history(harness.now_ms)
            sessions = Sessions(self, harness.clock, lambda *_: None) if self._has_users else None
            dashboard = Dashboard(figures, BrokerMetrics(ask, harness.clock), harness.clock, sessions)
            self.url = await dashboard.start(0)
            self._ready.set()
            await self._ended.wait()
            await dashboard.stop()


def fill(harness: BrokerHarness) -> None:
    """Store messages of every kind that the page shows."""
    for topic, count, every_ms in (("orders", 300, 37_000), ("reminders", 150, 1_500_000), (LONG_NAME, 30, 8_000_000)):
        for i in range(count):
            assert harness.send(topic, delay_ms=9000 + i * every_ms % 250_000_000).code == 0
    for i in range(60):
        harness.send("audit", b"body", queue_id=i % 4)
    offsets = harness.broker.parts.consumer_offsets
    for group, queues in (("billing", 4), ("search-index", 1)):
        for queue_id in range(queues):
            offsets.commit(group, "audit", queue_id, 9)
    for _ in range(3):
        harness.send("%DLQ%billing", queue_id=0)


def wavy_history(now_ms: int) -> HourHistory:
    """Return an hour with waves of load, and three minutes of a slow disk."""
    history, chance = HourHistory(), Random(3)
    puts = gets = released = 0
    late_to = [0] * len(BOUNDS_MS)
    for i in range(361):
        puts += int(900 + 500 * math.sin(i / 30) + 200 * chance.random())
        gets += int(800 + 480 * math.sin(i / 30 - 0.3) + 200 * chance.random())
        more = int(400 + 100 * math.sin(i / 20))
        released += more
        shares = SLOW if 180 < i < 200 else USUAL
        late_to = [count + int(more * share) for count, share in zip(late_to, shares, strict=True)]
        pending = int(480 + 120 * math.sin((i - 360) / 50))
        at_ms = now_ms - (360 - i) * 10_000
        history.add(Sample(at_ms, NOW_MS, puts, gets, pending, released, tuple(zip(BOUNDS_MS, late_to, strict=True))))
    return history
