"""The first bytes of a connection at a port with TLS, before any user is known.

Rules: no error leaves the entrance. A first byte other than that of a handshake means a plain connection: its protocol
gets exactly the bytes of the peer, or none if only encrypted connections are accepted. After the byte of a handshake
no byte reaches a protocol, because an input cannot complete a handshake. The connection always ends with the peer.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import socket
import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from compat.certificates import Authority
from tests.unit.net.secure import server_tls
from wheelmq.net.entrance import HANDSHAKE_BYTE, Entrance, log
from wheelmq.net.server_tls import ServerTls
from wheelmq.net.tls_channel import RECORD_BYTES, TlsChannel
from wheelmq.system.tls import TlsMode

TOKENS = (
    b"\x16", b"\x16\x03\x01", b"\x16\x03\x03", b"\x15\x03\x03\0\x02\x02\x28", b"\x14\x03\x03\0\x01\x01",
    b"\x17\x03\x03", b"\x01\0", b"\x03\x03", b"\x03\x04", b"\x20", b"\0", b"\xff\xff", b"\0\x2b", b"\0\x33",
    b"\0\0\0\x09localhost", b"\0\0\0\x60", b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n", b"GET / HTTP/1.1\r\n",
)  # fmt: skip
END_S = 5.0
"""Time for the server to close a connection after its peer's end."""


class Sink(asyncio.Protocol):
    """Stores the bytes that the entrance gives to the real protocol."""

    def __init__(self) -> None:
        self.received = bytearray()

    def data_received(self, data: bytes) -> None:
        self.received += data


@cache
def _server(mode: TlsMode) -> ServerTls:
    folder = tempfile.TemporaryDirectory(prefix="fuzz-entrance-")
    atexit.register(folder.cleanup)
    return server_tls(Authority(Path(folder.name)).issue("server"), mode)


@cache
def _runner() -> asyncio.Runner:
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def check(data: bytes) -> None:
    """Check the rules for a peer that sends `data` and ends."""
    for step in (1, 7, RECORD_BYTES):
        _check_channel(data, step)
    for mode in (TlsMode.PERMISSIVE, TlsMode.ENFORCING):
        with _quiet():
            sinks = _runner().run(_received(data, mode))
        is_plain = bool(data) and data[0] != HANDSHAKE_BYTE and mode is TlsMode.PERMISSIVE
        assert [bytes(one.received) for one in sinks] == ([data] if is_plain else []), mode


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Log no line for each bad connection. Other tests of the process need the log."""
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _check_channel(data: bytes, step: int) -> None:
    channel = TlsChannel(_server(TlsMode.PERMISSIVE).context)
    with contextlib.suppress(ssl.SSLError):
        for at in range(0, len(data), step):
            channel.feed(memoryview(data)[at : at + step])
            channel.shake()
            assert not channel.is_open, "the handshake is complete"


async def _received(data: bytes, mode: TlsMode) -> list[Sink]:
    """Send `data` over a connection of its own. Returns the protocols that were created for it."""
    loop, sinks, failures = asyncio.get_running_loop(), list[Sink](), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: failures.append(context))

    def make() -> Sink:
        sinks.append(Sink())
        return sinks[-1]

    entrance = Entrance(_server(mode), make)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours:
        await loop.connect_accepted_socket(entrance.accept, theirs)
        async with asyncio.timeout(END_S):
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(ours, data)
                ours.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(ours, RECORD_BYTES):
                    pass
    assert not failures, failures
    assert entrance.waiting == 0
    return sinks
