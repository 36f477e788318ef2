"""The limits of the server shell over real sockets, on the standard event loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psutil
import pytest
import uvloop

from tests.unit.net.test_server import LIMIT_S, FakeCore, Peer, until
from wheelmq.net import server as shell
from wheelmq.net.limits import Limits
from wheelmq.net.receive_buffer import SMALL_BYTES
from wheelmq.net.server import RECEIVE_BYTES, Server
from wheelmq.net.server_connection import ServerConnection
from wheelmq.system import open_files

MIB = 1 << 20
IS_WHOLE = os.environ.get("CONNECTIONS") == "whole"
CONNECTIONS = 10_000 if IS_WHOLE else 300
"""With CONNECTIONS=whole, the number of connections that a broker must support."""

Connect = Callable[[], Awaitable[Peer]]
Play = Callable[[Server, Connect], Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Callable[..., Server]:
    """Run a play against a server over a core. The play connects its peers. Returns the server."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def serve(core: FakeCore, play: Play, limit_s: float = LIMIT_S, **limits: Any) -> Server:
        async def run() -> Server:
            server = Server(core, limits=Limits(**limits))
            port = await server.listen("127.0.0.1", 0)
            peers: list[Peer] = []

            async def connect() -> Peer:
                peers.append(await asyncio.open_connection("127.0.0.1", port))
                return peers[-1]

            try:
                async with asyncio.timeout(limit_s):
                    await play(server, connect)
            finally:
                for _, writer in peers:
                    writer.transport.abort()
                await server.close()
            return server

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(run())

    return serve


def frame(size: int, fill: bytes = b"x") -> bytes:
    """Return a length and this number of bytes."""
    return size.to_bytes(4, "big") + (fill * size)[:size]


