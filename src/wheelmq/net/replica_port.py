"""The HA port of a master, on which its replicas connect (RocketMQ: AcceptSocketService).

It accepts plain connections and TLS, as the port for clients does. The first byte of a plain replica is 0, because it
begins a log position or the state of a handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from wheelmq.net.listening import OpenPort, listen
from wheelmq.net.server_tls import ServerTls

log = logging.getLogger(__name__)

WRITE_BYTES_HIGH: Final = 2 << 20
"""Bytes that wait for a replica above which the master reads no more of its log for it."""
CONNECTIONS_MAX: Final = 64
"""Connections of replicas, and as many that wait for their first byte. More come only from other programs."""
BACKLOG: Final = 100
"""Connections that the system holds until they are accepted."""


class ReplicaSink(Protocol):
    """Serves replicas, without sockets."""

    def open_replica(self, transport: ReplicaConnection, peer: str, /) -> Any | None:
        """Take a connection. Returns its link, or None to close it."""

    def receive_of_replica(self, link: Any, data: bytes, /) -> None: ...

    def lose_replica(self, link: Any, /) -> None: ...


class ReplicaConnection(asyncio.Protocol):
    """The socket of one replica."""

    def __init__(self, port: ReplicaPort) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._link: Any | None = None
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None or len(self._port.connections) >= CONNECTIONS_MAX:
            transport.abort()
            return
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        self._link = self._port.sink.open_replica(self, f"{peer[0]}:{peer[1]}")
        if self._link is None:
            transport.abort()
            return
        self._port.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._link is not None:
            self._port.sink.receive_of_replica(self._link, data)
            self._port.after_data()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.connections.discard(self)
        if self._link is not None:
            self._port.sink.lose_replica(self._link)
            self._link = None

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._port.after_pause()

    # The core's side -----------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether enough bytes wait for the replica."""
        return self._is_paused or self._transport is None or self._transport.is_closing()

    def write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class ReplicaPort:
    """Listens for replicas."""

    def __init__(
        self, sink: ReplicaSink, schedule_round: Callable[[], None], schedule_tick: Callable[[], None]
    ) -> None:
        """Create a closed port. Received bytes schedule a round, and a socket that takes bytes again a tick."""
        self.sink = sink
        self.after_data = schedule_round
        self.after_pause = schedule_tick
        self.connections: set[ReplicaConnection] = set()
        self._listener: OpenPort | None = None

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Listen on `port`, or on a free port if it is 0. Returns the port. Raises OSError, OverflowError.

        With `tls` its mode decides which replicas may connect without encryption.
        """
        self._listener = await listen(
            lambda: ReplicaConnection(self), host, port, tls=tls, backlog=BACKLOG, waiting_max=CONNECTIONS_MAX
        )
        return self._listener.port

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)
