"""A transport with TLS between a socket's transport and a protocol, with the limits of a plain connection.

The transports with TLS of asyncio and uvloop report only a part of the bytes that wait for a peer, because a second
buffer below them holds the rest. A server could not limit the memory that slow peers take. Here
`get_write_buffer_size` counts all bytes, and `pause_reading` stops the socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from wheelmq.net.answer_writer import TLS_OVERHEAD
from wheelmq.net.tls_channel import RECORD_BYTES, TlsChannel

READ_BYTES: Final = 64 << 10
"""Encrypted bytes of one read. A connection that pauses keeps up to this number, which no limit counts."""
TEXT_BYTES: Final = 64 << 10


class TlsServer(Protocol):
    """The listener of a connection, as the connection sees it."""

    received: memoryview
    """The buffer that all connections read into, one after another."""
    text: memoryview
    """The buffer for decrypted bytes of protocols without a buffer of their own."""

    def queue_handshake(self, connection: TlsTransport) -> None:
        """Call `shake` of the connection soon."""
        ...

    def end_handshake(self, connection: TlsTransport, problem: Exception | None) -> None:
        """Note that the handshake is complete, or that it failed."""
        ...


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a socket's transport, and the transport of the protocol that `factory` creates."""

    def __init__(
        self,
        server: TlsServer,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        super().__init__()
        self._server = server
        self._transport = transport
        self._channel = TlsChannel(context)
        self._context = context
        self._factory = factory
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_reading = True
        self._is_closing = False
        self._left = b""
        """Encrypted bytes that wait for the handshake, or for a protocol that pauses."""
        self._failure: ssl.SSLError | None = None

    # The side of the socket ----------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.received if self._channel.is_open else self._server.received[:RECORD_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(self._server.received[:nbytes])

    def receive(self, data: memoryview) -> None:
        """Take encrypted bytes of the peer."""
        if self._channel.is_open:
            self._decrypt(data)
        elif not self._is_closing:
            self._transport.pause_reading()  # until `shake`, so that at most one read waits for it
            self._left = bytes(data)
            self._server.queue_handshake(self)

    def shake(self) -> None:
        """Continue the handshake. Once it is complete, create the protocol and give it the bytes that follow."""
        if self._is_closing or self._transport.is_closing():
            return
        left, self._left = memoryview(self._left), b""
        try:
            for at in range(0, len(left), RECORD_BYTES):
                self._channel.feed(left[at : at + RECORD_BYTES])
            sealed = self._channel.shake()
        except ssl.SSLError as error:
            self._write(self._channel.take_sealed())
            self._close_socket()
            self._server.end_handshake(self, error)
            return
        self._write(sealed)
        if not self._channel.is_open:
            self._transport.resume_reading()
            return
        self._server.end_handshake(self, None)
        try:
            self._protocol = self._factory()
            self._protocol.connection_made(self)
            self._go_on()
        except BaseException:
            self.abort()
            raise

    def eof_received(self) -> bool:
        self._end()
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._left = b""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(self._failure or exc)
        else:
            self._server.end_handshake(self, exc or ConnectionResetError("the peer closed the connection"))

    def _go_on(self) -> None:
        """Decrypt the bytes that came before a pause, then read on."""
        if not self._is_reading or self._is_closing:
            return
        left, self._left = self._left, b""
        self._decrypt(memoryview(left))
        if self._is_reading and not self._is_closing and not self._transport.is_closing():
            self._transport.resume_reading()

    def _decrypt(self, data: memoryview) -> None:
        """Decrypt bytes of the peer for the protocol. Keep the rest if it pauses or the connection closes."""
        try:
            self._deliver()
            for at in range(0, len(data), RECORD_BYTES):
                if self._is_closing:
                    return
                if not self._is_reading:
                    self._left = bytes(data[at:])
                    return
                self._channel.feed(data[at : at + RECORD_BYTES])
                self._deliver()
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._write(self._channel.take_sealed())

    def _deliver(self) -> None:
        """Give the protocol all that OpenSSL can decrypt. Raises ssl.SSLError."""
        while self._is_reading and not self._is_closing and not self._channel.has_ended:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = cast(memoryview, protocol.get_buffer(-1))
                count = self._channel.read_into(room)
                if count:
                    protocol.buffer_updated(count)
            else:
                room = self._server.text
                count = self._channel.read_into(room)
                if count:
                    cast(asyncio.Protocol, protocol).data_received(bytes(room[:count]))
            if self._channel.has_ended:
                self._end()
            elif count < len(room):
                return

    def _end(self) -> None:
        """Tell the protocol that the peer sends no more, and close: one direction alone cannot stay open."""
        if self._protocol is not None and not self._is_closing:
            cast(asyncio.Protocol, self._protocol).eof_received()
        self.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """Close after bytes that are no TLS, or that were changed on the way."""
        self._write(self._channel.take_sealed())
        self._failure = error
        self.abort()

    def _write(self, sealed: bytes) -> None:
        if sealed and not self._transport.is_closing():
            self._transport.write(sealed)

    def _close_socket(self) -> None:
        self._is_closing = True
        self._transport.close()

    # The side of the protocol --------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "sslcontext":
                return self._context
            case "ssl_object":
                return self._channel.ssl_object
            case "peercert":
                return self._channel.ssl_object.getpeercert()
            case "cipher":
                return self._channel.ssl_object.cipher()
            case _ if name == TLS_OVERHEAD:
                return self._channel.sealed_bytes - self._channel.plain_bytes
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        if self._is_reading and not self._is_closing:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing:
            self._write(self._channel.seal(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Close once the written bytes have left."""
        if not self._is_closing:
            self._write(self._channel.end())
            self._close_socket()

    def abort(self) -> None:
        self._is_closing = True
        self._transport.abort()
