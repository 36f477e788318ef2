"""Consumes the messages of each queue one by one, in order (RocketMQ: ConsumeMessageOrderlyService).

Each queue has one task. A failed message is retried after a pause, and all later messages of the queue wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from wheelmq.client.consumer_settings import ConsumerSettings, Model
from wheelmq.client.group import cancel, text
from wheelmq.client.handling import TO_DEAD_LETTERS, Handling
from wheelmq.client.share import HeldQueue, Taken
from wheelmq.system.backports import timeout
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

LETTING_GO_S: Final = 1.0
"""How long one attempt to release a queue waits for its callback. The next rebalance waits again."""


class Orderly:
    """One task per queue. `concurrency` limits how many of them run a callback at the same time."""

    def __init__(
        self,
        handling: Handling,
        settings: ConsumerSettings,
        clock: Clock,
        is_locked: Callable[[HeldQueue], bool],
        lock_lost: Callable[[HeldQueue], None],
    ) -> None:
        self._handling = handling
        self._settings = settings
        self._clock = clock
        self._is_locked = is_locked
        self._lock_lost = lock_lost
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._held: set[HeldQueue] = set()

    def start(self) -> None:
        """Do nothing: each queue starts its task in `gained`."""

    def gained(self, held: HeldQueue) -> None:
        self._held.add(held)
        held.consuming = asyncio.create_task(self._consume(held))

    async def lost(self, held: HeldQueue) -> bool:
        """Stop the task of a queue that this member loses. Returns whether its last callback has ended."""
        held.ending.set()
        held.arrived.set()
        if held.consuming is not None and not held.consuming.done():
            await asyncio.wait([held.consuming], timeout=LETTING_GO_S)
            if not held.consuming.done():
                return False
        self._held.discard(held)
        return True

    def deliver(self, held: HeldQueue, messages: list[Taken]) -> None:
        held.waiting.extend(messages)
        held.arrived.set()

    def end(self) -> None:
        for held in self._held:
            held.ending.set()
            held.arrived.set()

    async def stop(self) -> None:
        """Start no more callbacks. Wait for the running ones for at most `stop_grace_ms`, then cancel them."""
        self.end()
        tasks = [held.consuming for held in self._held if held.consuming is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.stop_grace_ms / 1000)
            await cancel(late)

    async def _consume(self, held: HeldQueue) -> None:
        times = 0
        while not held.ending.is_set():
            if not held.waiting:
                held.arrived.clear()
                await held.arrived.wait()
                continue
            async with self._slots:
                if held.ending.is_set():
                    return
                if not self._is_locked(held):
                    log.warning("another member may have %s: its lock was not renewed", text(held.queue))
                    self._lock_lost(held)
                    return
                taken = held.waiting[0]
                try:
                    is_settled = await self._is_settled(held, taken, times)
                except Exception:
                    log.exception(
                        "an error occurred, and the outcome of %s@%d is unknown",
                        text(held.queue),
                        taken.record.queue_offset,
                    )
                    is_settled = False
            if is_settled:
                held.waiting.popleft()
                held.done(taken.record.queue_offset)
                times = 0
                continue
            times += 1
            with suppress(TimeoutError):
                async with timeout(self._settings.suspend_ms / 1000):
                    await held.ending.wait()

    async def _is_settled(self, held: HeldQueue, taken: Taken, times: int) -> bool:
        verdict = await self._handling.handle(held.queue, taken, times)
        held.consumed_ms = self._clock.now_ms()
        if verdict.later is None:
            return True
        times_max = self._settings.reconsume_times_max
        is_hopeless = times_max is not None and taken.record.message.reconsume_times + times >= times_max
        if verdict.later.delay_level != TO_DEAD_LETTERS and not is_hopeless:
            return False
        if self._settings.model is Model.BROADCASTING:
            log.error("%s@%d failed and is skipped", text(held.queue), taken.record.queue_offset)
            return True
        return await self._handling.send_back(held.queue, taken.record, TO_DEAD_LETTERS)
