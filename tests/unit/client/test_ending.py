"""`run_forever` of consumers: a signal ends it, and the running callbacks are waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


SETUP = """
import asyncio, sys
from wheelmq.client import PushConsumer, SyncPushConsumer
from wheelmq.testing import TestBroker

async def consume(namesrv):
    consumer = PushConsumer(namesrv, "billing")
    consumer.subscribe("T", print)
    await consumer.start()
    return consumer

broker = TestBroker()
broker.start()
"""
SYNC = """
consumer = SyncPushConsumer(broker.namesrv, "billing")
consumer.subscribe("T", print)
consumer.start()
"""
HINT = "right after the start of the consumer of group billing"


@pytest.mark.parametrize(
    ("program", "has_hint"),
    [
        (SYNC, True),
        ("asyncio.run(consume(broker.namesrv))", True),
        (f"{SYNC}sys.exit()", True),
        (f"{SYNC}consumer.stop()", False),
        (f"{SYNC}raise ValueError", False),
        (f"from wheelmq.client import unstopped\nunstopped.HINT_S = 0\n{SYNC}", False),
        ("async def main():\n    await (await consume(broker.namesrv)).stop()\nasyncio.run(main())", False),
        (f"{SYNC}import os\nif os.fork() == 0: sys.exit()\nos.wait()\nconsumer.stop()", False),
    ],
    ids=["sync", "async", "exit", "stopped", "error", "later", "async-stopped", "fork"],
)
def test_a_script_that_only_starts_a_consumer_gets_a_hint(program: str, has_hint: bool) -> None:
    sources = str(Path(__file__).parents[3] / "src")
    run = subprocess.run(
        [sys.executable, "-c", SETUP + program],
        env={**os.environ, "PYTHONPATH": sources, "WHEELMQ_KERNELS": "plain"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stderr.count(HINT) == has_hint, run.stderr
    assert not has_hint or "run_forever()" in run.stderr
