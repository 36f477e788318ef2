"""Turns of connections over real sockets: how much a round serves, and who waits for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.unit.net.test_limits import Connect, Frames, frame, serve
from tests.unit.net.test_server import until
from wheelmq.net.server import Server, ServerConnection
from wheelmq.net.turns import ROUND_BYTES, SHORT_BYTES

__all__ = ["serve"]
ANSWER_BYTES = 256 << 10
BUSY = 12


class Core(Frames):
    """Answers `much` with many bytes, as the broker does: until the connection must wait."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = lambda body: frame(ANSWER_BYTES) if body == b"much" else frame(5)
        self.round_bytes = [0]

    def take(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        at = 0
        while end - at >= 4 and not connection.must_wait:
            stop = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
            if stop > end:
                break
            body = bytes(buffer[at + 4 : stop])
            self.seen.append(body)
            self.round_bytes[-1] += len(self.answer(body))
            connection.send(self.answer(body))
            at = stop
        return at

    def end_round(self) -> bool:
        self.round_bytes.append(0)
        return super().end_round()


def test_a_client_with_one_request_does_not_wait_for_those_with_many(serve: Callable[..., Server]) -> None:
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
        assert core.seen.count(b"much") == BUSY * 100 and server.turns.postponed

    serve(core, play, buffer_bytes_max=2 << 20)
    assert max(core.round_bytes) <= ROUND_BYTES + 2 * ANSWER_BYTES + SHORT_BYTES


def test_a_peer_that_reads_nothing_holds_little_more_than_its_bound(serve: Callable[..., Server]) -> None:
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


def test_a_connection_that_waits_for_its_turn_may_go(serve: Callable[..., Server]) -> None:
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
