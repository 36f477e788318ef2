"""The acts of the demonstration: a burst due at one millisecond, a stream, cancels, and a kill of Spark's JVM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from wheelmq.cli.demo_messages import DemoKind, DemoMessage, DemoMessages
from wheelmq.cli.stack import Stack, StackFailed
from wheelmq.cli.times import clock_text
from wheelmq.client import ConsumerSettings, PushConsumer
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.producer import Producer, ProducerSettings
from wheelmq.client.results import CancelResult
from wheelmq.pipeline.supervisor import PipelineState
from wheelmq.system.clock import Clock

TOPICS: Final = {DemoKind.BURST: "DemoBurst", DemoKind.STREAM: "DemoStream"}
GROUP: Final = "demo"
BURST: Final = 5000
CANCELS: Final = 100
"""Messages of the burst that are cancelled: one half before the kill, the other half after it."""
GREETINGS: Final = 200
"""Messages without a delay. They warm up both sides and measure how fast this machine sends."""
SENDS_AT_ONCE: Final = 64
AHEAD_S: Final = 5.0
"""Time from the end of the sends to the burst, if they take as long as measured."""
SLOWNESS: Final = 1.5
"""How much longer than measured the sends of the burst may take."""
KILL_BEFORE_S: Final = 3.0
"""The kill is this long before the burst. Spark needs more time to start again."""
STREAM_PAUSE_S: Final = 0.01
STREAM_DELAYS_MS: Final = range(500, 2000, 37)
AFTERWARDS_S: Final = 1.0
"""How long the stream continues after the pipeline is back, and how long the run waits for duplicates."""
GREETING_DEADLINE_S: Final = 30.0
PATIENCE_S: Final = 15.0
"""How long the run waits for a message after its due time."""
PIPELINE_PATIENCE_S: Final = 120.0
"""A start takes 8 s on two free cores, and ten times as long on a busy machine."""
LOOK_S: Final = 0.1
SEND_TIMEOUT_MS: Final = 15_000

T = TypeVar("T")


class DemoRun:
    """Sends, cancels, kills and consumes. It calls `say` with each event."""

    def __init__(self, stack: Stack, clock: Clock, say: Callable[[str], None], *, burst: int = BURST) -> None:
        self.messages = DemoMessages()
        self.metrics: dict[str, Any] | None = None
        self.burst = burst
        self.killed_ms: int | None = None
        self.back_ms: int | None = None
        """When the pipeline made its first turn after the kill."""
        self.turns = 0
        self._stack = stack
        self._clock = clock
        self._say = say
        self._is_over = asyncio.Event()
        self._deaths = 0
        self._killed_turn = 0
        self._first_turn: int | None = None

    # State ---------------------------------------------------------------------------------------------------------

    def is_restarting(self, time_ms: int) -> bool:
        """Return whether the pipeline was down or starting at a time."""
        return self.killed_ms is not None and self.killed_ms <= time_ms < (self.back_ms or time_ms + 1)

    @property
    def burst_kept(self) -> int:
        """The number of messages of the burst that the demo does not cancel."""
        return self.burst - len(self.messages.cancelled())

    def pipeline_text(self) -> str:
        if self.killed_ms is None:
            return "Spark turns"
        if self.back_ms is None:
            return f"Spark killed {(self._clock.now_ms() - self.killed_ms) / 1000:.0f} s ago"
        return "Spark is back"

    def problems(self) -> list[str]:
        """Return a line for each way in which the run failed; an empty list for a good run."""
        found = self.messages.problems()
        if self.killed_ms is None:
            found.append("the run ended before Spark was killed")
        elif self.back_ms is None:
            found.append(
                f"the pipeline made no turn within {PIPELINE_PATIENCE_S:g} s after the kill: see its log, and run the "
                "demo again while no other program uses the processors"
            )
        return found

    # Acts ----------------------------------------------------------------------------------------------------------

    async def perform(self) -> None:
        """Send all messages and wait for them. Raises StackFailed, CallError and Refused."""
        settings = ConsumerSettings(concurrency=1)
        consumer = PushConsumer(self._stack.namesrv_address, GROUP, settings, clock=self._clock)
        for topic in TOPICS.values():
            consumer.subscribe(topic, self._arrived)
        sending = ProducerSettings(timeout_ms=SEND_TIMEOUT_MS)
        async with Producer(self._stack.namesrv_address, sending, clock=self._clock) as producer:
            for topic in TOPICS.values():  # the consumer finds its queues only in topics that exist
                await self._greet(producer, topic)
            async with consumer:
                rate = await self._warm_up(producer)
                due_ms = await self._send_burst(producer, rate)
                await _both(self._stream(producer), self._strike(producer, due_ms))
                await self._until(DemoKind.STREAM, self._clock.now_ms())
                await asyncio.sleep(AFTERWARDS_S)

    async def _greet(self, producer: Producer, topic: str) -> None:
        greeting = self.messages.add(DemoKind.GREETING, self._clock.now_ms())
        await producer.send(topic, greeting.body)

    async def _warm_up(self, producer: Producer) -> float:
        """Send messages without a delay, and wait for them. Returns the sends per second."""
        began_s = self._clock.monotonic()
        topics = list(TOPICS.values())
        await _in_parallel(lambda i: self._greet(producer, topics[i % len(topics)]), range(GREETINGS))
        took_s = self._clock.monotonic() - began_s
        try:
            async with asyncio.timeout(GREETING_DEADLINE_S):
                while not self.messages.have_arrived(DemoKind.GREETING):
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise StackFailed(f"messages sent at once did not arrive within {GREETING_DEADLINE_S:g} s") from None
        return GREETINGS / took_s

    async def _send_burst(self, producer: Producer, rate: float) -> int:
        """Send the messages that are due at one millisecond. Returns their due time."""
        ahead_s = AHEAD_S + SLOWNESS * self.burst / rate
        due_ms = (self._clock.now_ms() + int(ahead_s * 1000)) // 1000 * 1000 + 1000
        await self.note_metrics()
        began_s = self._clock.monotonic()
        burst = [self.messages.add(DemoKind.BURST, due_ms) for _ in range(self.burst)]
        await _in_parallel(lambda one: self._send(producer, one), burst)
        self._check_time(due_ms)
        took_s = self._clock.monotonic() - began_s
        self._say(f"Sent {self.burst:,} messages in {took_s:.1f} s, all due at {clock_text(due_ms)}.")
        return due_ms

    async def _send(self, producer: Producer, one: DemoMessage) -> None:
        if one.kind is DemoKind.BURST:
            self._check_time(one.due_ms)
        sent = await producer.send(TOPICS[one.kind], one.body, deliver_at_ms=one.due_ms)
        one.unique_key, one.acknowledged_ms = sent.unique_key, self._clock.now_ms()

    def _check_time(self, due_ms: int) -> None:
        """Check that the burst is not due yet. Raises StackFailed."""
        if self._clock.now_ms() >= due_ms:
            raise StackFailed(
                "this machine is too busy: the burst was due before the demo was ready. End other programs, and run "
                "the demo again"
            )

    async def _stream(self, producer: Producer) -> None:
        """Send one message after another until the run is over."""
        delays = f"{STREAM_DELAYS_MS[0] / 1000:g} to {STREAM_DELAYS_MS[-1] / 1000:.0f} s"
        self._say(f"A stream starts: {1 / STREAM_PAUSE_S:.0f} messages per second, each {delays} ahead.")
        number = 0
        while not self._is_over.is_set():
            delay_ms = STREAM_DELAYS_MS[number % len(STREAM_DELAYS_MS)]
            number += 1
            await self._send(producer, self.messages.add(DemoKind.STREAM, self._clock.now_ms() + delay_ms))
            await asyncio.sleep(STREAM_PAUSE_S)

    async def _strike(self, producer: Producer, due_ms: int) -> None:
        """Cancel messages, kill the JVM before the burst, and wait until burst and pipeline have arrived."""
        doomed = self.messages.of(DemoKind.BURST)[:: max(1, self.burst // CANCELS)][:CANCELS]
        await self._cancel(producer, doomed[::2], "Cancelled")
        await asyncio.sleep(max(0.0, due_ms / 1000 - KILL_BEFORE_S - self._clock.now_ms() / 1000))
        await self.kill(due_ms)
        await self._cancel(producer, doomed[1::2], "Without the pipeline, cancelled")
        await self._until(DemoKind.BURST, due_ms)
        self._say_burst(due_ms)
        await self.wait_for_pipeline()
        await asyncio.sleep(AFTERWARDS_S)
        self._is_over.set()

    async def _cancel(self, producer: Producer, doomed: Sequence[DemoMessage], text: str) -> None:
        async def cancel(one: DemoMessage) -> None:
            one.cancel_result = await producer.cancel(TOPICS[one.kind], one.unique_key, one.due_ms)

        await _in_parallel(cancel, doomed)
        self._check_time(doomed[0].due_ms)
        done = sum(one.cancel_result is CancelResult.CANCELLED for one in doomed)
        self._say(f"{text} {done} messages of the burst by their keys.")

    async def kill(self, due_ms: int) -> None:
        """Kill Spark's JVM. Raises StackFailed if there is none, or if the burst is due already."""
        pipeline = self._stack.pipeline
        pid = None if pipeline is None else pipeline.jvm_pid
        if pipeline is None or pid is None:
            raise StackFailed(f"Spark's JVM does not run, so it cannot be killed: see {self._stack.logs}")
        await self.note_metrics()
        self._deaths, self._killed_turn = pipeline.child.deaths, self._turn
        self._check_time(due_ms)
        os.kill(pid, signal.SIGKILL)
        self.killed_ms = self._clock.now_ms()
        ahead_s = (due_ms - self.killed_ms) / 1000
        self._say(f"KILLED Spark's JVM by SIGKILL (process {pid}), {ahead_s:.1f} s before the burst.")

    def _say_burst(self, due_ms: int) -> None:
        burst = self.messages.delivered(DemoKind.BURST)
        if burst:
            released_ms = max(one.arrivals[0].released_ms for one in burst) - due_ms
            received_ms = max(one.lateness_ms for one in burst)
            self._say(
                f"The burst of {len(burst):,} was due: its last message was in the topic after {released_ms} ms, "
                f"at the consumer after {received_ms} ms."
            )

    async def wait_for_pipeline(self) -> None:
        """Wait until a new driver has made a turn, at most PIPELINE_PATIENCE_S."""
        until_s = self._clock.monotonic() + PIPELINE_PATIENCE_S
        while self._clock.monotonic() < until_s:
            await self.note_metrics()
            if self._has_turned():
                self.back_ms = self._clock.now_ms()
                self._say(
                    f"The pipeline makes turns again, {(self.back_ms - (self.killed_ms or 0)) / 1000:.1f} s later."
                )
                return
            self._stack.raise_failure()
            await asyncio.sleep(LOOK_S)

    def _has_turned(self) -> bool:
        pipeline = self._stack.pipeline
        if pipeline is None or pipeline.child.deaths <= self._deaths:
            return False
        return pipeline.state is PipelineState.TURNING and self._turn > self._killed_turn

    async def _until(self, kind: DemoKind, due_ms: int) -> None:
        """Wait until all messages of a kind have arrived, at most PATIENCE_S after the last due time."""
        last_ms = max((one.due_ms for one in self.messages.of(kind)), default=due_ms)
        while not self.messages.have_arrived(kind) and self._clock.now_ms() < last_ms + PATIENCE_S * 1000:
            self._stack.raise_failure()
            await asyncio.sleep(LOOK_S)

    async def _arrived(self, message: ReceivedMessage) -> None:
        self.messages.note_arrival(message)
        await asyncio.sleep(0)  # other pulls come between the messages of a burst

    # Metrics -------------------------------------------------------------------------------------------------------

    @property
    def _turn(self) -> int:
        return self.metrics["pipeline"]["turn"] if self.metrics is not None else 0

    async def note_metrics(self) -> None:
        """Read the broker's metrics, and count the pipeline's turns since the first call."""
        found = await self._stack.metrics()
        if found is not None:
            self.metrics = found
            self._first_turn = self._turn if self._first_turn is None else self._first_turn
            self.turns = self._turn - self._first_turn


async def _in_parallel(act: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Call `act` for each item, with SENDS_AT_ONCE calls at a time. The first exception ends all of them."""
    waiting = iter(items)

    async def work() -> None:
        for one in waiting:
            await act(one)

    await _both(*(work() for _ in range(SENDS_AT_ONCE)))


async def _both(*work: Coroutine[Any, Any, None]) -> None:
    """Await coroutines at the same time. The first exception cancels the others and is raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
