"""One queue that is this consumer's for now: where to pull next, what is in hand, how far it may be committed
(RocketMQ: ProcessQueue)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wheelmq.formats.wire.bodies import QueueName


class HeldQueue:
    """The state of one queue. Messages are taken in order and done in any order."""

    def __init__(self, queue: QueueName, start: int, in_hand_max: int, *, is_stored: bool = True) -> None:
        self.queue = queue
        self.next_offset = start
        self.committed = start if is_stored else -1
        """The queue offset that the broker was last told of; -1 when the group is new to it."""
        self.is_lost = False
        """Another member of the group has it now: what is still in hand is not committed any more."""
        self.task: asyncio.Task[None] | None = None
        self._in_hand: dict[int, None] = {}
        self._in_hand_max = in_hand_max
        self._room = asyncio.Event()
        self._room.set()

    def take(self, offsets: Sequence[int], next_offset: int) -> None:
        """Messages at `offsets` were pulled, in order; the next pull begins at `next_offset`."""
        self._in_hand.update(dict.fromkeys(offsets))
        self.next_offset = next_offset
        if len(self._in_hand) >= self._in_hand_max:
            self._room.clear()

    def done(self, offset: int) -> None:
        """The message at `offset` needs nothing more."""
        self._in_hand.pop(offset, None)
        if len(self._in_hand) < self._in_hand_max:
            self._room.set()

    async def room(self) -> None:
        """Wait until more may be pulled."""
        await self._room.wait()

    @property
    def committable(self) -> int:
        """Everything before this queue offset is done."""
        return next(iter(self._in_hand), self.next_offset)
