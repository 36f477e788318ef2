"""Turns of connections: how much a server serves to one connection before the others and the tick.

A round ends after ROUND_S, or after ROUND_BYTES of answers. A connection is busy if its turn ended before its requests
did. The next round begins with the busy ones, in order, and then serves new reads. A connection that is not busy always
gets a short turn, so a client with one request does not wait for clients with thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

ROUND_S: Final = 0.01
ROUND_BYTES: Final = 1 << 20
"""Bytes of answers in one round. The last answer may exceed them."""
SHORT_S: Final = 0.001
SHORT_BYTES: Final = 64 << 10
"""Limits of a turn in a round that has ended early."""


class TurnTaker(Protocol):
    def take_turn(self) -> None:
        """Serve the requests that wait."""
        ...


class RoundRobin:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._ends_s: float | None = None
        """End of the running round, or None between rounds."""
        self._bytes = 0
        self.turn_ends_s, self.turn_bytes_max = 0.0, 0
        """End of the running turn: its time, and the number of queued bytes of the connection."""
        self.waiting: dict[TurnTaker, None] = {}
        """Connections that wait for a turn, in order."""
        self.postponed = 0
        """Turns that waited for a later round, since the start."""

    def begin(self, queued_bytes: int) -> None:
        """Begin the turn of a connection that has `queued_bytes`. It ends the turn of the previous connection."""
        now_s = self._now_s()
        ends_s, bytes_max = self._ends_s, ROUND_BYTES - self._bytes
        if ends_s is None:
            self._ends_s = ends_s = now_s + ROUND_S
        elif ends_s < now_s + SHORT_S:
            ends_s = now_s + SHORT_S
        self.turn_ends_s = ends_s
        self.turn_bytes_max = queued_bytes + (bytes_max if bytes_max > SHORT_BYTES else SHORT_BYTES)

    def charge(self, count: int) -> None:
        self._bytes += count

    @property
    def is_round_over(self) -> bool:
        """Whether busy connections must wait for the next round."""
        is_late = self._ends_s is not None and self._now_s() >= self._ends_s
        return is_late or self._bytes >= ROUND_BYTES

    def postpone(self, connection: TurnTaker) -> None:
        self.postponed += 1
        self.waiting[connection] = None

    def forget(self, connection: TurnTaker) -> None:
        self.waiting.pop(connection, None)

    def is_waiting(self, connection: TurnTaker) -> bool:
        return connection in self.waiting

    def end_round(self) -> None:
        """End the round. The next turn begins a new one."""
        self._ends_s, self._bytes = None, 0

    def serve_waiting(self) -> None:
        """Give waiting connections their turns, until the round is over.

        The server calls this before it reads again. A callback of uvloop would run after the next reads, which can fill
        each round, and no waiting connection would get a turn.
        """
        for connection in list(self.waiting):
            if self.is_round_over:
                return
            del self.waiting[connection]
            connection.take_turn()
