"""Heartbeats that are not finished yet: their expressions are parsed, or their groups registered in slices.

A group that its client has left or registered again meanwhile must not be registered by an older heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wheelmq.broker.connection import Connection


class Membership(NamedTuple):
    """A group that a client of a connection is a member of."""

    is_consumer: bool
    group: str
    client_id: str


class UnfinishedHeartbeat:
    """The groups of one heartbeat that a later request has overtaken."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._overtaken: set[Membership] = set()

    def registers(self, membership: Membership) -> bool:
        return self._connection.is_open and membership not in self._overtaken

    def overtake(self, memberships: Iterable[Membership]) -> None:
        self._overtaken.update(memberships)


class UnfinishedHeartbeats:
    def __init__(self) -> None:
        self._of_connections: dict[int, list[UnfinishedHeartbeat]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of_connections.values()))

    def begin(self, connection: Connection, memberships: Iterable[Membership]) -> UnfinishedHeartbeat:
        """Begin a heartbeat. It overtakes the earlier ones of its connection. Returns it for `end`."""
        self.overtake(connection, memberships)
        begun = UnfinishedHeartbeat(connection)
        self._of_connections.setdefault(id(connection), []).append(begun)
        return begun

    def end(self, connection: Connection, heartbeat: UnfinishedHeartbeat) -> None:
        """End a heartbeat, if `drop` has not done so."""
        mine = self._of_connections.get(id(connection), [])
        if heartbeat in mine:
            mine.remove(heartbeat)
            if not mine:
                del self._of_connections[id(connection)]

    def overtake(self, connection: Connection, memberships: Iterable[Membership]) -> None:
        mine = self._of_connections.get(id(connection))
        if mine:
            named = list(memberships)
            for heartbeat in mine:
                heartbeat.overtake(named)

    def drop(self, connection: Connection) -> None:
        self._of_connections.pop(id(connection), None)
