"""Accept plain connections and TLS on one port: the first byte of a connection decides (RocketMQ: HandshakeHandler).

A TLS connection begins with a handshake record, whose first byte is 0x16. A frame of the remoting protocol begins with
its length, and no length that is allowed begins with this byte. Once the first bytes are here, the real protocol gets
them and takes over: with the socket's own transport, or with a `TlsTransport`. So a plain connection costs one call
more, at its beginning.

A connection that waits for its first byte or for its handshake has one deadline for both. A handshake takes half a
millisecond of processor time. Handshakes run in slices, so that a thousand clients that reconnect do not stop the loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from wheelmq.formats.wire.foreign import proxy_text
from wheelmq.net.server_tls import ServerTls
from wheelmq.net.tls_channel import RECORD_BYTES
from wheelmq.net.tls_transport import READ_BYTES, TEXT_BYTES, TlsTransport
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.tls import TlsMode

log = logging.getLogger(__name__)

HANDSHAKE_BYTE: Final = 0x16
DEADLINE_S: Final = 30.0
"""Time for the first byte and the handshake together."""
SLICE_S: Final = 0.004
"""Time for handshakes in one pass of the event loop. At least one handshake continues in each pass."""

Factory = Callable[[], asyncio.BaseProtocol]


class FirstByte(asyncio.BufferedProtocol):
    """Waits for the first bytes of one connection."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._entrance.begin(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._entrance.received[:RECORD_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        assert self.transport is not None
        self._entrance.choose(self, self.transport, self._entrance.received[:nbytes])

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._entrance.end(self)


@dataclass(slots=True)
class EntranceCounts:
    """Counters since the start."""

    tls: int = 0
    """Handshakes that were completed."""
    plain: int = 0
    """Plain connections that were accepted."""
    failed: int = 0
    """Handshakes that failed."""
    late: int = 0
    """Connections that were closed at the deadline."""
    rejected: int = 0
    """Plain connections that were closed, because only encrypted ones are accepted."""


@dataclass(slots=True)
class _Unshaken:
    """A connection before its protocol: its socket's transport, and its deadline."""

    transport: asyncio.Transport
    deadline: asyncio.TimerHandle
    began: bool = False
    """Whether its first byte has arrived."""


