"""Listen on a port for any protocol, plain or with TLS by the first byte of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from wheelmq.net.entrance import Entrance, Factory
from wheelmq.net.server_tls import ServerTls

BACKLOG: Final = 1024
WAITING_MAX: Final = 1000
"""Connections that may wait for their first byte or their handshake. Further ones are closed at once."""
STREAM_BYTES: Final = 64 << 10


class OpenPort:
    """A port that accepts connections, from `listen` to `close`."""

    def __init__(self, server: asyncio.Server, entrance: Entrance) -> None:
        self._server = server
        self.entrance = entrance

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections, and close those that have no protocol yet."""
        self._server.close()
        self.entrance.close()

    async def wait_closed(self) -> None:
        """Wait until the port is closed."""
        await self._server.wait_closed()


async def listen(
    factory: Factory,
    host: str,
    port: int,
    *,
    tls: ServerTls | None = None,
    backlog: int = BACKLOG,
    waiting_max: int = WAITING_MAX,
) -> OpenPort:
    """Listen on `host` and `port`; the system chooses the port if it is 0. Raises OSError.

    `factory` creates the protocol of each connection. With `tls` the mode decides which connections may be plain. The
    caller starts and stops the watch over the certificate files, because several ports share one `ServerTls`.
    """
    loop = asyncio.get_running_loop()
    entrance = Entrance(tls, factory, is_full=lambda: entrance.waiting >= waiting_max)
    return OpenPort(await loop.create_server(entrance.accept, host, port, backlog=backlog), entrance)


def stream_factory(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any], *, limit: int = STREAM_BYTES
) -> Factory:
    """Return a factory for `listen` that serves each connection as `asyncio.start_server` does."""
    loop = asyncio.get_running_loop()

    def create() -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit, loop), serve, loop)

    return create
