"""A broker and a name server on real sockets for the tests of an application, with a clock that the test moves.

    with TestBroker() as broker, SyncProducer(broker.namesrv) as producer:
        producer.send("Reminders", b"pay up", delay_ms=3 * 86_400_000)
        broker.advance(days=3)
        ...  # a consumer of the topic now gets the message

Clients of any language can connect. The store is in memory and goes at the end. Spark and Java are not needed: the
broker arms its delayed messages itself.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from wheelmq.testing.movable_clock import MovableClock

if TYPE_CHECKING:
    from wheelmq.broker.app import BrokerApp
    from wheelmq.broker.settings import BrokerSettings
    from wheelmq.nameserver.app import NameServerApp

T = TypeVar("T")

SMALL_FILES: Final[dict[str, Any]] = {
    "connections_max": 1000,
    "log_file_bytes": 16 << 20,
    "log_files_ahead": 0,
    "queue_file_bytes": 20 * 10_000,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
    "timer_log_file_bytes": 1 << 20,
    "timer_warm_enable": False,
    "fast_port_enable": False,
    "flush_mode": "ASYNC_FLUSH",
}
"""Settings that keep the store small and its start short. A log file is larger than the greatest message."""
MEMORY: Final = Path("/dev/shm")
START_S: Final = 30.0
"""Time for a start or a stop, on a machine under load."""
TICK_S: Final = 0.001
ADVANCE_S: Final = 60.0
"""Time for the release of all messages that a move of the clock makes due."""


class TestBroker:
    """A broker with the name server that it registers at, both in a thread of this process. Any thread may call."""

    __test__ = False  # for pytest, which collects classes with this prefix

    def __init__(self, *, namesrv_port: int = 0, **settings: Any) -> None:
        """Prepare a broker. `settings` are those of docs/operations/settings.md, by name, as `flush_mode="SYNC_FLUSH"`.

        `start` raises ConfigError for a wrong setting. Port 0 picks a free port.
        """
        self._namesrv_port = namesrv_port
        self._settings = {**SMALL_FILES, **settings}
        self.clock = MovableClock()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._app: BrokerApp | None = None
        self._nameserver: NameServerApp | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start name server and broker on free ports of 127.0.0.1. Returns once both accept clients.

        Raises ConfigError, OSError, RuntimeError if it runs already.
        """
        if self._thread is not None:
            raise RuntimeError("this TestBroker was started before: use another one")
        self._folder = tempfile.TemporaryDirectory(prefix="wheelmq-test-", dir=_memory())
        self._thread = threading.Thread(target=self._loop.run_forever, name="wheelmq test broker", daemon=True)
        self._thread.start()
        try:
            self._call(self._start(Path(self._folder.name)), START_S)
        except BaseException:
            self.stop()
            raise

    async def _start(self, folder: Path) -> None:
        _import_servers()
        from wheelmq.broker.app import BrokerApp
        from wheelmq.nameserver.app import NameServerApp
        from wheelmq.nameserver.settings import NameServerSettings

        nameserver = NameServerApp(
            NameServerSettings(listen_port=self._namesrv_port, kv_config_path=folder / "kvConfig.json")
        )
        await nameserver.start()
        self._nameserver = nameserver
        fixed = {"store_path": folder / "store", "listen_port": 0, "namesrv": self.namesrv}
        self._app = BrokerApp(
            _settings_of({**fixed, **self._settings}), clock=self.clock, owns_process=False, may_compile=False
        )
        await self._app.start()
        assert self._app.registration is not None
        await self._app.registration.registered.wait()

    def stop(self) -> None:
        """Stop both, and remove the store. Does nothing if they are stopped."""
        if self._thread is None or self._loop.is_closed():
            return
        try:
            self._call(self._stop(), START_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._cancel_tasks()
            self._loop.close()
            assert self._folder is not None
            self._folder.cleanup()

    async def _stop(self) -> None:
        if self._app is not None:
            await self._app.stop()
        if self._nameserver is not None:
            await self._nameserver.stop()

    def _cancel_tasks(self) -> None:
        """Cancel the tasks that remain after a timeout, so that Python does not warn about them."""
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))

    # For clients ---------------------------------------------------------------------------------------------------

    @property
    def namesrv(self) -> str:
        """The address of the name server, for clients: 127.0.0.1:PORT."""
        assert self._nameserver is not None, "call start() first"
        return f"127.0.0.1:{self._nameserver.port}"

    @property
    def address(self) -> str:
        """The address of the broker itself."""
        return self._running.settings.broker.address

    # Time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the broker, in UTC."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """Move the clock forward: `advance(days=3)`, or `advance(timedelta(days=3))`.

        Returns once each message that is now due is in its topic. Raises ValueError for a negative time, and
        TimeoutError if a message is not released within a minute.
        """
        self.clock.move(timedelta(**units) + (by or timedelta()))
        self._call(self._release_due(), ADVANCE_S)

    async def _release_due(self) -> None:
        """Tick until no message is due."""
        through_ms = self.clock.now_ms()
        self._running.tick_soon()
        while self._has_due(through_ms):
            await asyncio.sleep(TICK_S)
            self._running.tick_soon()

    def _has_due(self, through_ms: int) -> bool:
        """Return whether a message due by `through_ms` is not in its topic yet."""
        from wheelmq.broker.overdue import overdue

        assert self._running.broker is not None
        parts = self._running.broker.parts
        pending = parts.timer.pending
        times_ms = (pending.next_near_ms(), pending.armed.next_fire_ms(), parts.block_parts.walk.next_ms())
        return (
            any(time_ms is not None and time_ms <= through_ms for time_ms in times_ms)
            or parts.releaser.in_hand() > 0
            or parts.records.has_records
            or overdue(parts.metric_sources).late_ms > 0
        )

    @property
    def _running(self) -> BrokerApp:
        assert self._app is not None, "call start() first"
        return self._app

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run `work` on the loop of the broker, and wait for it. Raises TimeoutError, RuntimeError when stopped."""
        if self._loop.is_closed() or self._thread is None:
            work.close()
            raise RuntimeError("this TestBroker is not running: use it inside `with TestBroker() as broker:`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise


def _memory() -> str | None:
    """Return a folder in memory, or None for the system's folder of temporary files."""
    return str(MEMORY) if os.access(MEMORY, os.W_OK) else None


def _import_servers() -> None:
    """Import the servers with plain kernels, unless they are imported. A test needs no compiler in the background."""
    before = os.environ.get("WHEELMQ_KERNELS")
    os.environ.setdefault("WHEELMQ_KERNELS", "plain")
    try:
        import wheelmq.broker.app  # noqa: F401
    finally:
        if before is None:
            del os.environ["WHEELMQ_KERNELS"]


def _settings_of(values: dict[str, Any]) -> BrokerSettings:
    """Return the settings with `values`, by WheelMQ's names. Raises ConfigError."""
    from wheelmq.broker.schema import BROKER
    from wheelmq.config.errors import ConfigError
    from wheelmq.config.schema import Given, nearest

    for name in values:
        if name not in BROKER.fields:
            raise ConfigError(f"TestBroker: there is no setting {name!r}{nearest(name, list(BROKER.fields))}")
    return BROKER.build({name: Given(value, f"TestBroker({name}=...)") for name, value in values.items()})