class Entrance:
    """Chooses plain or TLS for each connection of one or more listeners, and creates protocols by `factory`.

    Without `tls` all connections are plain. `is_full` says, and logs, that one more connection is too many.
    """

    def __init__(
        self,
        tls: ServerTls | None,
        factory: Factory,
        *,
        deadline_s: float = DEADLINE_S,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tls = tls
        self._factory = factory
        self._deadline_s = deadline_s
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[FirstByte | TlsTransport, _Unshaken] = {}
        self._handshakes: deque[TlsTransport] = deque()
        self._is_scheduled = False
        self._log = RateLimitedLog(log, self._loop.time)
        self.counts = EntranceCounts()
        self.received = memoryview(bytearray(READ_BYTES))
        self.text = memoryview(bytearray(TEXT_BYTES))

    @property
    def waiting(self) -> int:
        """Number of connections that wait for their first byte or their handshake."""
        return len(self._waiting)

    def figures(self) -> dict[str, int]:
        """Return the counters by name."""
        if self._tls is None:
            return {}
        counts = self.counts
        return {
            "tls_waiting": self.waiting,
            "tls_handshakes": counts.tls,
            "tls_failed_handshakes": counts.failed,
            "tls_late_handshakes": counts.late,
            "tls_plain": counts.plain,
            "tls_rejected_plain": counts.rejected,
            "tls_reloads": self._tls.reloads,
            "tls_certificate_expires_ms": self._tls.certificate.not_after_ms,
        }

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol for a new connection."""
        return self._factory() if self._tls is None else FirstByte(self)

    def close(self) -> None:
        """Close the connections that wait."""
        for one in list(self._waiting.values()):
            one.transport.abort()

    # The first byte ------------------------------------------------------------------------------------------------

    def begin(self, first: FirstByte) -> None:
        """Let a new connection wait for its first byte."""
        transport = first.transport
        assert transport is not None
        if self._is_full():
            transport.abort()
            return
        deadline = self._loop.call_later(self._deadline_s, self._time_out, first)
        self._waiting[first] = _Unshaken(transport, deadline)

    def choose(self, first: FirstByte, transport: asyncio.Transport, data: memoryview) -> None:
        """Give the connection its real protocol, and the bytes that have arrived."""
        waiting, tls = self._waiting.pop(first, None), self._tls
        if waiting is None or tls is None:
            return  # it was closed before
        mode = tls.mode
        if mode is TlsMode.DISABLED or (data[0] != HANDSHAKE_BYTE and mode is TlsMode.PERMISSIVE):
            waiting.deadline.cancel()
            self.counts.plain += 1
            self._begin_plain(transport, data)
        elif data[0] != HANDSHAKE_BYTE:
            waiting.deadline.cancel()
            self.counts.rejected += 1
            why = proxy_text(bytes(data[:4])) or "it speaks no TLS, and tls_mode is enforcing: use TLS in the client"
            self._log.warn("plain", "closing %s: %s", _peer(transport), why)
            transport.close()
        else:
            secure = TlsTransport(self, transport, tls.context, self._factory)
            waiting.deadline.cancel()
            waiting.deadline = self._loop.call_at(waiting.deadline.when(), self._time_out, secure)
            waiting.began = True
            self._waiting[secure] = waiting
            transport.set_protocol(secure)
            secure.receive(data)

    def _begin_plain(self, transport: asyncio.Transport, data: memoryview) -> None:
        protocol = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(bytes(data))
            return
        while data and not transport.is_closing():
            room = cast(memoryview, protocol.get_buffer(len(data)))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def end(self, one: FirstByte | TlsTransport) -> _Unshaken | None:
        """Forget a connection that does not wait any more."""
        waiting = self._waiting.pop(one, None)
        if waiting is not None:
            waiting.deadline.cancel()
        return waiting

    def _time_out(self, one: FirstByte | TlsTransport) -> None:
        waiting = self.end(one)
        if waiting is not None:
            self.counts.late += 1
            what = "its TLS handshake is incomplete" if waiting.began else "it has sent nothing"
            text = "closing %s: %s after %g s"
            self._log.log(logging.INFO, "late", text, _peer(waiting.transport), what, self._deadline_s)
            waiting.transport.abort()

    # Handshakes ----------------------------------------------------------------------------------------------------

    def queue_handshake(self, connection: TlsTransport) -> None:
        """Continue a handshake in the next slice."""
        self._handshakes.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._shake)

    def _shake(self) -> None:
        """Continue handshakes for SLICE_S, the oldest first."""
        ends_s = self._loop.time() + SLICE_S
        try:
            while self._handshakes:
                self._handshakes.popleft().shake()
                if self._loop.time() >= ends_s:
                    break
        finally:
            self._is_scheduled = False
            if self._handshakes:
                self._schedule()

    def end_handshake(self, connection: TlsTransport, problem: Exception | None) -> None:
        """Note that a handshake is complete, or that it failed."""
        waiting = self.end(connection)
        if waiting is None:
            return
        if problem is None:
            self.counts.tls += 1
            return
        self.counts.failed += 1
        reason = problem.reason if isinstance(problem, ssl.SSLError) and problem.reason else str(problem)
        self._log.log(
            logging.INFO,
            f"handshake {reason}" if reason in _REMEDIES else "handshake",
            "closing %s: its TLS handshake failed: %s%s",
            _peer(waiting.transport),
            reason,
            _REMEDIES.get(reason, ""),
        )


_REMEDIES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ". tls_client_auth is require: give the client a certificate",
    "CERTIFICATE_VERIFY_FAILED": ". No authority in tls_ca_file signed the certificate of the client",
    "NO_SHARED_CIPHER": ". The client offers no cipher of the server: see tls_ciphers",
    "UNSUPPORTED_PROTOCOL": ". The client offers only older versions of TLS: see tls_min_version",
    "TLSV1_ALERT_UNKNOWN_CA": ". The client does not trust the certificate of this server: give it the authority",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": ". The client does not trust the certificate of this server",
    "SSLV3_ALERT_BAD_CERTIFICATE": ". The client does not trust the certificate of this server",
}
"""Remedies by OpenSSL's name of the problem."""


def _peer(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return "a client" if not peer else f"{peer[0]}:{peer[1]}"
