"""The server's side of one TLS connection, without sockets: bytes in, bytes out.

The channel feeds OpenSSL in small pieces. OpenSSL's buffers keep the size of the largest piece that they ever held,
and there is one of them for each connection and direction.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

RECORD_BYTES: Final = 16 << 10
"""The largest content of one TLS record, and the size of a piece."""


class TlsChannel:
    """Decrypts the bytes of the peer, and encrypts the answers."""

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended", "is_open", "plain_bytes", "sealed_bytes")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        """Whether the handshake is complete."""
        self.has_ended = False
        """Whether the peer has sent its last byte."""
        self.plain_bytes = 0
        """Bytes that were encrypted."""
        self.sealed_bytes = 0
        """Bytes for the peer, those of the handshake included."""

    @property
    def ssl_object(self) -> ssl.SSLObject:
        return self._object

    def feed(self, piece: memoryview) -> None:
        """Add bytes of the peer, at most RECORD_BYTES at a time."""
        self._incoming.write(piece)

    def shake(self) -> bytes:
        """Continue the handshake with the bytes that were fed. Return bytes for the peer. Raises ssl.SSLError."""
        try:
            self._object.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass
        return self.take_sealed()

    def read_into(self, room: memoryview) -> int:
        """Decrypt as many fed bytes as fit into `room`. Return their number. Raises ssl.SSLError.

        The room is full, or all complete records were decrypted.
        """
        filled, size, read = 0, len(room), self._object.read
        try:
            while filled < size:
                count = read(size - filled, room[filled:])
                if not count:
                    self.has_ended = True
                    break
                filled += int(count)
        except ssl.SSLWantReadError:
            pass
        return filled

    def seal(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return `data` encrypted. Raises ssl.SSLError."""
        self.plain_bytes += len(data)
        if len(data) <= RECORD_BYTES:
            self._object.write(data)
            return self.take_sealed()
        found = []
        with memoryview(data) as view:
            for at in range(0, len(view), RECORD_BYTES):
                self._object.write(view[at : at + RECORD_BYTES])
                found.append(self._outgoing.read())
        sealed = b"".join(found)
        self.sealed_bytes += len(sealed)
        return sealed

    def take_sealed(self) -> bytes:
        """Return the bytes for the peer that OpenSSL has ready: answers, alerts, or parts of the handshake."""
        sealed = self._outgoing.read()
        self.sealed_bytes += len(sealed)
        return sealed

    def end(self) -> bytes:
        """Return the message that ends the connection in order. The peer's own end is not awaited."""
        if self.is_open:
            with contextlib.suppress(ssl.SSLError):  # the peer has not ended yet, or the connection has failed
                self._object.unwrap()
        return self.take_sealed()
