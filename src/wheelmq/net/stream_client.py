"""A client connection that carries bytes instead of requests: that of a replica to its master."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

from wheelmq.system.tls_client import ClientTls, problem_text


class ByteStream(asyncio.Protocol):
    """Received bytes, and the way to send some. A reader that takes no bytes pauses the peer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._is_paused = False
        self.is_open = False
        self.failure = ""
        """The reason of a broken connection, after a colon. Empty if there is none."""

    @classmethod
    async def connect(cls, host: str, port: int, timeout_s: float, tls: ClientTls | None = None) -> ByteStream:
        """Return an open connection, encrypted with `tls`. Raises ConnectionError."""
        loop = asyncio.get_running_loop()
        context, name = None, None
        try:
            async with asyncio.timeout(timeout_s):
                if tls is not None:
                    context = await asyncio.to_thread(tls.context)  # it may read files
                    name = tls.server_name(host)
                _, stream = await loop.create_connection(cls, host, port, ssl=context, server_hostname=name)
        except TimeoutError:
            raise ConnectionError(f"{host}:{port} cannot be reached: no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectionError(f"{host}:{port} cannot be reached: {problem_text(error)}") from None
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()
        if len(self._received) > PAUSE_BYTES and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if isinstance(exc, OSError):
            self.failure = f": {problem_text(exc)}"
        self._changed.set()

    async def wait(self, timeout_s: float) -> bytes:
        """Return the received bytes, or nothing after `timeout_s` or at the end of the connection."""
        if not self._received and self.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
        self._changed.clear()
        data, self._received = bytes(self._received), bytearray()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def wake(self) -> None:
        """Let `wait` return."""
        self._changed.set()

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


PAUSE_BYTES = 4 << 20
"""Received bytes above which the peer must wait until they are taken."""
