"""Requests of the broker to its clients, and the answers that it waits for (RocketMQ: invokeSync, responseTable)."""

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
"""Maximum calls that wait for their answers."""
DEADLINES_OVER: Final = 64
"""The heap is rebuilt once it has more deadlines than twice the waiting calls plus this number."""


class Unanswered(StrEnum):
    """Reasons why a call has no answer."""

    LATE = "late"
    GONE = "gone"
    """Its connection is closed, or was closed before the call."""
    BUSY = "busy"
    """The call was not sent: too many calls wait, or the client does not read its connection."""


Done = Callable[[Command | Unanswered], None]


class Calls:
    """Requests sent and not answered, by connection and opaque. Times are monotonic milliseconds."""

    def __init__(self, count_max: int = CALLS_MAX) -> None:
        self._count_max = count_max
        self._opaque = 0
        self._waiting: dict[int, dict[int, Done]] = {}
        self._count = 0
        self._deadlines: list[tuple[int, int, int]] = []
        """A heap. The deadline of an answered call may stay in it for a while."""
        self.counts: Counter[str] = Counter()
        """Answers without a waiting call (`unknown`), and calls without an answer, by reason."""

    def __len__(self) -> int:
        return self._count

    def send_oneway(self, connection: Connection, command: Command) -> None:
        command.opaque = self._next_opaque()
        command.flag = frame.FLAG_ONEWAY
        connection.send(frame.encode(command))

    def ask(self, connection: Connection, command: Command, deadline_ms: int, done: Done) -> None:
        """Send a request. `done` gets the answer, or the reason why there is none: at once if it cannot be sent."""
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
        """Pass an answer to its call. Without a waiting call, the answer is dropped and counted."""
        if not self._end(id(connection), command.opaque, command):
            self.counts["unknown"] += 1

    def drop(self, connection: Connection) -> None:
        for opaque in list(self._waiting.get(id(connection), ())):
            self._end(id(connection), opaque, Unanswered.GONE)

    def expire(self, now_ms: int) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, connection, opaque = heapq.heappop(self._deadlines)
            self._end(connection, opaque, Unanswered.LATE)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _end(self, connection: int, opaque: int, outcome: Command | Unanswered) -> bool:
        """Pass the outcome to the caller. Returns whether a call waited for it."""
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
