"""Writes to a socket, and the log line of a failed one (RocketMQ: "process request over, but response failed")."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final, Protocol

from wheelmq.formats.disk.message import Host
from wheelmq.formats.wire.command_text import HEAD_BYTES, frame_text
from wheelmq.system.rate_limited_log import RateLimitedLog

TLS_OVERHEAD: Final = "tls_overhead_bytes"
"""Name of an extra information of transports with TLS: bytes that the encryption adds."""
_ACKNOWLEDGED: Final = struct.Struct("@120xQ")
"""`tcpi_bytes_acked` in Linux's `struct tcp_info`."""


class Requester(Protocol):
    @property
    def peer(self) -> Host: ...

    @property
    def sends(self) -> bool:
        """Whether its last request was a send."""
        ...

    @property
    def last_request(self) -> tuple[int, int] | None:
        """Code and opaque of its last request that was no send."""
        ...


class AnswerWriter:
    """Writes the answers of one connection to its transport, counts their bytes, and closes the transport."""

    __slots__ = ("_close_timer", "_last_answer", "_log", "_transport", "_written_bytes", "is_paused")

    def __init__(self, log: RateLimitedLog, transport: asyncio.Transport) -> None:
        self._log = log
        self._transport = transport
        self._close_timer: asyncio.TimerHandle | None = None
        self.is_paused = False
        """Whether the transport holds too many bytes."""
        self._written_bytes = 0
        self._last_answer = b""
        """The head of the last frame that was written."""

    @property
    def bytes_unread(self) -> int:
        """Bytes of answers that were written and have not left."""
        return self._transport.get_write_buffer_size()

    @property
    def bytes_drained(self) -> int:
        """Bytes of answers that have left since the connection opened."""
        return self._socket_bytes - self._transport.get_write_buffer_size()

    @property
    def _socket_bytes(self) -> int:
        """Bytes that were written to the socket. With TLS they are more than those of the frames."""
        return self._written_bytes + int(self._transport.get_extra_info(TLS_OVERHEAD, 0))

    def write(self, frames: bytes, connection: Requester) -> None:
        """Write frames, unless the transport closes.

        A failure ends only this connection, not the round, which also writes to others.
        """
        if self._transport.is_closing():
            return
        self._written_bytes += len(frames)
        self._last_answer = frames[:HEAD_BYTES]
        try:
            self._transport.write(frames)
        except Exception as error:
            self._warn(connection, error)
            self._transport.abort()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self, loop: asyncio.AbstractEventLoop, close_s: float) -> None:
        """Close the transport once the written bytes have left, at the latest after `close_s`."""
        self._transport.close()
        self._close_timer = loop.call_later(close_s, self._transport.abort)

    def abort(self) -> None:
        """Close the transport at once. The bytes that have not left are lost."""
        self._transport.abort()

    def end(self) -> None:
        """Cancel the timer of `close`, because the transport is closed."""
        if self._close_timer is not None:
            self._close_timer.cancel()

    def warn_of_lost_answers(self, connection: Requester, error: Exception) -> None:
        """Log that a connection failed if the peer's system has not acknowledged all answers.

        A killed client resets its connection. That alone is no failure: it may have read all answers.
        """
        acknowledged = _bytes_acknowledged(self._transport)
        if acknowledged is None or acknowledged < self._socket_bytes:
            self._warn(connection, error)

    def _warn(self, connection: Requester, error: Exception) -> None:
        """Log that answers may not have arrived, with the last request and the last answer of the connection."""
        if not self._last_answer:
            return  # nothing was written
        request = "a send"
        if not connection.sends:
            request = "code={} opaque={}".format(*connection.last_request or ("?", "?"))
        self._log.warn(
            "failed write",
            "the connection to %s failed: %s: answers may not have arrived. Last request: %s; last answer: %s",
            connection.peer,
            error,
            request,
            frame_text(self._last_answer),
        )


def _bytes_acknowledged(transport: asyncio.Transport) -> int | None:
    """Return the bytes that the peer's system has acknowledged, or None if the count is unavailable."""
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKNOWLEDGED.size)
        return int(_ACKNOWLEDGED.unpack(info)[0])
    except (OSError, AttributeError, struct.error):
        return None
