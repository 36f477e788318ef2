"""The port for requests of a simulated process: bytes of the network go to its core, and its answers go back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from wheelmq.formats.disk.message import Host
from wheelmq.testing.connection import FakeConnection


class PeerConnection(FakeConnection):
    """The connection of another broker. The network carries its answers."""

    def __init__(self, peer: Host, transport: asyncio.Transport) -> None:
        super().__init__(peer)
        self._transport = transport

    def flush(self) -> None:
        """Send the queued frames."""
        self._transport.write(b"".join(self._queued))
        self._queued.clear()

    def close(self) -> None:
        if self.is_open:
            super().close()
            self._transport.close()

    def drop(self) -> None:
        super().drop()
        self._transport.abort()


class RequestProtocol(asyncio.Protocol):
    """One accepted connection of a core."""

    def __init__(
        self,
        opened: Callable[[asyncio.Transport], PeerConnection],
        received: Callable[[bytes, PeerConnection], None],
        lost: Callable[[PeerConnection], None],
    ) -> None:
        self._opened, self._received, self._lost = opened, received, lost
        self._connection: PeerConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection = self._opened(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        if self._connection is not None and self._connection.is_open:
            self._received(data, self._connection)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._lost(self._connection)
            self._connection = None


def host_of(transport: asyncio.BaseTransport) -> Host:
    """Return the peer of a simulated connection."""
    name, port = transport.get_extra_info("peername")
    return Host(bytes(int(part) for part in name.split(".")), port)
