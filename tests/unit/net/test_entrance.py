"""Plain connections and TLS on one port, over real sockets and with misbehaving peers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import weakref
from typing import Any, cast

import pytest

from compat.certificates import Authority, Pair
from tests.unit.net import secure
from tests.unit.net.secure import Echo, Play, client_context, close, connect, echo, entrance_of, server_tls, until
from wheelmq.net import entrance as module
from wheelmq.net.connection_protocol import ConnectionProtocol
from wheelmq.net.limits import Limits
from wheelmq.net.listening import listen, stream_factory
from wheelmq.net.server import Server
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.tls import ClientAuth, TlsMode, TlsVersion

BIG = bytes(range(256)) * (8 << 10)


def serve(loop: str, tls: ServerTls | None, play: Play, **limits: Any) -> Echo:
    """Play against an echo server. Returns its core."""
    core = Echo()

    async def work() -> None:
        server = Server(core, limits=Limits(**limits), tls=tls)
        port = await server.listen("127.0.0.1", 0)
        try:
            await play(server, port)
        finally:
            await server.close()
            await until(lambda: not server.connections)

    secure.run(loop, work())
    return core


@pytest.mark.parametrize("mode", TlsMode)
@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_each_mode_with_each_kind_of_peer(
    loop: str, authority: Authority, pair: Pair, mode: TlsMode, is_secure: bool
) -> None:
    is_accepted = mode is TlsMode.PERMISSIVE or is_secure == (mode is TlsMode.ENFORCING)

    async def play(server: Server, port: int) -> None:
        try:
            peer = await connect(port, client_context(authority) if is_secure else None)
        except (ssl.SSLError, ConnectionError):
            assert not is_accepted
            return
        if is_accepted:
            assert await echo(peer, BIG) == BIG
            counts = entrance_of(server).counts
            assert (counts.tls, counts.plain) == (int(is_secure), int(not is_secure))
        else:
            peer[1].write(b"\0\0\0\1")
            assert await peer[0].read() == b""
            assert entrance_of(server).counts.rejected == 1
        await close(peer)

    core = serve(loop, server_tls(pair, mode), play)
    # a server with TLS switched off takes the handshake for a frame; this core echoes it
    assert bool(core.reads) == (is_accepted or mode is TlsMode.DISABLED)


def test_without_a_certificate_all_connections_are_plain(loop: str) -> None:
    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        assert await echo(peer, b"\x16 is the first byte") == b"\x16 is the first byte"
        assert entrance_of(server).waiting == 0
        await close(peer)

    serve(loop, None, play)


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (b"\0\0\1\0{", "it speaks no TLS, and tls_mode is enforcing: use TLS in the client"),
        (b"PROXY TCP4 ", "the peer begins with a header of the PROXY protocol, which is not read: switch it off "),
        (b"\r\n\r\n\0\r\nQUIT", "the peer begins with a header of the PROXY protocol, which is not read: "),
    ],
)
def test_the_log_names_the_reason_to_close_a_plain_connection(
    loop: str, pair: Pair, first: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        peer[1].write(first)
        assert await peer[0].read() == b""
        await close(peer)

    serve(loop, server_tls(pair, TlsMode.ENFORCING), play)
    (line,) = caplog.messages
    assert line.startswith("closing 127.0.0.1:") and text in line


def test_a_plain_connection_keeps_the_transport_of_its_socket(loop: str, pair: Pair) -> None:
    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        assert await echo(peer) == b"hello"
        (connection,) = server.connections
        transport = connection._writer._transport
        assert isinstance(transport.get_protocol(), ConnectionProtocol)
        assert "wheelmq" not in type(transport).__module__
        await close(peer)

    serve(loop, server_tls(pair), play)


def test_the_address_of_an_encrypted_peer_is_that_of_its_socket(loop: str, authority: Authority, pair: Pair) -> None:
    async def play(server: Server, port: int) -> None:
        peer = await connect(port, client_context(authority))
        await echo(peer)
        (connection,) = server.connections
        assert connection.peer.port == peer[1].get_extra_info("sockname")[1]
        await close(peer)

    serve(loop, server_tls(pair), play)


@pytest.mark.parametrize("first", [b"", b"\x16", b"\x16\x03\x01\x02"], ids=["nothing", "one byte", "a part"])
def test_a_peer_that_stalls_is_closed_at_the_deadline(loop: str, pair: Pair, first: bytes) -> None:
    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        peer[1].write(first)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionResetError):
            assert await peer[0].read() == b""
            raise ConnectionResetError
        assert asyncio.get_running_loop().time() - began_s >= 0.15
        counts = entrance_of(server).counts
        assert (counts.late, counts.failed, counts.tls) == (1, 0, 0)
        assert entrance_of(server).waiting == 0
        await close(peer)

    assert serve(loop, server_tls(pair), play, frame_deadline_s=0.2).reads == []


def test_a_peer_that_sends_a_byte_now_and_then_is_closed_at_the_deadline(loop: str, pair: Pair) -> None:
    """Each byte of the handshake comes in time, and the whole does not."""
    hello = client_hello()

    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        try:
            for at in range(len(hello)):
                peer[1].write(hello[at : at + 1])
                await asyncio.sleep(0.02)
                if peer[0].at_eof() or peer[1].is_closing():
                    break
        except ConnectionError:
            pass
        assert entrance_of(server).counts.late == 1
        await close(peer)

    serve(loop, server_tls(pair), play, frame_deadline_s=0.2)


def client_hello() -> bytes:
    """Return the first bytes of a client with TLS."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "rest",
    [bytes(400), b"\x03\x01" + bytes(400), b"\x03\x01\x40\x00" + b"x" * 20_000, client_hello()[1:60] + b"x" * 1000],
    ids=["no version", "no length", "a long record", "a broken hello"],
)
def test_garbage_after_the_first_byte_ends_the_connection(
    loop: str, pair: Pair, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def play(server: Server, port: int) -> None:
        peer = await connect(port)
        peer[1].write(b"\x16" + rest)
        with contextlib.suppress(ConnectionError):
            await peer[0].read()  # an alert, or nothing
        await until(lambda: entrance_of(server).counts.failed == 1)
        assert entrance_of(server).waiting == 0
        await close(peer)

    assert serve(loop, server_tls(pair), play).reads == []
    assert [one for one in caplog.messages if "its TLS handshake failed: " in one]


def test_garbage_after_the_handshake_ends_the_connection(loop: str, authority: Authority, pair: Pair) -> None:
    async def play(server: Server, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as raw:

            def shake_and_break() -> bytes:
                with client_context(authority).wrap_socket(raw, server_hostname="localhost") as client:
                    client.sendall(b"x")
                    assert client.recv(1) == b"x"
                    with socket.socket(fileno=client.detach()) as bare:
                        bare.sendall(b"no record of TLS" * 100)
                        bare.settimeout(secure.LIMIT_S)
                        found = b""
                        while chunk := _received(bare):
                            found += chunk
                        return found

            await asyncio.to_thread(shake_and_break)
        await until(lambda: not server.connections)

    assert serve(loop, server_tls(pair), play).lost == 1


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


class TestLimits:
    def test_connections_that_wait_count_against_the_limit(self, loop: str, pair: Pair) -> None:
        async def play(server: Server, port: int) -> None:
            served = await connect(port)
            assert await echo(served) == b"hello"
            silent = [await connect(port) for _ in range(3)]
            await until(lambda: entrance_of(server).waiting == 3)
            excess = await connect(port)
            with contextlib.suppress(ConnectionError):
                assert await excess[0].read() == b""
            assert server.closed.rejected == 1
            silent[0][1].write(b"now")
            assert await silent[0][0].readexactly(3) == b"now"
            for peer in (served, excess, *silent):
                await close(peer)

        serve(loop, server_tls(pair), play, connections_max=4)

    def test_many_stalled_handshakes_leave_room_for_others_and_end(
        self, loop: str, authority: Authority, pair: Pair
    ) -> None:
        hello, count = client_hello(), 300

        async def play(server: Server, port: int) -> None:
            stalled = [await connect(port) for _ in range(count)]
            for peer in stalled:
                peer[1].write(hello)  # and no second message follows
            await until(lambda: entrance_of(server).waiting == count)
            good = await connect(port, client_context(authority))
            assert await echo(good) == b"hello"
            await until(lambda: entrance_of(server).waiting == 0)
            assert entrance_of(server).counts.late == count
            assert await echo(good) == b"hello"
            for peer in (*stalled, good):
                await close(peer)

        serve(loop, server_tls(pair), play, frame_deadline_s=3.0)

    def test_handshakes_run_in_slices_between_the_rounds(
        self, loop: str, authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A slice that is over at once continues one handshake in each pass of the loop."""
        monkeypatch.setattr(module, "SLICE_S", 0.0)

        async def play(server: Server, port: int) -> None:
            context = client_context(authority)
            peers = await asyncio.gather(*(connect(port, context) for _ in range(20)))
            for peer in peers:
                assert await echo(peer) == b"hello"
                await close(peer)
            assert entrance_of(server).counts.tls == 20

        serve(loop, server_tls(pair), play)

    def test_no_object_of_a_closed_connection_stays(self, loop: str, authority: Authority, pair: Pair) -> None:
        async def play(server: Server, port: int) -> None:
            peer = await connect(port, client_context(authority))
            await echo(peer)
            (connection,) = server.connections
            left = [weakref.ref(connection), weakref.ref(cast(Any, connection._writer._transport))]
            silent = await connect(port)
            await until(lambda: entrance_of(server).waiting == 1)
            left += map(weakref.ref, entrance_of(server)._waiting)
            del connection
            for one in (peer, silent):
                await close(one)
            await until(lambda: not server.connections and not entrance_of(server).waiting)
            await asyncio.sleep(0.01)
            gc.collect()
            assert [ref() for ref in left] == [None] * 3

        serve(loop, server_tls(pair), play)

    def test_a_stop_closes_connections_that_wait(self, loop: str, pair: Pair) -> None:
        async def work() -> None:
            server = Server(Echo(), tls=server_tls(pair))
            peer = await connect(await server.listen("127.0.0.1", 0))
            await until(lambda: entrance_of(server).waiting == 1)
            await server.close()
            with contextlib.suppress(ConnectionError):
                assert await peer[0].read() == b""
            await close(peer)
            await until(lambda: entrance_of(server).waiting == 0)

        secure.run(loop, work())


class TestClientCertificates:
    @pytest.mark.parametrize(
        ("auth", "kind", "is_accepted"),
        [
            (ClientAuth.NONE, "none", True),
            (ClientAuth.NONE, "good", True),
            (ClientAuth.OPTIONAL, "none", True),
            (ClientAuth.OPTIONAL, "good", True),
            (ClientAuth.OPTIONAL, "foreign", False),
            (ClientAuth.REQUIRE, "good", True),
            (ClientAuth.REQUIRE, "none", False),
            (ClientAuth.REQUIRE, "foreign", False),
            (ClientAuth.REQUIRE, "expired", False),
        ],
    )
    def test_who_is_accepted(
        self,
        loop: str,
        authority: Authority,
        pair: Pair,
        tmp_path_factory: pytest.TempPathFactory,
        auth: ClientAuth,
        kind: str,
        is_accepted: bool,
    ) -> None:
        foreign = Authority(tmp_path_factory.mktemp("foreign"), "Another authority")
        own = {
            "none": None,
            "good": authority.issue("client"),
            "foreign": foreign.issue("client"),
            "expired": authority.issue("old-client", days=-1),
        }[kind]

        async def play(server: Server, port: int) -> None:
            try:
                peer = await connect(port, client_context(authority, own))
                assert await echo(peer) == b"hello"  # TLS 1.3 reports the rejection with the first read
            except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
                assert not is_accepted
                assert entrance_of(server).counts.failed == 1
                return
            assert is_accepted
            (connection,) = server.connections
            assert bool(connection._writer._transport.get_extra_info("peercert")) == (
                kind == "good" and auth is not ClientAuth.NONE
            )
            await close(peer)

        core = serve(loop, server_tls(pair, client_auth=auth, ca_file=authority.file), play)
        assert bool(core.reads) == is_accepted

    def test_the_log_names_the_remedy(
        self, loop: str, authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)

        async def play(server: Server, port: int) -> None:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await echo(await connect(port, client_context(authority)))

        serve(loop, server_tls(pair, client_auth=ClientAuth.REQUIRE, ca_file=authority.file), play)
        (line,) = [one for one in caplog.messages if "handshake failed" in one]
        assert line.endswith(
            "PEER_DID_NOT_RETURN_A_CERTIFICATE. tls_client_auth is require: give the client a certificate"
        )


class TestVersionsAndCiphers:
    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    @pytest.mark.parametrize("least", TlsVersion)
    def test_the_least_version(
        self, loop: str, authority: Authority, pair: Pair, version: ssl.TLSVersion, least: TlsVersion
    ) -> None:
        context = client_context(authority)
        context.minimum_version = context.maximum_version = version
        is_accepted = version >= least.number

        async def play(server: Server, port: int) -> None:
            if not is_accepted:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await connect(port, context)
                return
            peer = await connect(port, context)
            assert await echo(peer, BIG) == BIG
            await close(peer)

        serve(loop, server_tls(pair, min_version=least), play)

    def test_the_chosen_cipher_is_used(self, loop: str, authority: Authority, pair: Pair) -> None:
        context = client_context(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        chosen = "ECDHE-ECDSA-AES256-GCM-SHA384"

        async def play(server: Server, port: int) -> None:
            peer = await connect(port, context)
            assert peer[1].get_extra_info("cipher")[0] == chosen
            await close(peer)

        serve(loop, server_tls(pair, ciphers=chosen), play)


class TestListen:
    """`listen`, for protocols other than that of the broker."""

    def test_connections_that_wait_are_limited(self, loop: str, pair: Pair) -> None:
        async def work() -> None:
            factory = stream_factory(lambda reader, writer: writer.close())
            listener = await listen(factory, "127.0.0.1", 0, tls=server_tls(pair), waiting_max=3)
            silent = [await connect(listener.port) for _ in range(3)]
            await until(lambda: listener.entrance.waiting == 3)
            excess = await connect(listener.port)
            with contextlib.suppress(ConnectionError):
                assert await excess[0].read() == b""
            assert listener.entrance.waiting == 3
            listener.close()
            for peer in (*silent, excess):
                await close(peer)
            await until(lambda: listener.entrance.waiting == 0)

        secure.run(loop, work())

    def test_streams_with_and_without_tls(self, loop: str, authority: Authority, pair: Pair) -> None:
        async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while chunk := await reader.read(1000):
                writer.write(chunk)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        async def work() -> None:
            listener = await listen(stream_factory(reflect), "127.0.0.1", 0, tls=server_tls(pair))
            for context in (None, client_context(authority)):
                peer = await connect(listener.port, context)
                assert await echo(peer, BIG) == BIG
                if context is None:
                    peer[1].write_eof()
                    assert await peer[0].read() == b""
                await close(peer)
            assert listener.entrance.counts.tls == 1
            listener.close()

        secure.run(loop, work())
