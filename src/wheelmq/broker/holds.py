"""Requests that wait for an answer: long polls, and answers that wait for the disk.

What happens to a key costs as much as the requests it concerns. Of pulls that wait at a queue for some tags, those are
found by the tags of what has come; what else filters has to look at the messages itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from wheelmq.broker.arrivals import is_of_a_tag
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


class _Waiting:
    """Who waits for one key, by serial: all of them, those that want whatever comes, and the others by tag."""

    __slots__ = ("all", "by_code", "for_anything")

    def __init__(self) -> None:
        self.all: dict[int, _Held] = {}
        self.for_anything: dict[int, None] = {}
        self.by_code: dict[int, dict[int, None]] = {}

    def add(self, serial: int, held: _Held) -> None:
        self.all[serial] = held
        if held.hold.tags is None:
            self.for_anything[serial] = None
            return
        for code in held.hold.tags.codes:
            self.by_code.setdefault(code, {})[serial] = None

    def remove(self, serial: int) -> None:
        tags = self.all.pop(serial).hold.tags
        if tags is None:
            del self.for_anything[serial]
            return
        for code in tags.codes:
            mine = self.by_code[code]
            del mine[serial]
            if not mine:
                del self.by_code[code]

    def wanting(self, first_by_code: Mapping[int, int]) -> dict[int, int]:
        """Who waits for tags that have come, and the first queue offset that each may want."""
        found: dict[int, int] = {}
        for code, offset in first_by_code.items():
            for serial in self.by_code.get(code, ()) if is_of_a_tag(code) else self.all:
                if serial not in self.for_anything:
                    found[serial] = min(offset, found.get(serial, offset))
        return found


class Holds:
    """Held requests by key and by deadline (monotonic milliseconds)."""

    def __init__(self, answer: Callable[[Connection, int, Command], None]) -> None:
        self._answer = answer
        self._by_key: dict[object, _Waiting] = {}
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
        waiting = self._by_key.get(hold.key)
        if waiting is None:
            waiting = self._by_key[hold.key] = _Waiting()
        waiting.add(self._serial, held)
        self._by_connection.setdefault(id(connection), {})[self._serial] = hold.key
        heapq.heappush(self._deadlines, (held.deadline_ms, self._serial, hold.key))

    def has(self, key: object) -> bool:
        """Whether any request waits for `key`."""
        return key in self._by_key

    def wake(self, key: object, news: Callable[[], Mapping[int, int]] | None = None) -> None:
        """Something happened to `key`: ask again each request that waits for it.

        `news` is given when messages have come to a queue: the first queue offset by tag code. Who waits for tags is
        asked again for those alone.
        """
        waiting = self._by_key.get(key)
        if waiting is None:
            return
        if news is None or not waiting.by_code:
            for serial in list(waiting.all):
                self._again(key, serial, last=False)
            return
        wanting = waiting.wanting(news())
        for serial in list(waiting.for_anything):
            self._again(key, serial, last=False)
        for serial, offset in wanting.items():
            self._go_to(waiting.all.get(serial), serial, offset)
            self._again(key, serial, last=False)

    def expire(self, now_ms: int) -> None:
        """Ask those past their deadline for the last time, and once more those that were passed over."""
        for serial, key in list(self._passed.items()):
            self._again(key, serial, last=False)
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, serial, key = heapq.heappop(self._deadlines)
            waiting = self._by_key.get(key)
            if waiting is not None:
                self._go_to(waiting.all.get(serial), serial, None)
                self._again(key, serial, last=True)

    def _go_to(self, held: _Held | None, serial: int, offset: int | None) -> None:
        """Tell a request for tags where to go on. One that was passed over stays where it was to be asked again."""
        if held is not None and held.hold.tags is not None and serial not in self._passed:
            held.hold.tags.go_to(offset)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def drop(self, connection: Connection) -> None:
        """The connection is gone: nothing waits for it any more."""
        for serial, key in list(self._by_connection.get(id(connection), {}).items()):
            self._forget(key, serial)

    def _again(self, key: object, serial: int, *, last: bool) -> None:
        waiting = self._by_key.get(key)
        held = None if waiting is None else waiting.all.get(serial)
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
        waiting = self._by_key[key]
        peer = id(waiting.all[serial].connection)
        mine = self._by_connection[peer]
        del mine[serial]
        self._passed.pop(serial, None)
        if not mine:
            del self._by_connection[peer]
        waiting.remove(serial)
        if not waiting.all:
            del self._by_key[key]
        self._count -= 1
        if len(self._deadlines) > 2 * self._count + DEADLINES_OVER:
            self._deadlines = [
                (one.deadline_ms, serial, key)
                for key, waiting in self._by_key.items()
                for serial, one in waiting.all.items()
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
