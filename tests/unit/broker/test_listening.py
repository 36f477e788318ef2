"""A broker with real sockets: the fast port, limits, and peers that misbehave."""

from __future__ import annotations

import asyncio
import resource
import socket
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from wheelmq.broker.app import FAST_PORT_BELOW, BrokerApp
from wheelmq.broker.app import log as app_log
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk.message import SYS_COMPRESSED
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system import open_files
from wheelmq.testing.harness import SMALL

LIMIT_S = 20.0
Play = Callable[[BrokerApp], Awaitable[None]]


def run(folder: Path, play: Play, **chosen: Any) -> None:
    """Run `play` with a broker that listens."""

    async def played() -> None:
        settings = {**SMALL, "message_index_enable": False, "listen_port": 0, **chosen}
        app = BrokerApp(BrokerSettings.of(store_path=folder, **settings), owns_process=False)
        await app.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                await play(app)
        finally:
            await app.stop()

    asyncio.run(played())


def send(topic: str = "T", body: bytes = b"body", **letters: Any) -> Command:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "k\x01v\x02"}
    return Command(code=310, ext=fields | letters, body=body)


def pull(expression: str = "*", kind: str = "TAG") -> Command:
    """Return a pull of queue 0 of T from its beginning."""
    header = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    flags = {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
    return Command(code=11, ext=header | flags | {"subscription": expression, "expressionType": kind})


async def send_over(port: int, command: Command | None = None) -> int:
    caller = RpcClient(f"127.0.0.1:{port}")
    try:
        return (await caller.call(command or send(), LIMIT_S)).code
    finally:
        await caller.close()


def pair_of_ports() -> int:
    """Return a free port whose fast port is also free."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                two.bind(("127.0.0.1", port - FAST_PORT_BELOW))
            except OSError:
                continue
            return port


def test_nothing_takes_the_port_that_the_system_chose_before_the_start(tmp_path: Path) -> None:
    async def play() -> None:
        settings = BrokerSettings.of(store_path=tmp_path, listen_port=0, message_index_enable=False, **SMALL)
        app = BrokerApp(settings, owns_process=False)
        port = app.settings.broker.listen_port
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
        await app.start()
        try:
            assert await send_over(port) == 0
        finally:
            await app.stop()

    asyncio.run(play())


def test_the_fast_port_serves_the_same_requests(tmp_path: Path) -> None:
    async def play(app: BrokerApp) -> None:
        port = app.settings.broker.listen_port
        assert [await send_over(one) for one in (port, port - FAST_PORT_BELOW)] == [0, 0]

    run(tmp_path, play, listen_port=pair_of_ports())


def test_the_fast_port_can_be_switched_off(tmp_path: Path) -> None:
    port = pair_of_ports()

    async def play(app: BrokerApp) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port - FAST_PORT_BELOW), LIMIT_S)

    run(tmp_path, play, listen_port=port, fast_port_enable=False)


def test_a_fast_port_in_use_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = pair_of_ports()

    async def play(app: BrokerApp) -> None:
        assert await send_over(port) == 0

    with socket.create_server(("127.0.0.1", port - FAST_PORT_BELOW)):
        run(tmp_path, play, listen_port=port)
    (line,) = [
        one.getMessage() for one in caplog.records if one.name == app_log.name and "fast port" in one.getMessage()
    ]
    assert f"could not open the fast port {port - FAST_PORT_BELOW}: " in line


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async def play(app: BrokerApp) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.settings.broker.listen_port)
        assert await reader.read() == b""
        writer.close()
        assert app.broker is not None and app.broker.parts.metric_sources.shell_figures()["idle_connections"] == 1

    run(tmp_path, play, server_channel_max_idle_time_seconds=1)


def test_a_connection_beyond_the_limit_is_closed(tmp_path: Path) -> None:
    async def play(app: BrokerApp) -> None:
        port = app.settings.broker.listen_port
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await send_over_until_counted(app, 3)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        first[0][1].close()
        await send_over_until_counted(app, 2)
        assert await send_over(port) == 0
        for _, one in first:
            one.close()

    run(tmp_path, play, connections_max=3)


async def send_over_until_counted(app: BrokerApp, count: int) -> None:
    assert app.broker is not None
    while app.broker.parts.metric_sources.shell_figures()["connections"] != count:
        await asyncio.sleep(0.001)


def test_the_limit_of_open_files_limits_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(100, 400)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, limit: limits.append(limit))
    assert open_files.connections_possible(1000) == 300
    assert limits == [(100, 400), (400, 400)]
    assert open_files.connections_possible(200) == 200
    for files, possible in ((64, 32), (100, 50), (200, 136), (1024, 768)):
        limits.append((files, files))
        assert open_files.connections_possible(1000) == possible


def test_the_broker_never_inflates_a_compressed_body(tmp_path: Path) -> None:
    """A body of 64 MiB stays compressed to 64 KiB."""
    bomb = zlib.compress(bytes(64 << 20))

    async def play(app: BrokerApp) -> None:
        port = app.settings.broker.listen_port
        tracemalloc.start()
        try:
            assert await send_over(port, send(body=bomb, f=str(SYS_COMPRESSED))) == 0
            assert await send_over(port, pull("TAGS = 'A'", "SQL92")) == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()

    run(tmp_path, play, enable_property_filter=True)


def test_a_peer_that_never_reads_gets_few_answers(tmp_path: Path) -> None:
    """The peer requests a hundred megabytes. A client that reads is served at the same time."""
    asked = 400

    async def play(app: BrokerApp) -> None:
        assert app.broker is not None and app._server is not None
        port = app.settings.broker.listen_port
        caller = RpcClient(f"127.0.0.1:{port}")
        for _ in range(3):
            assert (await caller.call(send(body=bytes(100_000)), LIMIT_S)).code == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame.encode(pull()) * asked)
        while not any(one.is_full for one in app._server.connections):
            await asyncio.sleep(0.001)
        for _ in range(20):
            assert len((await caller.call(pull(), LIMIT_S)).body) > 200_000
        made = app.broker.dispatch.counts["served"] - 3 - 20
        assert 0 < made < asked / 4
        await caller.close()
        writer.transport.abort()

    run(tmp_path, play, connection_buffer_bytes_max=1 << 20)


@pytest.mark.parametrize("count", [40])
def test_a_client_is_served_while_many_peers_misbehave(tmp_path: Path, count: int) -> None:
    """The peers send nothing, one byte at a time, or only the beginning of a large frame."""

    async def play(app: BrokerApp) -> None:
        port = app.settings.broker.listen_port
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
        whole = frame.encode(send())
        for number, (_, writer) in enumerate(crowd):
            if number % 3 == 1:
                writer.write((16 << 20).to_bytes(4, "big") + b"x" * 70_000)
        caller = RpcClient(f"127.0.0.1:{port}")
        for i in range(20):
            for number, (_, writer) in enumerate(crowd):
                if number % 3 == 2:
                    writer.write(whole[i : i + 1])
            assert (await caller.call(send(), LIMIT_S)).code == 0
        assert app.broker is not None
        slow = app.broker.parts.metric_sources.shell_figures()
        assert slow["connections"] == count + 1
        await caller.close()
        for reader, writer in crowd[1::3] + crowd[2::3]:
            assert await reader.read() == b""  # none of their frames was complete in time
            writer.close()
        assert app.broker.parts.metric_sources.shell_figures()["slow_frames"] == len(crowd[1::3]) + len(crowd[2::3])
        for _, writer in crowd[::3]:
            writer.close()

    run(tmp_path, play, frame_deadline_ms=1500)
