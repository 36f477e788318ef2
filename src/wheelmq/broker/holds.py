"""Requests that wait for an answer: long polls, and answers that wait for the disk."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

from wheelmq.broker.connection import Connection
from wheelmq.broker.request import Hold
from wheelmq.formats.wire.frame import Command

DEADLINES_OVER: Final = 64
"""How many deadlines may outlive their requests before they are cleared away."""


class _Held:
    __slots__ = ("connection", "deadline_ms", "hold", "opaque")

    def __init__(self, connection: Connection, opaque: int, hold: Hold, deadline_ms: int) -> None:
        self.connection = connection
        self.opaque = opaque
        self.hold = hold
        self.deadline_ms = deadline_ms


class Holds:
    """Held requests by key and by deadline (monotonic milliseconds)."""

    def __init__(self, answer: Callable[[Connection, int, Command], None]) -> None:
        self._answer = answer
        self._by_key: dict[object, dict[int, _Held]] = {}
        self._by_connection: dict[int, dict[int, object]] = {}
        self._deadlines: list[tuple[int, int, object]] = []
        """A heap. A request that was answered may leave its deadline behind, for a while."""
        self._passed: dict[int, object] = {}
        """Keys of requests that were passed over because their connection was full, by serial."""
        self._serial = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: Connection, opaque: int, hold: Hold, now_ms: int) -> None:
        """Hold a request."""
        self._serial += 1
        self._count += 1
        held = _Held(connection, opaque, hold, now_ms + hold.timeout_ms)
        self._by_key.setdefault(hold.key, {})[self._serial] = held
        self._by_connection.setdefault(id(connection), {})[self._serial] = hold.key
        heapq.heappush(self._deadlines, (held.deadline_ms, self._serial, hold.key))

    def has(self, key: object) -> bool:
        """Whether any request waits for `key`."""
        return key in self._by_key

    def wake(self, key: object) -> None:
        """Something happened to `key`: ask each request that waits for it again."""
        held = self._by_key.get(key)
        if held:
            for serial in list(held):
                self._again(key, serial, last=False)

    def expire(self, now_ms: int) -> None:
        """Ask those past their deadline for the last time, and once more those that were passed over."""
        for serial, key in list(self._passed.items()):
            self._again(key, serial, last=False)
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, serial, key = heapq.heappop(self._deadlines)
            self._again(key, serial, last=True)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def drop(self, connection: Connection) -> None:
        """The connection is gone: nothing waits for it any more."""
        for serial, key in list(self._by_connection.get(id(connection), {}).items()):
            self._forget(key, serial)

    def _again(self, key: object, serial: int, *, last: bool) -> None:
        held = self._by_key.get(key, {}).get(serial)
        if held is None:
            return
        if held.connection.is_full and not last:
            self._passed[serial] = key
            return
        self._passed.pop(serial, None)
        answer = held.hold.again(last)
        if answer is not None:
            self._answer(held.connection, held.opaque, answer)
        if answer is not None or last:
            self._forget(key, serial)

    def _forget(self, key: object, serial: int) -> None:
        held = self._by_key[key]
        mine = self._by_connection[id(held[serial].connection)]
        del mine[serial]
        self._passed.pop(serial, None)
        if not mine:
            del self._by_connection[id(held[serial].connection)]
        del held[serial]
        if not held:
            del self._by_key[key]
        self._count -= 1
        if len(self._deadlines) > 2 * self._count + DEADLINES_OVER:
            self._deadlines = [
                (one.deadline_ms, serial, key) for key, all_of in self._by_key.items() for serial, one in all_of.items()
            ]
            heapq.heapify(self._deadlines)


class DurableAnswers:
    """Finished answers in the order of what they wait for: log positions, or messages that were put in blocks."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, Connection, bytes, bytes | None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, position: int, now_ms: int, connection: Connection, frames: bytes, late: bytes | None = None) -> None:
        """`frames` may leave once the disk has all up to `position`; `late` in their place when they are overdue."""
        self._waiting.append((position, now_ms, connection, frames, late))

    def free(self, durable: int) -> None:
        """Send what waited for no more than `durable`."""
        while self._waiting and self._waiting[0][0] <= durable:
            _, _, connection, frames, _ = self._waiting.popleft()
            connection.send(frames)

    def oldest_ms(self) -> int | None:
        """When the answer that waits longest began to."""
        return self._waiting[0][1] if self._waiting else None

    def take_overdue(self, before_ms: int | None) -> list[tuple[Connection, bytes, bytes | None]]:
        """Take the answers that began to wait at `before_ms` or earlier, each with what is to leave in its place if
        that was told; None takes all."""
        overdue = []
        while self._waiting and (before_ms is None or self._waiting[0][1] <= before_ms):
            _, _, connection, frames, late = self._waiting.popleft()
            overdue.append((connection, frames, late))
        return overdue
