"""An encrypted connection has the limits of a plain one: memory, pauses, and the order of a close."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import pytest

from compat.certificates import Authority, Pair
from tests.unit.net import secure
from tests.unit.net.secure import Echo, client_context, close, connect, echo, server_tls, until
from wheelmq.net.limits import Limits, SocketOptions
from wheelmq.net.server import Server
from wheelmq.net.server_connection import ServerConnection
from wheelmq.net.tls_channel import RECORD_BYTES, TlsChannel
from wheelmq.net.tls_transport import READ_BYTES

MIB = 1 << 20
SMALL_SOCKETS = SocketOptions(send_bytes=16 << 10, receive_bytes=16 << 10)


def serve(loop: str, core: Any, pair: Pair, play: Any, sockets: SocketOptions | None = None, **limits: Any) -> None:
    """Run `play` with a server over `core`."""

    async def work() -> None:
        server = Server(core, limits=Limits(**limits), sockets=sockets, tls=server_tls(pair))
        port = await server.listen("127.0.0.1", 0)
        await play(server, port)
        await server.close()
        await until(lambda: not server.connections)

    secure.run(loop, work())


async def connect_slowly(port: int, context: ssl.SSLContext) -> secure.Peer:
    """Connect with small buffers, so that an unread answer stays with the server."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=raw, ssl=context, server_hostname="localhost", limit=1024)


async def the_one(server: Server) -> ServerConnection:
    """Return the only connection, once it is there."""
    await until(lambda: len(server.connections) == 1)
    (connection,) = server.connections
    return connection


def test_all_bytes_that_wait_for_a_peer_are_counted(loop: str, authority: Authority, pair: Pair) -> None:
    core = Echo(times=4 * MIB)

    async def play(server: Server, port: int) -> None:
        peer = await connect_slowly(port, client_context(authority))
        peer[1].write(b"x")
        connection = await the_one(server)
        await until(lambda: connection.bytes_unread > 0)
        assert connection.bytes_unread > 3 * MIB
        drained = connection.bytes_drained
        assert (await peer[0].readexactly(4 * MIB)) == b"x" * 4 * MIB
        await until(lambda: connection.bytes_unread == 0)
        assert connection.bytes_drained > drained + 3 * MIB
        await close(peer)

    serve(loop, core, pair, play, SMALL_SOCKETS)


def test_the_bytes_that_leave_never_seem_to_decrease(loop: str, authority: Authority, pair: Pair) -> None:
    """The bytes of the encryption must not look like a peer that reads, or like one that does not."""
    core = Echo()

    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))
        connection = await the_one(server)
        seen = [connection.bytes_drained]
        for size in (1, 100, 50_000):
            assert len(await echo(peer, b"x" * size)) == size
            seen.append(connection.bytes_drained)
            assert seen[-1] - seen[-2] >= size
        await close(peer)

    serve(loop, core, pair, play)


def test_a_peer_that_does_not_read_is_not_served_further(loop: str, authority: Authority, pair: Pair) -> None:
    core = Echo(times=MIB)

    async def play(server: Server, port: int) -> None:
        peer = await connect_slowly(port, client_context(authority))
        connection = await the_one(server)
        sent = 0
        while not connection.is_stalled:
            peer[1].write(b"x")
            await peer[1].drain()
            sent += 1
            await asyncio.sleep(0.001)
        reads = len(core.reads)
        for _ in range(50):
            peer[1].write(b"y")
        await asyncio.sleep(0.05)
        assert len(core.reads) == reads
        assert (await peer[0].readexactly(sent * MIB)) == b"x" * sent * MIB
        assert (await peer[0].readexactly(50 * MIB)) == b"y" * 50 * MIB
        await close(peer)

    serve(loop, core, pair, play, SMALL_SOCKETS, buffer_bytes_max=2 * MIB)


def test_a_server_that_pauses_keeps_one_read_at_most(loop: str, authority: Authority, pair: Pair) -> None:
    core = Echo()

    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))
        connection = await the_one(server)
        assert await echo(peer) == b"hello"
        connection.rest()
        body = bytes(range(256)) * (4 * MIB // 256)
        peer[1].write(body)
        await asyncio.sleep(0.05)
        transport: Any = connection._writer._transport
        assert len(transport._left) <= READ_BYTES
        assert len(core.reads) == 1
        connection.go_on()
        assert await peer[0].readexactly(len(body)) == body
        await close(peer)

    serve(loop, core, pair, play)


def test_pauses_in_the_midst_of_a_stream_lose_and_repeat_nothing(loop: str, authority: Authority, pair: Pair) -> None:
    class Pausing(Echo):
        def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
            taken = super().receive(connection, buffer, end)
            connection.rest()
            asyncio.get_running_loop().call_soon(connection.go_on)
            return taken

    core = Pausing()
    body = bytes(range(256)) * (8 * MIB // 256)

    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))

        async def send() -> None:
            peer[1].write(body)
            await peer[1].drain()

        sending = asyncio.create_task(send())
        assert await peer[0].readexactly(len(body)) == body
        await sending
        await close(peer)

    serve(loop, core, pair, play)
    assert len(core.reads) > 10


