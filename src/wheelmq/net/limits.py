"""What a server lets its peers take of memory, files and time."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

CLOSE_S: Final = 5.0
"""How long a peer may take to read what is still sent to it when its connection is closed."""
RELIEF_S: Final = 0.05
RELIEF_LOOKS: Final = 10
"""How long all peers rest when too much is in memory: until there is room, looked for so often and so many times; then
those are closed that did not read meanwhile."""
IDLE_LOOKS: Final = 4
"""A connection is idle once so many looks in a row found nothing new; they are `idle_s` / IDLE_LOOKS apart."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a server and of each of its connections."""

    connections_max: int = 50_000
    """Past it, connections are closed as they are made."""
    buffer_bytes_max: int = 16 << 20
    """Answers waiting for one peer; past it the peer is served on when it has read."""
    bytes_in_flight_max: int = 512 << 20
    """Frames that have begun and answers that were not read, of all connections."""
    idle_s: float = 120.0
    """A connection over which nothing moves for so long is closed, at the latest a quarter later; 0 keeps it."""
    frame_deadline_s: float = 30.0
    """A frame that has begun must be whole within this time."""
    close_s: float = CLOSE_S


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """Connections that wait to be accepted; buffers of a connection in bytes, 0 leaves them to the system."""

    backlog: int = 1024
    send_bytes: int = 0
    receive_bytes: int = 0

    def apply(self, connection: socket.socket) -> None:
        """Set what is set of a connection. Raises OSError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, size in ((socket.SO_SNDBUF, self.send_bytes), (socket.SO_RCVBUF, self.receive_bytes)):
            if size:
                connection.setsockopt(socket.SOL_SOCKET, option, size)
