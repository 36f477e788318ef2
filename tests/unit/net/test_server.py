"""The server shell over real sockets, with misbehaving peers and a failing core."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command
from wheelmq.net import round_schedule
from wheelmq.net.limits import Limits
from wheelmq.net.server import Server
from wheelmq.net.server_connection import ServerConnection

LIMIT_S = 10.0
"""A test that waits longer has failed."""


class FakeCore:
    """Takes all bytes. A test sets its other behaviour."""

    def __init__(self) -> None:
        self.on_bytes: Callable[[ServerConnection, memoryview, int], int] = lambda connection, buffer, end: end
        self.tick_error: Exception | None = None
        self.on_tick: Callable[[], None] = lambda: None
        self.ticks = 0
        self.by_event: bool | None = None
        """Whether an event caused the last tick."""
        self.round_error: Exception | None = None
        self.is_due = True
        self.rounds = 0
        self.wait_ms: int | None = None
        self.lost = 0

    def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        return self.on_bytes(connection, buffer, end)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.lost += 1

    def tick(self, *, by_event: bool = True) -> None:
        self.ticks += 1
        self.by_event = by_event
        if self.tick_error is not None:
            raise self.tick_error
        self.on_tick()

    def end_round(self) -> bool:
        self.rounds += 1
        if self.round_error is not None:
            raise self.round_error
        return self.is_due

    def next_tick_ms(self) -> int | None:
        return 0 if self.tick_error is not None else self.wait_ms


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def serve(core: FakeCore, play: Callable[[Server, Peer], Awaitable[None]], **settings: Any) -> Server:
    """Play against a server over `core` with one peer. Returns the server."""

    async def run() -> Server:
        server = Server(core, limits=Limits(**settings))
        port = await server.listen("127.0.0.1", 0)
        peer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(LIMIT_S):
            await play(server, peer)
        peer[1].close()
        await server.close()
        return server

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    while not condition():
        await asyncio.sleep(0.001)


def answer_more_than_a_socket_holds(connection: ServerConnection, buffer: memoryview, end: int) -> int:
    connection.send(bytes(64 << 20))
    return end - 1  # and a frame has begun


def test_a_peer_that_does_not_read_is_freed_at_the_frame_deadline() -> None:
    core = FakeCore()
    core.on_bytes = answer_more_than_a_socket_holds

    async def play(server: Server, peer: Peer) -> None:
        peer[0]._transport.pause_reading()  # type: ignore[attr-defined]
        peer[1].write(b"xx")
        await until(lambda: core.lost == 1)
        assert not server.connections

    assert serve(core, play, frame_deadline_s=0.05, close_s=0.05).closed.slow_frames == 1


def test_a_peer_that_reads_gets_the_answers_queued_before_the_close() -> None:
    core = FakeCore()

    def answer_and_close(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        connection.send(bytes(8 << 20))
        connection.close()
        return end

    core.on_bytes = answer_and_close

    async def play(server: Server, peer: Peer) -> None:
        peer[1].write(b"x")
        assert len(await peer[0].read(-1)) == 8 << 20
        await until(lambda: core.lost == 1)

    serve(core, play)


def test_an_error_of_the_core_closes_its_connection() -> None:
    core = FakeCore()

    def fail(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        raise ValueError("unforeseen")

    core.on_bytes = fail

    async def play(server: Server, peer: Peer) -> None:
        peer[1].write(b"x")
        assert await peer[0].read() == b""  # closed in order, not reset
        await until(lambda: core.lost == 1)

    found = serve(core, play).figures()
    assert found == dict.fromkeys(found, 0) | {"bad_frames": 1}


def test_a_header_nested_too_deep_closes_its_connection() -> None:
    core = FakeCore()

    def decode(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        stop = frame.frame_end(buffer, 0, end)
        if stop is None:
            return 0
        frame.decode(buffer, 0, stop)
        return stop

    core.on_bytes = decode
    header = b'{"x":' + b"[" * 100_000

    async def play(server: Server, peer: Peer) -> None:
        peer[1].write((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        assert await peer[0].read() == b""
        await until(lambda: core.lost == 1)

    assert serve(core, play).closed.bad_frames == 1


def test_connections_continue_in_the_order_in_which_they_opened() -> None:
    """The memory guard pauses them and lets them continue in this order."""

    async def play(server: Server, peer: Peer) -> None:
        names, open_writers = [peer[1].get_extra_info("sockname")], []
        for _ in range(30):
            _, writer = await asyncio.open_connection(*peer[1].get_extra_info("peername"))
            open_writers.append(writer)  # the peer closes a connection without references
            names.append(writer.get_extra_info("sockname"))
            await until(lambda: len(server.connections) == len(names))
        assert [one.peer.port for one in server.connections] == [port for _, port in names]

    serve(FakeCore(), play)


def test_a_failed_tick_is_retried_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_schedule, "FAILED_TICK_MS", 3_600_000)
    core = FakeCore()
    core.tick_error = ValueError("unforeseen")

    async def play(server: Server, peer: Peer) -> None:
        await until(lambda: bool(server.connections))
        ticks = core.ticks
        for _ in range(100):  # rounds of the loop: none of them ticks
            await asyncio.sleep(0)
        assert core.ticks == ticks

    found = serve(core, play)
    assert found.rounds.failed_ticks == core.ticks
    monkeypatch.setattr(round_schedule, "FAILED_TICK_MS", 1)

    async def play_on(server: Server, peer: Peer) -> None:
        await until(lambda: server.rounds.failed_ticks >= 3)
        core.tick_error = None
        ticks, failed = core.ticks, server.rounds.failed_ticks
        await until(lambda: core.ticks > ticks)
        assert server.rounds.failed_ticks == failed

    serve(core, play_on)


def test_answers_wait_for_a_peer_to_read_and_then_continue() -> None:
    core, most = FakeCore(), 0

    def answer_a_megabyte_each(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        nonlocal most
        at = 0
        while at < end and not connection.is_full:
            connection.send(bytes(1 << 20))
            at += 1
        most = max(most, connection.queued_bytes)
        return at

    core.on_bytes = answer_a_megabyte_each

    async def play(server: Server, peer: Peer) -> None:
        peer[1].write(b"x" * 40)
        assert len(await peer[0].readexactly(40 << 20)) == 40 << 20

    serve(core, play, buffer_bytes_max=4 << 20)
    assert most == 5 << 20


@pytest.mark.parametrize("is_due", [True, False])
def test_answers_leave_at_the_end_of_a_round_and_a_due_tick_follows(is_due: bool) -> None:
    core = FakeCore()
    left_before: list[bool] = []

    def answer(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        connection.send(b"answer")
        core.is_due = is_due
        core.on_tick = lambda: left_before.append(not connection._out)
        return end

    core.on_bytes = answer

    async def play(server: Server, peer: Peer) -> None:
        reader, writer = peer
        await until(lambda: core.ticks > 0)
        await until(lambda: bool(server.connections))
        rounds = core.rounds
        writer.write(b"request")
        assert await reader.readexactly(6) == b"answer"
        await until(lambda: core.rounds > rounds)
        assert left_before == [True] * is_due

    serve(core, play)


def test_an_alarm_or_another_thread_causes_a_tick_without_a_round() -> None:
    core = FakeCore()
    core.is_due = False

    async def play(server: Server, peer: Peer) -> None:
        await until(lambda: bool(server.connections))
        ticks = core.ticks
        server.rounds.on_loop(lambda: None)
        await until(lambda: core.ticks == ticks + 1)
        assert core.by_event is True
        core.wait_ms = 1
        server.rounds.schedule_round()
        await until(lambda: core.ticks >= ticks + 4)
        assert core.by_event is False

    serve(core, play)


def test_an_earlier_alarm_replaces_a_later_one() -> None:
    core = FakeCore()
    core.is_due, core.wait_ms = False, 3_600_000

    async def play(server: Server, peer: Peer) -> None:
        await until(lambda: bool(server.connections))
        ticks, rounds = core.ticks, core.rounds
        core.wait_ms = 5
        server.rounds.schedule_round()
        await until(lambda: core.rounds > rounds)
        await until(lambda: core.ticks > ticks)

    serve(core, play)


def test_a_closed_server_runs_no_tick() -> None:
    """Connections that end later, workers and alarms cause none."""
    core = FakeCore()

    async def run() -> None:
        server = Server(core, limits=Limits())
        port = await server.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: bool(server.connections))
        core.wait_ms = 1
        done: list[int] = []
        server.rounds.schedule_tick()
        await server.close()
        ticks, rounds = core.ticks, core.rounds
        server.rounds.on_loop(lambda: done.append(1))
        server.rounds.schedule_tick()
        writer.close()
        await until(lambda: bool(done) and core.lost == 1)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert (core.ticks, core.rounds) == (ticks, rounds)

    asyncio.run(run())


def test_timed_ticks_continue_while_the_ends_of_rounds_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_schedule, "FAILED_TICK_MS", 1)
    core = FakeCore()
    core.is_due, core.round_error = False, ValueError("unforeseen")

    async def play(server: Server, peer: Peer) -> None:
        await until(lambda: bool(server.connections))
        ticks = core.ticks
        peer[1].write(b"x")
        await until(lambda: core.ticks >= ticks + 3)

    assert serve(core, play).rounds.failed_ticks > 0


def test_a_connection_that_has_drained_causes_a_tick() -> None:
    """The tick checks the work that waits for a connection to drain."""
    core = FakeCore()
    core.is_due = False
    ticks: list[int] = []

    def answer_more_than_a_socket_holds_once(connection: ServerConnection, buffer: memoryview, end: int) -> int:
        if not ticks:
            connection.send(bytes(64 << 20))
            ticks.append(core.ticks)
        return end - 1

    core.on_bytes = answer_more_than_a_socket_holds_once

    async def play(server: Server, peer: Peer) -> None:
        peer[1].write(b"xx")
        assert len(await peer[0].readexactly(64 << 20)) == 64 << 20
        await until(lambda: core.ticks > ticks[0])

    serve(core, play)


class TestFailedWrites:
    ANSWER = frame.encode(Command(code=0, opaque=7, flag=frame.FLAG_RESPONSE, remark="FOUND"))

    @staticmethod
    def reset(peer: Peer) -> None:
        """Close the connection of `peer` as the system does for a client that is killed with unread bytes."""
        peer[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer[1].transport.abort()

    def test_a_reset_with_answers_on_the_way_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        core = FakeCore()

        def answer(connection: ServerConnection, buffer: memoryview, end: int) -> int:
            connection.sends, connection.last_request = False, (11, 7)
            connection.send(self.ANSWER + bytes(64 << 20))  # more than a socket holds
            return end

        core.on_bytes = answer

        async def play(server: Server, peer: Peer) -> None:
            peer[0]._transport.pause_reading()  # type: ignore[attr-defined]
            peer[1].write(b"x")
            await until(lambda: any(one.bytes_unread for one in server.connections))
            self.reset(peer)
            await until(lambda: core.lost == 1)

        serve(core, play)
        (line,) = [text for text in caplog.messages if "answers may not have arrived" in text]
        assert "Last request: code=11 opaque=7; last answer: code=0 opaque=7 flag=1" in line and "remark=FOUND" in line

    def test_an_answer_to_a_reset_connection_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """The socket takes the first answer. The write of the second one fails."""
        core = FakeCore()
        core.on_bytes = lambda connection, buffer, end: connection.send(self.ANSWER) or end

        async def play(server: Server, peer: Peer) -> None:
            peer[1].write(b"x")
            await peer[0].readexactly(len(self.ANSWER))
            (connection,) = server.connections
            self.reset(peer)
            connection.rest()
            connection.send(self.ANSWER)
            await asyncio.sleep(0)  # the transport of the peer closes its socket now
            connection.flush()
            await until(lambda: core.lost == 1)

        serve(core, play)
        assert len([text for text in caplog.messages if "answers may not have arrived" in text]) == 1

    def test_a_reset_after_the_answers_arrived_is_not_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """Each killed client ends its connection in this way. A warning for each would hide the important ones."""
        core = FakeCore()
        core.on_bytes = lambda connection, buffer, end: connection.send(self.ANSWER) or end

        async def play(server: Server, peer: Peer) -> None:
            peer[1].write(b"x")
            await peer[0].readexactly(len(self.ANSWER))
            self.reset(peer)
            await until(lambda: core.lost == 1)

        serve(core, play)
        assert caplog.messages == []

    def test_a_write_that_raises_closes_only_its_connection(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        core = FakeCore()
        core.on_bytes = lambda connection, buffer, end: connection.send(self.ANSWER) or end

        async def play(server: Server, peer: Peer) -> None:
            other = await asyncio.open_connection(*peer[1].get_extra_info("peername"))
            await until(lambda: len(server.connections) == 2)
            port = peer[1].get_extra_info("sockname")[1]
            (failing,) = [one for one in server.connections if one.peer.port == port]

            def fail(frames: bytes) -> None:
                raise RuntimeError("no write")

            monkeypatch.setattr(failing._writer, "_transport", Wrapped(failing._writer._transport, fail))
            peer[1].write(b"x")
            other[1].write(b"x")
            assert await other[0].readexactly(len(self.ANSWER)) == self.ANSWER
            await until(lambda: core.lost == 1)
            other[1].close()

        serve(core, play)
        (line,) = [text for text in caplog.messages if "answers may not have arrived" in text]
        assert "no write" in line and "Last request: a send; last answer: code=0 opaque=7" in line

    def test_a_close_in_order_is_not_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        core = FakeCore()
        core.on_bytes = lambda connection, buffer, end: connection.send(self.ANSWER) or end

        async def play(server: Server, peer: Peer) -> None:
            peer[1].write(b"x")
            await peer[0].readexactly(len(self.ANSWER))
            peer[1].close()
            await until(lambda: core.lost == 1)

        serve(core, play)
        assert caplog.messages == []


class Wrapped:
    """A transport with another write function."""

    def __init__(self, transport: asyncio.Transport, write: Callable[[bytes], None]) -> None:
        self._transport = transport
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