def test_the_memory_limit_closes_peers_that_do_not_read(loop: str, authority: Authority, pair: Pair) -> None:
    core = Echo(times=8 * MIB)

    async def play(server: Server, port: int) -> None:
        context = client_context(authority)
        peers = [await connect_slowly(port, context) for _ in range(4)]
        for peer in peers:
            peer[1].write(b"x")
        await until(lambda: server.memory_guard.closed > 0)
        assert server.memory_guard.closed < 4
        for peer in peers:
            peer[1].transport.abort()

    serve(loop, core, pair, play, SMALL_SOCKETS, bytes_in_flight_max=24 * MIB, buffer_bytes_max=16 * MIB)


def test_a_peer_gets_the_answers_queued_before_the_close(loop: str, authority: Authority, pair: Pair) -> None:
    class Closing(Echo):
        def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
            taken = super().receive(connection, buffer, end)
            connection.close()
            return taken

    core = Closing(times=8 * MIB)

    async def play(server: Server, port: int) -> None:
        context = client_context(authority)

        def read_to_the_end() -> int:
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                context.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as client,
            ):
                client.sendall(b"x")
                return sum(iter(lambda: len(client.recv(1 << 16)), 0))

        assert await asyncio.to_thread(read_to_the_end) == 8 * MIB

    serve(loop, core, pair, play)
    assert core.lost == 1


@pytest.mark.parametrize("is_orderly", [True, False], ids=["close_notify", "reset"])
def test_the_end_of_a_peer_is_seen_once(loop: str, authority: Authority, pair: Pair, is_orderly: bool) -> None:
    core = Echo()

    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))
        await echo(peer)
        if is_orderly:
            await close(peer)
        else:
            peer[1].transport.abort()
        await until(lambda: core.lost == 1)

    serve(loop, core, pair, play)
    assert core.lost == 1


def test_the_last_bytes_before_the_end_of_a_peer_are_served(loop: str, authority: Authority, pair: Pair) -> None:
    core = Echo()

    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))
        peer[1].write(b"x" * 100_000)
        await close(peer)
        await until(lambda: core.lost == 1)

    serve(loop, core, pair, play)
    assert sum(core.reads) == 100_000


class TestChannel:
    """The channel without sockets."""

    def open(self, authority: Authority, pair: Pair) -> tuple[TlsChannel, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """Return a channel and its client, with the client's two streams, after the handshake."""
        channel = TlsChannel(server_tls(pair).context)
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(authority).wrap_bio(to_client, to_server, server_hostname="localhost")
        while not channel.is_open:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            channel.feed(memoryview(to_server.read()))
            to_client.write(channel.shake())
        return channel, client, to_client, to_server

    def test_many_records_fill_one_room(self, authority: Authority, pair: Pair) -> None:
        channel, client, _, to_server = self.open(authority, pair)
        for i in range(50):
            client.write(b"%04d" % i)
        channel.feed(memoryview(to_server.read()))
        room = memoryview(bytearray(1000))
        assert channel.read_into(room) == 200
        assert bytes(room[:200]) == b"".join(b"%04d" % i for i in range(50))

    def test_a_room_that_is_too_small_is_filled_again(self, authority: Authority, pair: Pair) -> None:
        channel, client, _, to_server = self.open(authority, pair)
        client.write(bytes(range(100)))
        channel.feed(memoryview(to_server.read()))
        room, found = memoryview(bytearray(7)), b""
        while count := channel.read_into(room):
            found += bytes(room[:count])
        assert found == bytes(range(100))

    def test_every_split_of_a_stream_gives_the_same_bytes(self, authority: Authority, pair: Pair) -> None:
        channel, client, _, to_server = self.open(authority, pair)
        room = memoryview(bytearray(1000))
        for step in (1, 2, 3, 7, 50):
            client.write(b"abc" * 30)
            client.write(b"defg")
            data, found = to_server.read(), b""
            for at in range(0, len(data), step):
                channel.feed(memoryview(data)[at : at + step])
                found += bytes(room[: channel.read_into(room)])
            assert found == b"abc" * 30 + b"defg"

    def test_the_counts_are_those_of_the_bytes(self, authority: Authority, pair: Pair) -> None:
        channel, client, to_client, _ = self.open(authority, pair)
        shaken = channel.sealed_bytes
        assert shaken > 0
        size = 3 * RECORD_BYTES + 5
        sealed = channel.seal(bytes(size))
        assert (channel.plain_bytes, channel.sealed_bytes - shaken) == (size, len(sealed))
        to_client.write(sealed)
        assert sum(len(client.read(RECORD_BYTES)) for _ in range(4)) == size

    def test_the_end_of_each_side(self, authority: Authority, pair: Pair) -> None:
        channel, client, to_client, to_server = self.open(authority, pair)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        channel.feed(memoryview(to_server.read()))
        assert channel.read_into(memoryview(bytearray(10))) == 0
        assert channel.has_ended
        to_client.write(channel.end())
        client.unwrap()
