"""The limits on memory, files and time that a server sets for its peers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

CLOSE_S: Final = 5.0
"""Seconds that a peer has to read the remaining answers when its connection is closed."""
RELIEF_S: Final = 0.05
RELIEF_LOOKS: Final = 10
"""When too many bytes are in memory, all peers pause for RELIEF_S. This repeats at most RELIEF_LOOKS times, until
there is room. Then the server closes peers that did not read meanwhile."""
IDLE_LOOKS: Final = 4
"""A connection is idle after this number of checks without any progress. Checks are `idle_s` / IDLE_LOOKS apart."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server and of each of its connections."""

    connections_max: int = 50_000
    """Further connections are closed at once."""
    buffer_bytes_max: int = 16 << 20
    """Bytes of answers that may wait for one peer. Above this, the server serves the peer again after it has read."""
    bytes_in_flight_max: int = 512 << 20
    """Bytes of unfinished frames and unread answers, of all connections together."""
    idle_s: float = 120.0
    """Seconds without progress after which a connection is closed, at the latest a quarter later. 0: no limit."""
    frame_deadline_s: float = 30.0
    """Seconds in which an unfinished frame must be completed."""
    close_s: float = CLOSE_S


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Connections that may wait to be accepted, and a connection's buffers in bytes; 0 is the system's default."""

    backlog: int = 1024
    send_bytes: int = 0
    receive_bytes: int = 0

    def apply(self, connection: socket.socket) -> None:
        """Set these options on a connection. Raises OSError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, size in ((socket.SO_SNDBUF, self.send_bytes), (socket.SO_RCVBUF, self.receive_bytes)):
            if size:
                connection.setsockopt(socket.SOL_SOCKET, option, size)
