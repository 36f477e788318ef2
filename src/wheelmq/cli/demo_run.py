"""The demonstration: send messages, wait for them, and list the problems."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from wheelmq.cli.stack import Stack
from wheelmq.client import ConsumerSettings, PushConsumer
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.producer import Producer
from wheelmq.client.results import CancelResult
from wheelmq.system.clock import Clock

TOPIC: Final = "Demo"
GROUP: Final = "demo"
DELAYS_MS: Final = (1000, 2000, 3000, 5000, 5000, 8000, 12_000)
CANCELLED_MS: Final = 10_000
GREETING_DEADLINE_S: Final = 30.0
PATIENCE_MS: Final = 15_000
"""How long the demonstration waits for a message after its due time."""
LINGER_MS: Final = 1000
"""How long it waits for duplicates after all messages have arrived."""
TURN_PATIENCE_S: Final = 60.0
"""How long it waits for a first turn. The broker needs no turn for messages that are due soon."""
QUIET_MS: Final = 100
LOOK_S: Final = 0.05


@dataclass
class Planned:
    delay_ms: int
    due_ms: int
    unique_key: str
    is_cancelled: bool = False
    arrivals_ms: list[int] = field(default_factory=list)

    @property
    def lateness_ms(self) -> int | None:
        return self.arrivals_ms[0] - self.due_ms if self.arrivals_ms else None


class Run:
    """Sends, cancels and consumes messages. The caller passes the broker's metrics to `note`."""

    def __init__(self, stack: Stack, clock: Clock) -> None:
        self.planned: list[Planned] = []
        self.metrics: dict[str, Any] | None = None
        self.turns_before = 0
        self.awaits_turn = False
        """Whether all messages have arrived and the run waits only for the pipeline's first turn."""
        self.cancel_result: CancelResult | None = None
        """The broker's answer to the cancel, which is the last request."""
        self._stack = stack
        self._clock = clock
        self._greeting = ""
        self._greeted = asyncio.Event()

    @property
    def turns(self) -> int:
        return self.metrics["pipeline"]["turn"] - self.turns_before if self.metrics and self.planned else 0

    def note(self, metrics: dict[str, Any] | None) -> None:
        if metrics is not None:
            self.metrics = metrics

    def is_quiet(self) -> bool:
        now_ms = self._clock.now_ms()
        return not any(0 < one.due_ms - now_ms < QUIET_MS for one in self.planned)

    async def deliver(self) -> None:
        """Send all messages and wait for them. Raises ConnectionError."""
        consumer = PushConsumer(self._stack.namesrv_address, GROUP, ConsumerSettings(concurrency=1), clock=self._clock)
        consumer.subscribe(TOPIC, self._arrived)
        async with Producer(self._stack.namesrv_address, clock=self._clock) as producer:
            self._greeting = (await producer.send(TOPIC, b"hello")).unique_key
            async with consumer:
                await self._wait_for_greeting()
                await self._send(producer)
                await self._wait()
                await self.wait_for_turn()

    async def _wait_for_greeting(self) -> None:
        """Wait until the consumer has its queues. Otherwise the first messages would arrive late."""
        try:
            async with asyncio.timeout(GREETING_DEADLINE_S):
                await self._greeted.wait()
        except TimeoutError:
            raise ConnectionError(f"a message sent at once did not arrive within {GREETING_DEADLINE_S:g} s") from None

    async def _send(self, producer: Producer) -> None:
        self.note(await self._stack.metrics())
        self.turns_before = self.metrics["pipeline"]["turn"] if self.metrics else 0
        start_ms = self._clock.now_ms()
        plan = sorted([(delay, False) for delay in DELAYS_MS] + [(CANCELLED_MS, True)])
        for delay_ms, is_cancelled in plan:
            due_ms = start_ms + delay_ms
            body = f"{delay_ms / 1000:g} s"
            result = await producer.send(TOPIC, body.encode(), keys=f"demo-{delay_ms}", deliver_at_ms=due_ms)
            self.planned.append(Planned(delay_ms, due_ms, result.unique_key, is_cancelled))
        for one in self.planned:
            if one.is_cancelled:
                self.cancel_result = await producer.cancel(TOPIC, one.unique_key, one.due_ms)

    async def _wait(self) -> None:
        last_ms = max(one.due_ms for one in self.planned)
        while self._clock.now_ms() < last_ms + PATIENCE_MS:
            if all(one.arrivals_ms for one in self.planned if not one.is_cancelled):
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(LINGER_MS / 1000)

    async def wait_for_turn(self) -> None:
        """Wait until the pipeline has made a turn since the messages were sent, at most TURN_PATIENCE_S."""
        until_s = self._clock.monotonic() + TURN_PATIENCE_S
        self.note(await self._stack.metrics())
        while self.turns < 1 and self._clock.monotonic() < until_s:
            self.awaits_turn = True
            await asyncio.sleep(LOOK_S)
            self.note(await self._stack.metrics())
        self.awaits_turn = False

    async def _arrived(self, message: ReceivedMessage) -> None:
        if message.unique_key == self._greeting:
            self._greeted.set()
        for one in self.planned:
            if one.unique_key == message.unique_key:
                one.arrivals_ms.append(message.received_ms)

    def problems(self) -> list[str]:
        found = []
        for one in self.planned:
            name = f"the message of {one.delay_ms / 1000:g} s"
            if one.is_cancelled:
                if one.arrivals_ms:
                    found.append(f"{name} was cancelled and arrived")
            elif not one.arrivals_ms:
                found.append(f"{name} did not arrive")
            elif len(one.arrivals_ms) > 1:
                found.append(f"{name} arrived {len(one.arrivals_ms)} times")
            if one.arrivals_ms and min(one.arrivals_ms) < one.due_ms:
                found.append(f"{name} arrived {one.due_ms - min(one.arrivals_ms)} ms early")
        if self.cancel_result is not CancelResult.CANCELLED:
            found.append(f"the cancel was answered by {self.cancel_result!s}")
        if self.turns < 1:
            found.append(f"the pipeline made no turn within {TURN_PATIENCE_S:g} s of the last message")
        return found
