"""The bound on bytes in memory, of all connections of a server: who is closed when there are too many.

Bytes are counted as they come and go as far as that is cheap: what is handed to a socket counts until it is counted
anew. Only when the count passes the bound is it made true. If there are too many indeed, every peer rests for a moment;
what those read meanwhile that do read may make room. If not, some are closed until a quarter is free: first those that
had answers to read and read nothing, most bytes first; then those whose frame began first; then whoever holds most.
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
    """Keeps the count of a server, and the bound."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._counted = 0
        self._begun: dict[ServerConnection, None] = {}
        """Connections that hold much of a frame, in the order in which the frames began."""
        self._drained: dict[ServerConnection, int] = {}
        """Bytes that had left for each peer when all began to rest."""
        self._log = RateLimitedLog(log, server.loop.time)
        self.is_on = False
        """Whether all peers rest."""
        self.closed = 0
        """Connections closed to make room."""

    def charge(self, count: int) -> None:
        """So many bytes more are in memory, fewer when it is negative."""
        self._counted += count
        if self._counted > self._server.limits.bytes_in_flight_max and not self.is_on:
            self._recount()

    def begin_frame(self, connection: ServerConnection) -> None:
        """`connection` holds much of a frame from now on."""
        self._begun.pop(connection, None)
        self._begun[connection] = None

    def end_frame(self, connection: ServerConnection) -> None:
        """`connection` does so no more."""
        self._begun.pop(connection, None)

    def _recount(self) -> None:
        """Count anew; have all rest when it is too much indeed."""
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
        """Go on when there is room; when there is none after so many looks, close those that hold too much before."""
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
        text = "closing %s, which holds %d bytes: more than %d are in memory for all connections"
        bound = self._server.limits.bytes_in_flight_max
        self._log.warn("closed", text, connection.peer, connection.bytes_held, bound)
        connection.abort()
