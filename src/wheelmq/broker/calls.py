"""Calls of the broker to its clients, and the answers it waits for (RocketMQ: invokeSync, responseTable)."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from wheelmq.broker.connection import Connection
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command

Done = Callable[[Command | None], None]


class Calls:
    """Requests out and not answered, by connection and opaque. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._opaque = 0
        self._waiting: dict[tuple[int, int], Done] = {}
        self._deadlines: list[tuple[int, int, int]] = []
        self.counts: Counter[str] = Counter()
        """Answers that nobody waits for (`unknown`), and calls that were not answered in time (`late`)."""

    def tell(self, connection: Connection, command: Command) -> None:
        """Send a oneway request."""
        self._opaque += 1
        command.opaque = self._opaque
        command.flag = frame.FLAG_ONEWAY
        connection.send(frame.encode(command))

    def ask(self, connection: Connection, command: Command, deadline_ms: int, done: Done) -> None:
        """Send a request; `done` gets its answer, or None when there is none by `deadline_ms`."""
        self._opaque += 1
        command.opaque = self._opaque
        self._waiting[id(connection), command.opaque] = done
        heapq.heappush(self._deadlines, (deadline_ms, id(connection), command.opaque))
        connection.send(frame.encode(command))

    def answered(self, connection: Connection, command: Command) -> None:
        """An answer has come; one that nobody waits for is dropped and counted."""
        done = self._waiting.pop((id(connection), command.opaque), None)
        if done is None:
            self.counts["unknown"] += 1
        else:
            done(command)

    def expire(self, now_ms: int) -> None:
        """Give up on calls past their deadline."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, connection, opaque = heapq.heappop(self._deadlines)
            done = self._waiting.pop((connection, opaque), None)
            if done is not None:
                self.counts["late"] += 1
                done(None)
