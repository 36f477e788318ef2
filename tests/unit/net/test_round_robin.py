"""Turns of connections over real sockets: the work of one round, and the connections that wait for the next."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from tests.unit.net.test_limits import Connect, Frames, frame, serve
from tests.unit.net.test_server import until
from wheelmq.net.round_robin import ROUND_BYTES, ROUND_S, SHORT_BYTES
from wheelmq.net.server import Server
from wheelmq.net.server_connection import ServerConnection

__all__ = ["serve"]
ANSWER_BYTES = 256 << 10
BUSY = 12


class Core(Frames):
    """Answers requests until the connection must wait, as the broker does.

    The answer to `much` has many bytes. The answer to `slow` takes a whole round.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answer = lambda body: frame(ANSWER_BYTES) if body == b"much" else frame(5)
        self.round_bytes = [0]
        """Bytes of the answers of each round, without the first turns of connections."""
        self.known: set[ServerConnection] = set()
        self.on_round: Callable[[], None] = lambda: None

    def take(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        at, is_first = 0, connection not in self.known
        self.known.add(connection)
        while end - at >= 4 and not connection.must_wait:
            stop = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if stop > end:
                break
            body = bytes(buffer[at + 4 : stop])
            self.seen.append(body)
            if body == b"slow":
                time.sleep(ROUND_S)
            answer = self.answer(body)
            if not is_first:
                self.round_bytes[-1] += len(answer)
            connection.send(answer)
            at = stop
        return at

    def connection_lost(self, connection: ServerConnection) -> None:
        self.known.discard(connection)
        super().connection_lost(connection)

    def end_round(self) -> bool:
        self.round_bytes.append(0)
        self.on_round()
        return super().end_round()


def test_a_client_with_one_request_does_not_wait_for_busy_clients(serve: Callable[..., Server]) -> None:
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        reader, writer = await connect()
        for _ in range(3):
            writer.write(frame(5))
            await reader.readexactly(9)
        busy = [await connect() for _ in range(BUSY)]
        for _, other in busy:
            other.write(frame(4, b"much") * 100)
        await until(lambda: b"much" in core.seen)
        writer.write(frame(5))
        await reader.readexactly(9)
        assert core.seen.count(b"much") < BUSY * 100 // 4
        await asyncio.gather(*(other.readexactly(100 * (ANSWER_BYTES + 4)) for other, _ in busy))
        assert core.seen.count(b"much") == BUSY * 100 and server.round_robin.postponed

    serve(core, play, buffer_bytes_max=2 << 20)
    assert max(core.round_bytes) <= ROUND_BYTES + 2 * ANSWER_BYTES + SHORT_BYTES


def test_a_peer_that_reads_nothing_holds_little_more_than_its_limit(serve: Callable[..., Server]) -> None:
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        for _ in range(BUSY):
            reader, writer = await connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(4, b"much") * 1000)
        await until(lambda: len(server.connections) == BUSY and all(one.is_full for one in server.connections))
        await asyncio.sleep(0)
        assert max(one.bytes_held for one in server.connections) < (1 << 20) + ROUND_BYTES + 2 * ANSWER_BYTES

    serve(core, play, buffer_bytes_max=1 << 20)


def test_a_connection_may_close_while_it_waits_for_its_turn(serve: Callable[..., Server]) -> None:
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        for _ in range(BUSY):
            _, writer = await connect()
            writer.write(frame(4, b"much") * 100)
            await writer.drain()
            writer.transport.abort()
        await until(lambda: core.lost == BUSY)
        reader, writer = await connect()
        writer.write(frame(5))
        await reader.readexactly(9)

    serve(core, play)


@contextlib.contextmanager
def blocking_peers(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Connections whose sends reach the server before the loop polls again."""
    (listener,) = server._listeners
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(listener.sockets[0].getsockname())) for _ in range(count)]


def test_reads_that_fill_each_round_do_not_starve_other_connections(serve: Callable[..., Server]) -> None:
    """Two clients with one request in flight each fill all rounds. A pipelining and a new client get answers."""
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        with blocking_peers(server, 5) as (*singles, pipelining, new):
            await until(lambda: len(server.connections) == 5)
            asked: dict[bytes, int] = {}

            def ask() -> None:
                for peer in singles:
                    peer.send(frame(4, b"slow"))
                if not asked:
                    pipelining.send(frame(4, b"slow") * 3 + frame(4, b"last"))
                    asked[b"last"] = core.rounds
                elif server.round_robin.waiting and len(asked) == 1:
                    new.send(frame(3, b"new"))
                    asked[b"new"] = core.rounds
                for body in asked:
                    if body in core.seen:
                        answered.setdefault(body, core.rounds)

            answered: dict[bytes, int] = {}
            core.on_round = ask
            server.rounds.schedule_round()
            await until(lambda: len(answered) == 2)
            core.on_round = lambda: None
            assert answered[b"new"] - asked[b"new"] <= 2
            assert answered[b"last"] - asked[b"last"] <= 6

    serve(core, play, limit_s=3)


def test_the_frame_deadline_does_not_run_while_a_connection_waits_for_its_turn(serve: Callable[..., Server]) -> None:
    """Each client waits ten rounds for its next turn, which is longer than the deadline."""
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        with blocking_peers(server, 11) as peers:
            for peer in peers:
                peer.send(frame(4, b"slow") * 3)
            await until(lambda: core.seen.count(b"slow") == 33 or core.lost > 0)
            assert core.lost == 0

    assert serve(core, play, frame_deadline_s=5 * ROUND_S).closed.slow_frames == 0


def test_an_incomplete_frame_has_its_deadline_after_a_turn_that_ended_early(
    serve: Callable[..., Server],
) -> None:
    core = Core()

    async def play(server: Server, connect: Connect) -> None:
        with blocking_peers(server, 1) as (peer,):
            peer.send(frame(4, b"slow") * 2 + frame(4)[:5])
            await until(lambda: core.lost == 1)
        assert core.seen == [b"slow"] * 2

    assert serve(core, play, frame_deadline_s=0.05).closed.slow_frames == 1
