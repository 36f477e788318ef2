"""Parts of the tests of TLS: both event loops, an echo server, and clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvloop

from compat.certificates import Authority, Pair
from wheelmq.net.entrance import Entrance
from wheelmq.net.server import Server
from wheelmq.net.server_connection import ServerConnection
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.clock import SystemClock
from wheelmq.system.tls import TlsMode
from wheelmq.system.tls_server import ServerTlsOptions

LIMIT_S: Final = 20.0
"""A test that waits longer has failed."""
LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Play = Callable[[Server, int], Awaitable[None]]


class Echo:
    """A core that sends back all bytes, each byte `times` times."""

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.lost = 0
        self.reads: list[int] = []

    def receive(self, connection: ServerConnection, buffer: memoryview, end: int) -> int:
        self.reads.append(end)
        connection.send(bytes(buffer[:end]) * self.times)
        return end

    def connection_lost(self, connection: ServerConnection) -> None:
        self.lost += 1

    def end_round(self) -> bool:
        return False

    def tick(self, *, by_event: bool = True) -> None: ...

    def next_tick_ms(self) -> int | None:
        return None


def run(loop: str, work: Awaitable[None]) -> None:
    """Run `work` on an event loop, within LIMIT_S."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(limited())


def server_tls(pair: Pair, mode: TlsMode = TlsMode.PERMISSIVE, **options: Any) -> ServerTls:
    files = ServerTlsOptions(certificate_file=pair.certificate, key_file=pair.key, **options)
    return ServerTls(files, lambda: mode, clock=SystemClock())


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts `authority`. `pair` is its own certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


async def connect(port: int, context: ssl.SSLContext | None = None, name: str = "localhost") -> Peer:
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=None if context is None else name
    )


async def close(peer: Peer) -> None:
    peer[1].close()
    with contextlib.suppress(OSError):  # the server may have closed it
        await peer[1].wait_closed()


async def echo(peer: Peer, data: bytes = b"hello") -> bytes:
    """Send `data`, and return what comes back."""
    peer[1].write(data)
    return await peer[0].readexactly(len(data))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds."""
    while not condition():
        await asyncio.sleep(0.001)


def entrance_of(server: Server) -> Entrance:
    return server._entrance


def replace(source: Pair, target: Pair) -> None:
    """Put the files of `source` in the place of those of `target`, each in one step."""
    for old, new in ((target.certificate, source.certificate), (target.key, source.key)):
        copy_over(new, old)


def copy_over(source: Path, target: Path) -> None:
    fresh = target.with_suffix(".copy")
    fresh.write_bytes(source.read_bytes())
    fresh.replace(target)
