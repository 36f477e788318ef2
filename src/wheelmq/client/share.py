"""One queue that is this consumer's for now: where to pull next, what is in hand, how far it may be committed
(RocketMQ: ProcessQueue)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.bodies import QueueName


class Taken(NamedTuple):
    """A message that was pulled."""

    record: Record
    received_ms: Millis


class HeldQueue:
    """The state of one queue. Messages are taken in order and done in any order."""

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
        """The queue offset that was last stored for the group; -1 when none is."""
        self.is_lost = False
        """It is not ours any more, or begun anew elsewhere: what is still in hand is not committed."""
        self.ending = asyncio.Event()
        """It is to be given up: no callback begins any more."""
        self.waiting: deque[Taken] = deque()
        """What was pulled and is handed out queue by queue: orderly, or polled."""
        self.arrived = asyncio.Event()
        self.locked_s = 0.0
        """When a broker last said that this member has the queue alone, on the monotonic clock."""
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
        """Messages were pulled, by queue offset and bytes, in order; the next pull begins at `next_offset`."""
        for offset, size in messages:
            self._in_hand[offset] = size
            self._bytes += size
        self.next_offset = next_offset
        self._settle_room()

    def done(self, offset: int) -> None:
        """The message at `offset` needs nothing more."""
        self._bytes -= self._in_hand.pop(offset, 0)
        self._settle_room()

    async def room(self) -> None:
        """Wait until more may be pulled."""
        while not (self._room.is_set() and self._going_on.is_set()):
            await self._room.wait()
            await self._going_on.wait()

    def pause(self, is_paused: bool) -> None:
        """Stop pulling for now, or go on."""
        (self._going_on.clear if is_paused else self._going_on.set)()

    @property
    def is_paused(self) -> bool:
        return not self._going_on.is_set()

    @property
    def committable(self) -> int:
        """Everything before this queue offset is done."""
        return next(iter(self._in_hand), self.next_offset)

    @property
    def in_hand(self) -> tuple[int, int, int]:
        """What is in hand: how many, the first and the last queue offset; zeros when nothing is."""
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
    """A queue whose messages are done when whoever polled them says so, by polling again or by a commit."""

    confirmed: int | None = None

    def confirm(self) -> None:
        """What was handed out is done."""
        self.confirmed = super().committable

    @property
    def committable(self) -> int:
        return self.committed if self.confirmed is None else self.confirmed

    @property
    def position(self) -> int:
        """The queue offset of the message that is handed out next."""
        return super().committable
