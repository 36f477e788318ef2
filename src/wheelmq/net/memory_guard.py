"""The limit on bytes in memory for all connections of a server, and the choice of connections to close.

The count of bytes is approximate where an exact one would be expensive: bytes that were passed to a socket count
until the next recount. The guard recounts only when the count exceeds the limit. If the exact total exceeds it too,
all peers pause for a moment, and peers that read meanwhile may make room. If there is still no room, the guard closes
connections until a quarter of the limit is free:

1. connections that had answers to read and read nothing, most bytes first;
2. connections with unfinished frames, the oldest frame first;
3. all others, most bytes first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from wheelmq.net.limits import RELIEF_LOOKS, RELIEF_S
from wheelmq.system.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from wheelmq.net.server import Server, ServerConnection

log = logging.getLogger(__name__)

FREED_SHARE: Final = 4


class MemoryGuard:
    """Counts the bytes of a server and enforces the limit."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._counted = 0
        self._begun: dict[ServerConnection, None] = {}
        """Connections with large unfinished frames, in the order in which the frames began."""
        self._drained: dict[ServerConnection, int] = {}
        """Bytes that had left for each peer when the pause began."""
        self._log = RateLimitedLog(log, server.loop.time)
        self.is_on = False
        """Whether all peers pause."""
        self.closed = 0
        """Connections that were closed to make room."""

    def charge(self, count: int) -> None:
        """Add `count` bytes to the total. It may be negative."""
        self._counted += count
        if self._counted > self._server.limits.bytes_in_flight_max and not self.is_on:
            self._recount()

    def begin_frame(self, connection: ServerConnection) -> None:
        """Record that `connection` holds a large unfinished frame."""
        self._begun.pop(connection, None)
        self._begun[connection] = None

    def end_frame(self, connection: ServerConnection) -> None:
        """Record that `connection` holds no large unfinished frame any more."""
        self._begun.pop(connection, None)

    def _recount(self) -> None:
        """Compute the exact total. Pause all peers if it exceeds the limit."""
        self._server.write()
        self._counted = sum(one.bytes_held for one in self._server.connections)
        if self._counted <= self._server.limits.bytes_in_flight_max:
            return
        self.is_on = True
        self._drained = {one: one.bytes_drained for one in self._server.connections if one.bytes_unread}
        for one in self._server.connections:
            one.rest()
        self._server.loop.call_later(RELIEF_S, self._end, RELIEF_LOOKS)

    def _end(self, looks: int) -> None:
        """End the pause when there is room. If `looks` checks found none, close connections first."""
        held = {one: one.bytes_held for one in self._server.connections}
        total, bound = sum(held.values()), self._server.limits.bytes_in_flight_max
        if total > bound and looks > 1:
            self._server.loop.call_later(RELIEF_S, self._end, looks - 1)
            return
        if total > bound:
            stuck = {one for one, drained in self._drained.items() if one in held and one.bytes_drained == drained}
            order = sorted(stuck, key=lambda one: -held[one])
            order += [one for one in self._begun if one in held]
            order += sorted(held, key=lambda one: -held[one])
            for one in order:
                if total <= bound - bound // FREED_SHARE:
                    break
                total -= held.pop(one, 0)
                if one.is_open:
                    self._close(one)
        self._counted, self._drained, self.is_on = total, {}, False
        for one in list(self._server.connections):
            one.go_on()

    def _close(self, connection: ServerConnection) -> None:
        self.closed += 1
        text = "closing %s, which holds %d bytes: all connections together exceed the limit of %d bytes"
        bound = self._server.limits.bytes_in_flight_max
        self._log.warn("closed", text, connection.peer, connection.bytes_held, bound)
        connection.abort()
