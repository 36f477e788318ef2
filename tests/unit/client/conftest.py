"""A name server and a broker in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli.ports import free_port
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings

SMALL: dict[str, Any] = {
    "log_file_bytes": 1 << 20,
    "queue_file_bytes": 300 * 20,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "timer_log_file_bytes": 1 << 16,
    "timer_slots": 600,
    "timer_roll_window_slots": 300,
    "flush_interval_ms": 50,
}
ARRIVAL_DEADLINE_S = 20.0


class Servers:
    """The running servers: their addresses and the broker app."""

    def __init__(self, namesrv: NameServerApp, broker: BrokerApp) -> None:
        self.namesrv = f"127.0.0.1:{namesrv.port}"
        self.address = f"127.0.0.1:{broker.settings.broker.listen_port}"
        self.app = broker

    async def restart_broker(self) -> None:
        """Stop the broker cleanly and start it again on the same port and store."""
        await self.app.stop()
        self.app = BrokerApp(self.app.settings, owns_process=False)
        await self.app.start()
        await registered(self.app)


Start = Callable[..., AbstractAsyncContextManager[Servers]]


@pytest.fixture
def servers(tmp_path: Path) -> Start:
    """Start both servers: `async with servers() as running: ...`.

    The port of the broker is outside the system's range for outgoing connections. Otherwise a client that connects
    again could take it while the broker restarts.
    """

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Servers]:
        namesrv = NameServerApp(NameServerSettings(kv_config_path=tmp_path / "kvConfig.json", listen_port=0))
        await namesrv.start()
        chosen = {**SMALL, "namesrv": (f"127.0.0.1:{namesrv.port}",), **settings}
        broker = BrokerSettings.of(store_path=tmp_path / "store", listen_port=free_port(), **chosen)
        running = Servers(namesrv, BrokerApp(broker, owns_process=False))
        await running.app.start()
        try:
            await registered(running.app)
            yield running
        finally:
            await running.app.stop()
            await namesrv.stop()

    return start


async def registered(app: BrokerApp) -> None:
    assert app.registration is not None
    async with asyncio.timeout(ARRIVAL_DEADLINE_S):
        await app.registration.registered.wait()


async def until(condition: Callable[[], bool], deadline_s: float = ARRIVAL_DEADLINE_S) -> None:
    """Wait until another task of this loop makes `condition` true."""
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.005)
