"""Calls of the broker to its clients, and the answers it waits for (RocketMQ: invokeSync, responseTable)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from wheelmq.broker.connection import Connection
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command

CALLS_MAX: Final = 10_000
"""Calls that may wait for their answers at once."""
DEADLINES_OVER: Final = 64
"""How many deadlines may outlive their calls before they are cleared away."""


class Unanswered(StrEnum):
    """Why a call has no answer."""

    LATE = "late"
    GONE = "gone"
    """Its connection is closed, or was so before it."""
    BUSY = "busy"
    """It was not made: too many wait, or the client does not read what it is sent."""


Done = Callable[[Command | Unanswered], None]


class Calls:
    """Requests out and not answered, by connection and opaque. Times are monotonic milliseconds."""

    def __init__(self, count_max: int = CALLS_MAX) -> None:
        self._count_max = count_max
        self._opaque = 0
        self._waiting: dict[int, dict[int, Done]] = {}
        self._count = 0
        self._deadlines: list[tuple[int, int, int]] = []
        """A heap. A call that was answered may leave its deadline behind, for a while."""
        self.counts: Counter[str] = Counter()
        """Answers that nobody waits for (`unknown`), and calls without an answer, by why."""

    def __len__(self) -> int:
        return self._count

    def tell(self, connection: Connection, command: Command) -> None:
        """Send a oneway request."""
        command.opaque = self._next_opaque()
        command.flag = frame.FLAG_ONEWAY
        connection.send(frame.encode(command))

    def ask(self, connection: Connection, command: Command, deadline_ms: int, done: Done) -> None:
        """Send a request; `done` gets its answer, or why there is none, at once when it cannot be sent."""
        if not connection.is_open or connection.is_full or self._count >= self._count_max:
            why = Unanswered.BUSY if connection.is_open else Unanswered.GONE
            self.counts[why] += 1
            done(why)
            return
        command.opaque = self._next_opaque()
        command.flag = 0
        self._waiting.setdefault(id(connection), {})[command.opaque] = done
        self._count += 1
        heapq.heappush(self._deadlines, (deadline_ms, id(connection), command.opaque))
        connection.send(frame.encode(command))

    def answered(self, connection: Connection, command: Command) -> None:
        """An answer has come; one that nobody waits for is dropped and counted."""
        if not self._end(id(connection), command.opaque, command):
            self.counts["unknown"] += 1

    def drop(self, connection: Connection) -> None:
        """The connection is gone: its calls will not be answered."""
        for opaque in list(self._waiting.get(id(connection), ())):
            self._end(id(connection), opaque, Unanswered.GONE)

    def expire(self, now_ms: int) -> None:
        """Give up on calls past their deadline."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, connection, opaque = heapq.heappop(self._deadlines)
            self._end(connection, opaque, Unanswered.LATE)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _end(self, connection: int, opaque: int, outcome: Command | Unanswered) -> bool:
        """Tell who made a call what became of it; whether anybody waits for it."""
        mine = self._waiting.get(connection, {})
        done = mine.pop(opaque, None)
        if done is None:
            return False
        if not mine:
            del self._waiting[connection]
        self._count -= 1
        if isinstance(outcome, Unanswered):
            self.counts[outcome] += 1
        if len(self._deadlines) > 2 * self._count + DEADLINES_OVER:
            self._deadlines = [one for one in self._deadlines if one[2] in self._waiting.get(one[1], ())]
            heapq.heapify(self._deadlines)
        done(outcome)
        return True
