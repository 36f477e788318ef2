"""asyncio's side of a connection: the events of a socket, and the connection that they reach."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

from wheelmq.formats.disk.message import Host
from wheelmq.net.server_connection import ServerConnection
from wheelmq.net.server_context import ServerContext


class ConnectionProtocol(asyncio.BufferedProtocol):
    """Creates the connection of a socket, unless the server `is_crowded`, and passes it the events of the socket."""

    def __init__(self, context: ServerContext[ServerConnection], is_crowded: Callable[[], bool]) -> None:
        self._context = context
        self._is_crowded = is_crowded
        self._connection: ServerConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        context, transport = self._context, cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None or self._is_crowded():
            transport.abort()
            return
        transport.set_write_buffer_limits(high=context.limits.buffer_bytes_max)
        with contextlib.suppress(OSError):
            context.sockets.apply(transport.get_extra_info("socket"))
        address, port = peer[:2]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        host = Host(socket.inet_pton(family, address.partition("%")[0]), port)
        connection = self._connection = ServerConnection(context, transport, host)
        context.connections[connection] = None
        if context.memory_guard.is_on:
            connection.rest()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._connection is not None
        return self._connection.reader.received.room()

    def buffer_updated(self, nbytes: int) -> None:
        connection = self._connection
        assert connection is not None
        reader = connection.reader
        reader.serve(connection, reader.received.add(nbytes))

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        connection, context = self._connection, self._context
        if connection is None:
            return
        connection.end(exc)
        if connection in context.connections:
            del context.connections[connection]
            context.core.connection_lost(connection)
            context.rounds.schedule_tick()
