"""The check whether a connection is idle, from the bytes that have come and left, and the close of idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from wheelmq.formats.disk.message import Host
from wheelmq.net.closed_connections import ClosedConnections
from wheelmq.net.limits import IDLE_LOOKS


class IdleCheck:
    """Counts the checks of one connection without progress. It knows no sockets and no clocks."""

    __slots__ = ("_bytes_drained", "_bytes_received", "_looks")

    def __init__(self) -> None:
        self._bytes_received = -1  # so a new connection has made progress
        self._bytes_drained = 0
        self._looks = 0

    def check(self, *, bytes_received: int, bytes_drained: int, must_read: bool) -> bool:
        """Check for progress since the last check. Return whether IDLE_LOOKS checks in a row found none.

        A peer that must read answers makes no progress by requests.
        """
        has_sent = bytes_received != self._bytes_received
        if bytes_drained != self._bytes_drained or (has_sent and not must_read):
            self._looks = 0
        else:
            self._looks += 1
        self._bytes_received, self._bytes_drained = bytes_received, bytes_drained
        return self._looks >= IDLE_LOOKS


class MaybeIdle(Protocol):
    @property
    def peer(self) -> Host: ...

    @property
    def is_open(self) -> bool: ...

    def check_idle(self) -> bool:
        """Return whether the connection made no progress since the last checks."""
        ...

    def close(self) -> None: ...


class IdleWatch:
    """Checks the connections of a server IDLE_LOOKS times in `idle_s`, and closes idle ones."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle_s: float,
        connections: Collection[MaybeIdle],
        closed: ClosedConnections,
    ) -> None:
        self._loop = loop
        self._idle_s = idle_s
        self._connections = connections
        self._closed = closed
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin the checks, if they have not begun. Without a limit there are none."""
        if self._timer is None and self._idle_s:
            self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(self._idle_s / IDLE_LOOKS, self._check)
        for connection in [one for one in self._connections if one.check_idle()]:
            if connection.is_open:
                self._closed.note_idle(connection.peer)
                connection.close()
