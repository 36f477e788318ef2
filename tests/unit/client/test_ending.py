"""`run_forever` of consumers: a signal ends it, and the running callbacks are waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.client.conftest import Start
from wheelmq.client import (
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    SyncPushConsumer,
)
from wheelmq.client.ending import block_until_end


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Begin with the handlers of a new process: tests of commands in this process leave theirs."""
    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler))
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_async_consumer_after_its_callback(servers: Start, number: signal.Signals) -> None:
    done: list[bytes] = []

    async def callback(message: ReceivedMessage) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.05)
        done.append(message.body)

    async def scenario() -> None:
        async with servers() as running:
            consumer = PushConsumer(running.namesrv, "G")
            consumer.subscribe("T", callback)
            async with Producer(running.namesrv, ProducerSettings(timeout_ms=20_000)) as producer:
                await producer.send("T", "text")
            before = signal.getsignal(signal.SIGTERM)
            await asyncio.wait_for(consumer.run_forever(), 60)
            assert signal.getsignal(signal.SIGTERM) == before
            assert consumer.queues == []

    asyncio.run(scenario())
    assert done == [b"text"]


def test_a_cancellation_ends_it_and_the_consumer_stops(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            consumer = PushConsumer(running.namesrv, "G", ConsumerSettings())
            arrived = asyncio.Event()

            async def callback(message: ReceivedMessage) -> None:
                arrived.set()

            consumer.subscribe("T", callback)
            task = asyncio.create_task(consumer.run_forever())
            async with Producer(running.namesrv, ProducerSettings(timeout_ms=20_000)) as producer:
                await producer.send("T", b"x")
            await asyncio.wait_for(arrived.wait(), 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert consumer.queues == []

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_of_a_sync_consumer(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def send_signal() -> None:
        while signal.getsignal(signal.SIGTERM) == before:
            time.sleep(0.001)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send_signal)
    sender.start()
    block_until_end()
    sender.join()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_sync_consumer_stops_at_its_end(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = threading.Event()

    def script(namesrv: str) -> None:
        consumer = SyncPushConsumer(namesrv, "G")
        consumer.subscribe("T", lambda message: arrived.set())
        consumer.run_forever()
        assert consumer.queues == []

    async def scenario() -> None:
        async with servers() as running:
            async with Producer(running.namesrv) as producer:
                await producer.send("T", b"x")
            await asyncio.to_thread(script, running.namesrv)

    monkeypatch.setattr("wheelmq.client.sync.block_until_end", lambda: arrived.wait(60))
    asyncio.run(scenario())
    assert arrived.is_set()
