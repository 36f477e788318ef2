"""Registration at several name servers. A server that is down or hangs does not delay the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.registration import Registrar
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.rpc_client import RpcClient
from wheelmq.testing.harness import BrokerHarness

DEADLINE_S = 20
SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}


async def started(folder: Path, port: int = 0) -> NameServerApp:
    app = NameServerApp(NameServerSettings(kv_config_path=folder / f"kv{port}", listen_port=port))
    await app.start()
    return app


async def knows(app: NameServerApp, topic: str) -> bool:
    """Return whether a client gets a route of `topic`."""
    caller = RpcClient(f"127.0.0.1:{app.port}")
    try:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return (await caller.call(Command(code=code, ext=headers.texts(topic=topic)))).code == 0
    finally:
        await caller.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def registered(folder: Path, *servers: str, **settings: Any) -> AsyncIterator[tuple[BrokerHarness, Registrar]]:
    """Yield a broker that registers at `servers`."""
    with BrokerHarness(folder / "store", namesrv=servers, **settings) as harness:
        registration = Registrar(
            harness.broker.parts.settings, harness.broker.parts.topics, harness.broker.parts.replication, harness.clock
        )
        registration.start()
        try:
            yield harness, registration
        finally:
            await registration.stop()


def test_a_broker_registers_at_both_name_servers(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = await started(tmp_path), await started(tmp_path)
        async with registered(tmp_path, *(f"127.0.0.1:{app.port}" for app in (one, two))) as (harness, registration):
            async with asyncio.timeout(DEADLINE_S):
                await registration.registered.wait()
            harness.send("New")
            registration.poll()
            for app in (one, two):
                await until(lambda app=app: knows(app, "New"))  # type: ignore[misc]
        for app in (one, two):
            assert not await knows(app, "New")  # the broker has left
            await app.stop()

    asyncio.run(run())


def test_a_name_server_that_comes_back_gets_the_registration(tmp_path: Path) -> None:
    async def run() -> None:
        one, two = await started(tmp_path), await started(tmp_path)
        port = two.port
        await two.stop()
        async with registered(tmp_path, f"127.0.0.1:{port}", f"127.0.0.1:{one.port}") as (harness, registration):
            await until(lambda: knows(one, "TBW102"))
            assert not registration.registered.is_set()
            harness.send("New")
            registration.poll()
            await until(lambda: knows(one, "New"))
            two = await started(tmp_path, port)
            await until(lambda: knows(two, "New"))
            assert registration.registered.is_set()
        await one.stop()
        await two.stop()

    asyncio.run(run())


def test_a_hanging_name_server_does_not_delay_the_other(tmp_path: Path) -> None:
    """The server accepts connections and never answers."""

    async def run() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(0), "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        one = await started(tmp_path)
        async with registered(tmp_path, address, f"127.0.0.1:{one.port}") as (harness, registration):
            await until(lambda: knows(one, "TBW102"))
            for topic in ("First", "Second"):
                harness.send(topic)
                registration.poll()
                await until(lambda topic=topic: knows(one, topic))  # type: ignore[misc]
            assert not registration.registered.is_set()
        silent.close()
        await one.stop()

    asyncio.run(run())


def test_a_hanging_name_server_gets_a_new_connection(tmp_path: Path) -> None:
    """A connection to a vanished peer would carry no registration for a quarter of an hour.

    A connection to a peer that does not read would keep each registration in memory.
    """

    async def run() -> None:
        ends = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ends.append(asyncio.ensure_future(reader.read()))
            await asyncio.sleep(0)

        silent = await asyncio.start_server(keep, "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"

        async def is_dialled_again() -> bool:
            return len(ends) >= 2

        async with registered(tmp_path, address, register_timeout_ms=50):
            await until(is_dialled_again)
            with contextlib.suppress(ConnectionResetError):
                await ends[0]  # the first connection was closed
        silent.close()

    asyncio.run(run())


def test_two_brokers_with_one_name_log_each_others_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both brokers log the address of the other one, with a registration of their own."""

    async def run() -> None:
        app = await started(tmp_path)
        server = f"127.0.0.1:{app.port}"
        async with (
            registered(tmp_path / "one", server, listen_port=29_001) as (first, one),
            registered(tmp_path / "two", server, listen_port=29_002) as (second, two),
        ):

            async def both_logged() -> bool:
                for harness, registration in ((first, one), (second, two)):
                    harness.broker.parts.topics.renew_version()
                    registration.poll()
                lines = [text for text in caplog.messages if "each registration replaces" in text]
                return all(any(f"at 127.0.0.1:{port}" in text for text in lines) for port in (29_001, 29_002))

            await until(both_logged)
        await app.stop()

    asyncio.run(run())


def test_the_master_of_a_reachable_name_server_comes_first(tmp_path: Path) -> None:
    """The answer of a server that is gone may be old."""

    async def scene() -> None:
        first, second = await started(tmp_path), await started(tmp_path / "second")
        servers = [f"127.0.0.1:{app.port}" for app in (first, second)]
        async with AsyncExitStack() as stack:
            for i, server in enumerate(servers):
                master = await stack.enter_async_context(
                    registered(tmp_path / str(i), server, listen_port=9000 + 100 * i)
                )
                master[0].broker.parts.replication.ha_port = 1
                master[1].register_soon()
            _, registration = await stack.enter_async_context(registered(tmp_path / "slave", *servers, **SLAVE))

            def brokers() -> list[str]:
                return [master.broker.rpartition(":")[2] for master in registration.masters()]

            async def asked(wanted: list[str]) -> bool:
                registration.register_soon()
                return brokers() == wanted

            await until(lambda: asked(["9000", "9100"]))
            await first.stop()
            await until(lambda: asked(["9100", "9000"]))
        await second.stop()

    asyncio.run(scene())