class Frames(FakeCore):
    """Takes whole frames and answers each with the result of `answer`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        self.answer: Callable[[bytes], bytes] = lambda body: b""
        self.on_bytes = self.take

    def take(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        at = 0
        while end - at >= 4 and not connection.is_full:
            stop = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if stop > end:
                break
            body = bytes(buffer[at + 4 : stop])
            self.seen.append(body)
            connection.send(self.answer(body))
            at = stop
        return at


SIZES = (0, 1, 100, 5000, SMALL_BYTES - 4, SMALL_BYTES, 40_000, RECEIVE_BYTES - 4, RECEIVE_BYTES, 700_000, 3 * MIB)


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_all_sizes_arrive_whole_however_they_are_cut(serve: Callable[..., Server], seed: int) -> None:
    """Frames of several peers do not mix in the buffer that they share."""
    core, chance = Frames(), random.Random(seed)

    def bodies(fill: bytes) -> Iterator[bytes]:
        for _ in range(12):
            yield frame(chance.choice(SIZES), fill)

    async def play(server: Server, connect: Connect) -> None:
        streams = [b"".join(bodies(fill)) for fill in (b"ab", b"cd", b"ef")]
        peers = [await connect() for _ in streams]
        while any(streams):
            for number, (_, writer) in enumerate(peers):
                cut = chance.choice((1, 3, 900, 20_000, 300_000, 2 * MIB))
                writer.write(streams[number][:cut])
                streams[number] = streams[number][cut:]
            await asyncio.sleep(0)
        await until(lambda: len(core.seen) == 36)
        assert all(one.bytes_held == 0 for one in server.connections)

    serve(core, play)
    for body in core.seen:
        assert body == (body[:2] * len(body))[: len(body)]


def test_an_idle_connection_holds_no_buffer(serve: Callable[..., Server]) -> None:
    core = Frames()

    async def play(server: Server, connect: Connect) -> None:
        _, writer = await connect()
        writer.write(frame(3 * MIB))
        await until(lambda: len(core.seen) == 1)
        writer.write(frame(10)[:9])
        await until(lambda: sum(one.bytes_held for one in server.connections) == 9)

    serve(core, play)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_closed_connection_is_freed_without_garbage_collection(serve: Callable[..., Server], is_reset: bool) -> None:
    """A broker with many held pulls collects garbage once per hour. Reconnects must not add up until then."""
    core = Frames()
    core.answer = lambda body: frame(5)

    async def play(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(frame(4) + frame(10)[:9])
        await reader.readexactly(9)
        await until(lambda: sum(one.bytes_held for one in server.connections) == 9)
        (connection,) = [weakref.ref(one) for one in server.connections]
        if is_reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        await until(lambda: core.lost == 1)
        await until(lambda: connection() is None)

    gc.disable()
    try:
        serve(core, play, limit_s=2)
    finally:
        gc.enable()


def test_an_announced_frame_takes_memory_only_as_it_arrives(serve: Callable[..., Server]) -> None:
    async def play(server: Server, connect: Connect) -> None:
        _, writer = await connect()
        writer.write((16 * MIB - 4).to_bytes(4, "big") + bytes(100_000))
        await until(lambda: sum(one.bytes_held for one in server.connections) >= 100_000)
        (connection,) = server.connections
        assert connection.bytes_held <= 600_000

    serve(Frames(), play)


def test_peers_that_never_read_are_closed_to_free_memory(serve: Callable[..., Server]) -> None:
    """Each peer requests megabytes and reads none. Their memory stays below the limit, and others get answers."""
    core, most = Frames(), 0
    core.answer = lambda body: frame(MIB) if body == b"much" else frame(5)

    async def play(server: Server, connect: Connect) -> None:
        nonlocal most

        def measure() -> None:
            nonlocal most
            most = max(most, sum(one.bytes_held for one in server.connections))

        core.on_tick = measure
        reader, writer = await connect()
        for _ in range(12):
            deaf = await connect()
            deaf[0]._transport.pause_reading()  # type: ignore[attr-defined]
            deaf[1].write(frame(4, b"much") * 20)
            writer.write(frame(6, b"little"))
            assert await reader.readexactly(9) == frame(5)
        await until(lambda: server.memory_guard.closed > 0)
        writer.write(frame(6, b"little"))
        assert await reader.readexactly(9) == frame(5)

    bound = 16 * MIB
    found = serve(core, play, bytes_in_flight_max=bound, buffer_bytes_max=4 * MIB)
    assert found.memory_guard.closed < 12  # no more than necessary
    assert bound / 4 < most <= bound + 4 * MIB


def test_frames_that_never_end_are_closed_to_free_memory(serve: Callable[..., Server]) -> None:
    core = Frames()
    core.answer = lambda body: frame(5)

    async def play(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(12):
            _, slow = await connect()
            slow.write((16 * MIB - 4).to_bytes(4, "big") + bytes(MIB))
            writer.write(frame(MIB))
            assert await reader.readexactly(9) == frame(5)
        await until(lambda: server.memory_guard.closed > 0)
        assert len(core.seen) == 12

    found = serve(core, play, bytes_in_flight_max=6 * MIB)
    assert 0 < found.memory_guard.closed < 12


def test_all_reads_pause_above_the_limit_and_continue(serve: Callable[..., Server]) -> None:
    """Peers that read lose nothing."""
    core, rested = Frames(), False
    core.answer = lambda body: frame(MIB)

    async def play(server: Server, connect: Connect) -> None:
        def note_rest() -> None:
            nonlocal rested
            rested = rested or server.memory_guard.is_on

        core.on_tick = note_rest
        peers = [await connect() for _ in range(6)]
        for _, writer in peers:
            writer.write(frame(4) * 10)
        await asyncio.gather(*(reader.readexactly(10 * (MIB + 4)) for reader, _ in peers))
        assert server.memory_guard.closed == 0

    serve(core, play, bytes_in_flight_max=10 * MIB, buffer_bytes_max=8 * MIB)
    assert rested


def test_a_frame_is_not_slow_while_its_peer_reads_earlier_answers(serve: Callable[..., Server]) -> None:
    """Requests wait in the buffer while the peer reads the answers before them. That takes several deadlines."""
    core = Frames()
    core.answer = lambda body: frame(8 * MIB)

    async def play(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(frame(4) * 4)
        left, began_s = 4 * (8 * MIB + 4), server.loop.time()
        while left:
            data = await reader.read(left)
            assert data, "the connection was closed"
            left -= len(data)
            await asyncio.sleep(0.008)
        assert server.loop.time() - began_s > 0.5

    assert serve(core, play, frame_deadline_s=0.25, buffer_bytes_max=MIB).closed.slow_frames == 0


class TestIdle:
    def test_a_silent_connection_is_closed(self, serve: Callable[..., Server]) -> None:
        async def play(server: Server, connect: Connect) -> None:
            reader, _ = await connect()
            assert await reader.read() == b""

        found = serve(Frames(), play, idle_s=0.05)
        assert found.figures()["idle_connections"] == 1

    def test_a_connection_that_sends_and_never_reads_is_closed(self, serve: Callable[..., Server]) -> None:
        """The peer continues to send, so its connection does not note_rest idle from outside."""
        core = Frames()
        core.answer = lambda body: frame(16 * MIB)

        async def play(server: Server, connect: Connect) -> None:
            reader, writer = await connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(4))
            while not server.closed.idle:
                writer.write(b"\0\0\0\1" if core.lost == 0 else b"")
                await asyncio.sleep(0.005)
            await until(lambda: core.lost == 1)

        serve(core, play, idle_s=0.1, close_s=0.05)

    def test_a_slow_reader_is_not_closed(self, serve: Callable[..., Server]) -> None:
        """A peer may be slow while it reads."""
        core = Frames()
        core.answer = lambda body: frame(24 * MIB)

        async def play(server: Server, connect: Connect) -> None:
            reader, writer = await connect()
            writer.write(frame(4))
            left = 24 * MIB + 4
            while left:
                left -= len(await reader.read(left))
                await asyncio.sleep(0.002)
            assert server.closed.idle == 0

        serve(core, play, idle_s=0.4)

    def test_a_connection_is_idle_after_four_checks_without_progress(self, serve: Callable[..., Server]) -> None:
        async def play(server: Server, connect: Connect) -> None:
            await connect()
            await until(lambda: bool(server.connections))
            (connection,) = server.connections
            assert [connection.check_idle() for _ in range(5)] == [False, False, False, False, True]

        serve(Frames(), play, idle_s=0)


CROWD = """
import socket, sys
peers = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
for peer in peers[::2]:
    peer.send(b"x" * 8)
