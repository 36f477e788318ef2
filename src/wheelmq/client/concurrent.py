"""Consumes messages concurrently (RocketMQ: ConsumeMessageConcurrentlyService)."""

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
"""Delay before a message is handed to its callback again, if the broker did not take it back."""


class _Handover(NamedTuple):
    held: HeldQueue
    taken: Taken


class Concurrently:
    """Workers with one shared inbox for the messages of all queues, in order. The limits of held queues bound it."""

    def __init__(self, handling: Handling, settings: ConsumerSettings, clock: Clock) -> None:
        self._handling = handling
        self._settings = settings
        self._clock = clock
        self._inbox: asyncio.Queue[_Handover | None] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self._is_ending = False

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._settings.concurrency)]

    def gained(self, held: HeldQueue) -> None:
        """Do nothing: the queue is assigned to this member and has no messages yet."""

    async def lost(self, held: HeldQueue) -> bool:
        """Remove the messages of a queue that this member loses, so that no callback starts for them. Returns True.

        Callbacks that already run may overlap with callbacks of the queue's next member.
        """
        for _ in range(self._inbox.qsize()):
            waiting = self._inbox.get_nowait()
            if waiting is None or waiting.held is not held:
                self._inbox.put_nowait(waiting)
        return True

    def deliver(self, held: HeldQueue, messages: list[Taken]) -> None:
        for taken in messages:
            self._inbox.put_nowait(_Handover(held, taken))

    def end(self) -> None:
        self._is_ending = True
        for _ in self._workers:
            self._inbox.put_nowait(None)  # wakes a worker that waits for a message

    async def stop(self) -> None:
        """Start no more callbacks. Wait for the running ones for at most `stop_grace_ms`, then cancel them."""
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
                        "an error occurred, and the outcome of %s@%d is unknown",
                        waiting.held.queue,
                        waiting.taken.record.queue_offset,
                    )
                    asyncio.get_running_loop().call_later(SEND_BACK_AGAIN_S, self._inbox.put_nowait, waiting)

    async def _consume(self, waiting: _Handover) -> None:
        held, (record, _) = waiting
        verdict = await self._handling.handle(held.queue, waiting.taken)
        held.consumed_ms = self._clock.now_ms()
        is_settled = verdict.later is None
        if verdict.later is not None and self._settings.model is Model.BROADCASTING:
            log.error("%s@%d failed, and broadcast messages are not retried", held.queue, record.queue_offset)
            is_settled = True
        elif verdict.later is not None:
            is_settled = await self._handling.send_back(held.queue, record, verdict.later.delay_level)
        if is_settled:
            held.done(record.queue_offset)
        else:
            asyncio.get_running_loop().call_later(SEND_BACK_AGAIN_S, self._inbox.put_nowait, waiting)
