"""Messages are consumed side by side (RocketMQ: ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from wheelmq.client.consumer_settings import ConsumerSettings, Model
from wheelmq.client.group import cancel
from wheelmq.client.handling import Handling
from wheelmq.client.share import HeldQueue, Taken
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

SEND_BACK_AGAIN_S: Final = 5.0
"""Until a message that the broker did not take back is given to its callback again."""


class _Inbox(NamedTuple):
    held: HeldQueue
    taken: Taken


class Concurrently:
    """Workers that share one inbox: messages of all queues, as they come. What the queues hold bounds it."""

    def __init__(self, handling: Handling, settings: ConsumerSettings, clock: Clock) -> None:
        self._handling = handling
        self._settings = settings
        self._clock = clock
        self._inbox: asyncio.Queue[_Inbox | None] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._is_ending = False

    def start(self) -> None:
        """Begin to consume."""
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.concurrency)]

    def gained(self, held: HeldQueue) -> None:
        """A queue is ours: nothing is to be done before messages come."""

    async def lost(self, held: HeldQueue) -> bool:
        """A queue is given up: callbacks that run may end beside those of its next member, none begins any more."""
        for _ in range(self._inbox.qsize()):
            waiting = self._inbox.get_nowait()
            if waiting is None or waiting.held is not held:
                self._inbox.put_nowait(waiting)
        return True

    def deliver(self, held: HeldQueue, messages: list[Taken]) -> None:
        """Messages came."""
        for taken in messages:
            self._inbox.put_nowait(_Inbox(held, taken))

    def end(self) -> None:
        """Begin no callback any more."""
        self._is_ending = True
        for _ in self._workers:
            self._inbox.put_nowait(None)  # whoever waits for a message learns that it is over

    async def stop(self) -> None:
        """Let the callbacks that run finish, for as long as the settings grant."""
        self.end()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=self._settings.stop_grace_ms / 1000)
            await cancel(late)

    async def _work(self) -> None:
        while (waiting := await self._inbox.get()) is not None and not self._is_ending:
            if not waiting.held.ending.is_set() and not waiting.held.is_lost:
                try:
                    await self._consume(waiting)
                except Exception:
                    log.exception(
                        "what became of %s@%d is not known", waiting.held.queue, waiting.taken.record.queue_offset
                    )
                    asyncio.get_running_loop().call_later(SEND_BACK_AGAIN_S, self._inbox.put_nowait, waiting)

    async def _consume(self, waiting: _Inbox) -> None:
        held, (record, _) = waiting
        verdict = await self._handling.handle(held.queue, waiting.taken)
        held.consumed_ms = self._clock.now_ms()
        is_settled = verdict.later is None
        if verdict.later is not None and self._settings.model is Model.BROADCASTING:
            log.error("%s@%d failed and is not tried again: a broadcast", held.queue, record.queue_offset)
            is_settled = True
        elif verdict.later is not None:
            is_settled = await self._handling.send_back(held.queue, record, verdict.later.delay_level)
        if is_settled:
            held.done(record.queue_offset)
        else:
            asyncio.get_running_loop().call_later(SEND_BACK_AGAIN_S, self._inbox.put_nowait, waiting)