sys.stdin.read()
"""
"""Half of the peers send nothing, half send the beginning of a frame.

They have their own process, because two files for each connection are too many for one process.
"""


def test_many_idle_connections_cost_little_memory(serve: Callable[..., Server]) -> None:
    core = Frames()
    core.answer = lambda body: frame(5)
    if open_files.connections_possible(CONNECTIONS) < CONNECTIONS:
        pytest.skip(f"{CONNECTIONS} connections are more than the process may have")
    process = psutil.Process()

    async def play(server: Server, connect: Connect) -> None:
        before = process.memory_info().rss
        port = await server.listen("127.0.0.1", 0)
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, str(port), str(CONNECTIONS)], stdin=subprocess.PIPE)
        try:
            await until(lambda: sum(one.bytes_held for one in server.connections) == 8 * (CONNECTIONS // 2))
            reader, writer = await connect()
            writer.write(frame(4))
            assert await reader.readexactly(9) == frame(5)
            assert len(server.connections) == CONNECTIONS + 1
            assert process.memory_info().rss - before < 16 * MIB + 16_384 * CONNECTIONS
        finally:
            crowd.communicate()

    serve(core, play, limit_s=120.0)


def test_a_connection_above_the_limit_is_closed(serve: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    core = Frames()

    async def play(server: Server, connect: Connect) -> None:
        first = await connect()
        await until(lambda: len(server.connections) == 1)
        for _ in range(3):
            reader, _ = await connect()
            assert await reader.read() == b""
        first[1].close()
        await until(lambda: not server.connections)
        await connect()
        await until(lambda: len(server.connections) == 1)

    assert serve(core, play, connections_max=1).figures()["refused_connections"] == 3
    assert core.lost == 2  # the core never saw the other three
    assert len([record for record in caplog.records if record.name == shell.log.name]) == 1
