"""The sync clients: async clients in an event loop of their own thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.unit.client.conftest import Start, until
from wheelmq.client import (
    CallError,
    ConsumerSettings,
    QueueName,
    ReceivedMessage,
    SyncAdmin,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
    TransactionState,
)
from wheelmq.client.sync import Loop

T = TypeVar("T")


def run_in_thread(servers: Start, script: Callable[[str], T]) -> T:
    """Run `script` in its own thread, with the address of a name server. Returns its result."""

    async def scenario() -> T:
        async with servers() as running:
            return await asyncio.to_thread(script, running.namesrv)

    return asyncio.run(scenario())


def test_every_client_has_a_sync_class(servers: Start) -> None:
    def script(namesrv: str) -> None:
        came: list[bytes] = []
        arrived = threading.Event()

        def callback(message: ReceivedMessage) -> None:
            came.append(message.body)
            arrived.set()

        consumer = SyncPushConsumer(namesrv, "push")
        consumer.subscribe("T", callback)
        with (
            SyncAdmin(namesrv) as admin,
            SyncProducer(namesrv) as producer,
            SyncTransactionProducer(namesrv, lambda message: TransactionState.UNKNOWN) as transactions,
        ):
            admin.create_topic("T", queues=2)
            with consumer:
                done = transactions.send_in_transaction("T", b"paid", lambda sent: TransactionState.COMMIT)
                assert done.state is TransactionState.COMMIT
                assert arrived.wait(20)
            assert came == [b"paid"]
            assert transactions.send("T", b"plain").queue in producer.queues("T")
            with SyncPullConsumer(namesrv, "pull") as pulling:
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                pulling.assign([queue, QueueName(topic="T", broker_name="broker-a", queue_id=1)])
                bodies: list[bytes] = []
                while len(bodies) < 2:
                    bodies += [message.body for message in pulling.poll(20_000)]
                assert set(bodies) == {b"paid", b"plain"}
                pulling.pause(queue)
                pulling.resume(queue)
                assert len(pulling.queues) == 2 and pulling.position(queue) in (0, 1, 2)
                with pytest.raises(KeyError):
                    pulling.seek(QueueName(topic="U", broker_name="b", queue_id=0), 1)

    run_in_thread(servers, script)


def test_heartbeats_continue_between_calls(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            assert running.app.broker is not None
            producers = running.app.broker.parts.clients.producers
            producer = SyncProducer(running.namesrv)
            await asyncio.to_thread(producer.start)
            await asyncio.to_thread(producer.send, "T", b"x")
            await until(lambda: list(producers) == ["WHEELMQ_PRODUCER"])
            await running.restart_broker()
            assert running.app.broker is not None
            await asyncio.to_thread(producer.send, "T", b"x")
            assert list(running.app.broker.parts.clients.producers) == ["WHEELMQ_PRODUCER"]
            await asyncio.to_thread(producer.stop)
            assert list(running.app.broker.parts.clients.producers) == []

    asyncio.run(scenario())


def test_a_call_in_the_wrong_state_raises_an_error() -> None:
    producer = SyncProducer("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="not started"):
        producer.send("T", b"x")
    producer.stop()
    with producer:
        with pytest.raises(RuntimeError, match="already started"):
            producer.start()
        with pytest.raises(CallError):
            producer.send("T", b"x")
    producer.stop()
    with pytest.raises(RuntimeError, match="not started"):
        producer.send_async("T", b"x")


def test_a_sync_call_in_the_loop_thread_raises_an_error(servers: Start) -> None:
    """A coroutine callback runs in that thread. Without the error the call would block forever."""

    def script(namesrv: str) -> list[str]:
        told: list[str] = []
        over = threading.Event()
        consumer = SyncPushConsumer(namesrv, "G")

        async def callback(message: ReceivedMessage) -> None:
            try:
                consumer.stop()
            except RuntimeError as error:
                told.append(str(error))
            over.set()

        consumer.subscribe("T", callback)
        with SyncProducer(namesrv) as producer, consumer:
            producer.send("T", b"x")
            assert over.wait(20)
        return told

    [told] = run_in_thread(servers, script)
    assert told.startswith("the client's own thread cannot wait for the client")


def test_a_failed_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="subscribe"):
        SyncPushConsumer("127.0.0.1:1", "G").start()
    assert threading.active_count() == before


def test_a_stop_leaves_no_other_thread_waiting() -> None:
    """A coroutine submitted during the stop completes or raises an error."""

    def work(loop: Loop) -> None:
        with contextlib.suppress(RuntimeError, CancelledError):
            while True:
                loop.submit(asyncio.sleep(0)).result(20)

    for _ in range(30):
        loop = Loop()
        loop.start()
        with ThreadPoolExecutor(4) as threads:
            working = [threads.submit(work, loop) for _ in range(4)]
            loop.stop()
            for one in working:
                one.result()


def test_two_threads_may_stop_a_client() -> None:
    producer = SyncProducer("127.0.0.1:1")
    producer.start()
    with ThreadPoolExecutor(4) as threads:
        for one in [threads.submit(producer.stop) for _ in range(4)]:
            one.result()
    with pytest.raises(RuntimeError, match="create another one"):
        producer.start()


def test_a_client_of_the_parent_process_raises_an_error_in_a_child() -> None:
    with SyncProducer("127.0.0.1:1") as producer:
        child = os.fork()
        if child == 0:
            try:
                producer.send("T", b"x")
            except RuntimeError as error:
                os._exit(7 if "was started in process" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_callback_that_calls_exit_has_failed(servers: Start) -> None:
    """The exit stops neither the loop nor the threads that wait for it."""

    def script(namesrv: str) -> list[int]:
        times: list[int] = []
        again = threading.Event()

        def callback(message: ReceivedMessage) -> None:
            times.append(message.reconsume_times)
            if message.reconsume_times == 0:
                sys.exit(1)
            again.set()

        consumer = SyncPushConsumer(namesrv, "G", ConsumerSettings(orderly=True, suspend_ms=10))
        consumer.subscribe("T", callback)
        with SyncProducer(namesrv) as producer, consumer:
            producer.send("T", b"x")
            assert again.wait(20)
        return times

    assert run_in_thread(servers, script) == [0, 1]
