"""The limit on bytes in memory for all connections of a server, and the choice of connections to close.

Bytes that were passed to a socket count until the next recount, when the count exceeds the limit. If the exact total
exceeds it too, all peers pause for a moment, and peers that read may make room. If there is still no room, the guard
closes connections until a quarter of the limit is free:

1. connections that had answers to read and read nothing, most bytes first;
2. connections with unfinished frames, the oldest frame first;
3. all others, most bytes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from wheelmq.formats.disk.message import Host
from wheelmq.net.limits import RELIEF_LOOKS, RELIEF_S
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

FREED_SHARE: Final = 4


class MemoryHolder(Protocol):
    @property
    def peer(self) -> Host: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def bytes_held(self) -> int:
        """Bytes of unserved requests and unread answers."""
        ...

    @property
    def bytes_unread(self) -> int:
        """Bytes of answers that were written and have not left."""
        ...

    @property
    def bytes_drained(self) -> int:
        """Bytes of answers that have left since the connection opened."""
        ...

    def rest(self) -> None: ...

    def go_on(self) -> None:
        """Continue to serve if the queued answers have drained."""
        ...

    def abort(self) -> None:
        """Close at once. The queued frames are lost."""
        ...


class MemoryGuard:
    """Counts the bytes of a server's connections and enforces the limit. `write` writes all queued answers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bytes_max: int,
        connections: Collection[MemoryHolder],
        write: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._bytes_max = bytes_max
        self._connections = connections
        self._write = write
        self._counted = 0
        self._begun: dict[MemoryHolder, None] = {}
        """Connections with large unfinished frames, in the order in which the frames began."""
        self._drained: dict[MemoryHolder, int] = {}
        """Bytes that had left for each peer when the pause began."""
        self._log = RateLimitedLog(log, loop.time)
        self.is_on = False
        """Whether all peers pause."""
        self.closed = 0
        """Connections that were closed to make room."""

    def charge(self, count: int) -> None:
        self._counted += count
        if self._counted > self._bytes_max and not self.is_on:
            self._recount()

    def begin_frame(self, connection: MemoryHolder) -> None:
        self._begun.pop(connection, None)
        self._begun[connection] = None

    def end_frame(self, connection: MemoryHolder) -> None:
        self._begun.pop(connection, None)

    def _recount(self) -> None:
        """Compute the exact total. Pause all peers if it exceeds the limit."""
        self._write()
        self._counted = sum(one.bytes_held for one in self._connections)
        if self._counted <= self._bytes_max:
            return
        self.is_on = True
        self._drained = {one: one.bytes_drained for one in self._connections if one.bytes_unread}
        for one in self._connections:
            one.rest()
        self._loop.call_later(RELIEF_S, self._end, RELIEF_LOOKS)

    def _end(self, looks: int) -> None:
        """End the pause when there is room. If `looks` checks found none, close connections first."""
        held = {one: one.bytes_held for one in self._connections}
        total, bound = sum(held.values()), self._bytes_max
        if total > bound and looks > 1:
            self._loop.call_later(RELIEF_S, self._end, looks - 1)
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
        for one in list(self._connections):
            one.go_on()

    def _close(self, connection: MemoryHolder) -> None:
        self.closed += 1
        text = "closing %s, which holds %d bytes: all connections together exceed the limit of %d bytes"
        self._log.warn("closed", text, connection.peer, connection.bytes_held, self._bytes_max)
        connection.abort()
