"""One queue of a consumer: pull position, messages in hand, committable offset (RocketMQ: ProcessQueue)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.bodies import QueueName


class Taken(NamedTuple):
    record: Record
    received_ms: Millis


class HeldQueue:
    """The state of one queue. Messages are pulled in order and completed in any order."""

    def __init__(
        self,
        queue: QueueName,
        start: int,
        in_hand_max: int,
        in_hand_bytes_max: int = 1 << 62,
        span_max: int = 1 << 62,
        *,
        is_stored: bool = True,
    ) -> None:
        self.queue = queue
        self.next_offset = start
        self.committed = start if is_stored else -1
        """The last committed queue offset of the group; -1 without one."""
        self.is_kept = True
        """Whether the store has surely kept `committed`. If not, the offset is committed again (see BrokerOffsets)."""
        self.is_lost = False
        """Whether the queue was lost or restarted. Messages still in hand are not committed then."""
        self.ending = asyncio.Event()
        """Set before the queue is released: no more callbacks start."""
        self.waiting: deque[Taken] = deque()
        """Pulled messages that are consumed or polled per queue. Concurrent consumers do not use it."""
        self.arrived = asyncio.Event()
        self.locked_s = 0.0
        """Monotonic time of the last confirmation that only this member has the queue."""
        self.locked_ms = self.pulled_ms = self.consumed_ms = Millis(0)
        self.pulling: asyncio.Task[None] | None = None
        self.consuming: asyncio.Task[None] | None = None
        self._in_hand: dict[int, int] = {}
        self._bytes = 0
        self._in_hand_max = in_hand_max
        self._in_hand_bytes_max = in_hand_bytes_max
        self._span_max = span_max
        self._room = asyncio.Event()
        self._room.set()
        self._going_on = asyncio.Event()
        self._going_on.set()

    def take(self, messages: Iterable[tuple[int, int]], next_offset: int) -> None:
        """Add pulled messages as (queue offset, bytes), in order. The next pull begins at `next_offset`."""
        for offset, size in messages:
            self._in_hand[offset] = size
            self._bytes += size
        self.next_offset = next_offset
        self._settle_room()

    def done(self, offset: int) -> None:
        self._bytes -= self._in_hand.pop(offset, 0)
        self._settle_room()

    async def room(self) -> None:
        """Wait until another pull is allowed."""
        while not (self._room.is_set() and self._going_on.is_set()):
            await self._room.wait()
            await self._going_on.wait()

    def pause(self, is_paused: bool) -> None:
        (self._going_on.clear if is_paused else self._going_on.set)()

    @property
    def is_paused(self) -> bool:
        return not self._going_on.is_set()

    @property
    def committable(self) -> int:
        """All messages before this queue offset are consumed."""
        return next(iter(self._in_hand), self.next_offset)

    @property
    def needs_commit(self) -> bool:
        return self.committable != self.committed or not self.is_kept

    def note_commit(self, offset: int, *, is_kept: bool) -> None:
        """Note that the store accepted `offset`."""
        self.committed, self.is_kept = offset, is_kept

    @property
    def in_hand(self) -> tuple[int, int, int]:
        if not self._in_hand:
            return 0, 0, 0
        return len(self._in_hand), next(iter(self._in_hand)), next(reversed(self._in_hand))

    @property
    def in_hand_bytes(self) -> int:
        return self._bytes

    def _settle_room(self) -> None:
        is_full = len(self._in_hand) >= self._in_hand_max or self._bytes >= self._in_hand_bytes_max
        is_full |= self.next_offset - next(iter(self._in_hand), self.next_offset) > self._span_max
        (self._room.clear if is_full else self._room.set)()


class PolledQueue(HeldQueue):
    """A queue whose messages count as consumed when the caller polls again or commits."""

    confirmed: int | None = None

    def confirm(self) -> None:
        self.confirmed = super().committable

    @property
    def committable(self) -> int:
        return self.committed if self.confirmed is None else self.confirmed

    @property
    def position(self) -> int:
        return super().committable
