"""Writes to a socket, and the log line of a failed one (RocketMQ: "process request over, but response failed")."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Final

from wheelmq.formats.wire.command_text import HEAD_BYTES, frame_text
from wheelmq.system.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from wheelmq.net.server import ServerConnection


_ACKNOWLEDGED: Final = struct.Struct("@120xQ")
"""`tcpi_bytes_acked` in Linux's `struct tcp_info`."""


def write(log: RateLimitedLog, connection: ServerConnection, transport: asyncio.Transport, frames: bytes) -> None:
    """Write frames. A failure ends only this connection, not the round, which also writes to others."""
    connection.last_answer = frames[:HEAD_BYTES]
    try:
        transport.write(frames)
    except Exception as error:
        warn_of_failed_write(log, connection, error)
        transport.abort()


def warn_of_lost_answers(
    log: RateLimitedLog,
    connection: ServerConnection,
    transport: asyncio.Transport,
    written_bytes: int,
    error: Exception,
) -> None:
    """Log that a connection failed if the peer's system has not acknowledged all answers.

    A killed client resets its connection. The reset alone is no failure, because the client may have read all
    answers.
    """
    acknowledged = _bytes_acknowledged(transport)
    if acknowledged is None or acknowledged < written_bytes:
        warn_of_failed_write(log, connection, error)


def _bytes_acknowledged(transport: asyncio.Transport) -> int | None:
    """Return the bytes that the peer's system has acknowledged, or None if the count is unavailable."""
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
        return int(_ACKNOWLEDGED.unpack(info)[0])
    except (OSError, AttributeError, struct.error):
        return None


def warn_of_failed_write(log: RateLimitedLog, connection: ServerConnection, error: Exception) -> None:
    """Log that answers may not have arrived, with the last request and the last answer of the connection."""
    if not connection.last_answer:
        return  # nothing was written
    request = "a send"
    if not connection.sends:
        request = "code={} opaque={}".format(*connection.last_request or ("?", "?"))
    log.warn(
        "failed write",
        "the connection to %s failed: %s: answers may not have arrived. Last request: %s; last answer: %s",
        connection.peer,
        error,
        request,
        frame_text(connection.last_answer),
    )
