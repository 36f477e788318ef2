"""Queues that one member locks, and a lost lock."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.client.conftest import Servers, Start, until
from wheelmq.client import Consumed, ConsumerSettings, Producer, PushConsumer, ReceivedMessage
from wheelmq.client import group as group_module
from wheelmq.client.handling import Handling
from wheelmq.client.locks import MemberLocks
from wheelmq.client.routes import TopicRoute
from wheelmq.client.session import Session
from wheelmq.client.share import HeldQueue
from wheelmq.formats.wire import bodies, frame
from wheelmq.formats.wire.bodies import Heartbeat, LockBatch, QueueName
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import SystemClock

QUEUE = QueueName(topic="T", broker_name="broker-a", queue_id=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "SETTLE_S", 0.02)
    monkeypatch.setattr(group_module, "LOCK_RENEW_S", 0.02)


def consumer(running: Servers, callback: Any, **settings: Any) -> PushConsumer:
    made = PushConsumer(running.namesrv, "G", ConsumerSettings(orderly=True, suspend_ms=10, **settings))
    made.subscribe("T", callback)
    return made


def test_a_member_drops_a_queue_until_it_holds_the_lock_again(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            seen: list[bytes] = []

            async def callback(message: ReceivedMessage) -> None:
                seen.append(message.body)

            await producer.send("T", b"first", queue_id=0)
            async with consumer(running, callback) as one:
                await until(lambda: seen == [b"first"])
                broker = running.app.broker
                assert broker is not None
                now_ms = broker.parts.clock.monotonic_ms()
                broker.parts.locks.unlock("G", [QUEUE], one._session.client_id)
                assert broker.parts.locks.lock("G", [QUEUE], "other", now_ms) == [QUEUE]
                await until(lambda: QUEUE not in one.queues)
                await producer.send("T", b"second", queue_id=0)
                broker.parts.consumer_offsets.commit("G", "T", 0, 0)  # the other member restarts the queue
                broker.parts.locks.unlock("G", [QUEUE], "other")
                await until(lambda: len(seen) == 3)
                assert seen == [b"first", b"first", b"second"]
                assert QUEUE in one.queues

    asyncio.run(scenario())


def test_a_queue_with_an_expired_lock_is_replaced(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "LOCK_RENEW_S", 3600.0)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            seen: list[bytes] = []

            async def callback(message: ReceivedMessage) -> None:
                seen.append(message.body)

            await producer.send("T", b"first", queue_id=0)
            async with consumer(running, callback) as one:
                await until(lambda: seen == [b"first"])
                held = one._group.held[QUEUE]
                held.locked_s -= group_module.LOCK_LASTS_S
                await producer.send("T", b"second", queue_id=0)
                await until(lambda: held.is_lost)
                await until(lambda: b"second" in seen)  # a new HeldQueue locked the queue again
                assert one._group.held[QUEUE] is not held

    asyncio.run(scenario())


def test_a_queue_is_released_after_its_callback_ends(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            inside: list[str] = []
            going_on = asyncio.Event()

            async def slow(message: ReceivedMessage) -> None:
                inside.append("first")
                await going_on.wait()

            async def quick(message: ReceivedMessage) -> None:
                inside.append("second")

            def of_topic(member: PushConsumer) -> list[HeldQueue]:
                """The held queues without the retry queue, whose release waits for no callback."""
                return [held for queue, held in member._group.held.items() if queue.topic == "T"]

            for i in range(4):
                await producer.send("T", b"x", queue_id=i)
                await producer.send("T", b"y", queue_id=i)
            async with consumer(running, slow) as first:
                await until(lambda: len(inside) == 4)
                async with consumer(running, quick) as second:
                    await until(lambda: any(held.ending.is_set() for held in of_topic(first)))
                    assert "second" not in inside
                    assert not [queue for queue in second.queues if queue.topic == "T"]
                    going_on.set()
                    await until(lambda: "second" in inside)
                    assert len([queue for queue in first.queues if queue.topic == "T"]) <= 4
            assert inside.count("first") + inside.count("second") == 8

    asyncio.run(scenario())


def test_a_stop_ends_the_pause_before_a_retry(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            tried = asyncio.Event()

            async def callback(message: ReceivedMessage) -> Consumed:
                tried.set()
                return Consumed.LATER

            await producer.send("T", b"x", queue_id=0)
            settings = ConsumerSettings(orderly=True, suspend_ms=3_600_000)
            one = PushConsumer(running.namesrv, "G", settings)
            one.subscribe("T", callback)
            async with one:
                await tried.wait()
            assert running.app.broker is not None
            assert running.app.broker.parts.consumer_offsets.get("G", "T", 0) in (None, 0)

    asyncio.run(scenario())


def test_an_internal_error_does_not_stop_a_queue(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    mistakes = [TypeError("ours")]
    handle = Handling.handle

    async def fail_once(self: Handling, *args: Any) -> Any:
        if mistakes:
            raise mistakes.pop()
        return await handle(self, *args)

    monkeypatch.setattr(Handling, "handle", fail_once)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            seen: list[tuple[bytes, int]] = []

            async def callback(message: ReceivedMessage) -> None:
                seen.append((message.body, message.reconsume_times))

            await producer.send("T", b"x", queue_id=0)
            async with consumer(running, callback):
                await until(lambda: seen == [(b"x", 1)])

    asyncio.run(scenario())


def test_a_slow_broker_does_not_delay_the_locks_of_others() -> None:
    async def scenario() -> None:
        session = Session("127.0.0.1:1", clock=SystemClock(), beat=lambda: Heartbeat(client_id="c"))
        servers = []
        answered = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readexactly(4)
            asked = frame.decode(raw := head + await reader.readexactly(int.from_bytes(head, "big")), 0, len(raw))
            [queue] = bodies.read(asked.body, LockBatch).mq_set
            if queue.broker_name == "slow":
                await answered.wait()
            body = bodies.write({"lockOKMQSet": [queue]})
            answer = Command(code=0, opaque=asked.opaque, flag=frame.FLAG_RESPONSE, body=body)
            writer.write(frame.encode(answer))
            if queue.broker_name == "quick":
                answered.set()

        queues = [QueueName(topic="T", broker_name=name, queue_id=0) for name in ("slow", "quick")]
        addresses = {}
        for queue in queues:
            servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
            addresses[queue.broker_name] = f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"
        session.routes._known["T"] = TopicRoute("T", tuple(queues), tuple(queues), addresses)
        session.routes._addresses |= addresses
        assert await MemberLocks(session, "G").lock(queues) == dict.fromkeys(queues, True)
        await session.connections.close()
        for server in servers:
            server.close()

    asyncio.run(scenario())


def test_a_queue_waits_for_a_slow_callback_in_a_thread(servers: Start) -> None:
    """No other thread gets its message, or the message after it, in the meantime."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            going_on = threading.Event()
            seen: list[tuple[bytes, int]] = []

            def callback(message: ReceivedMessage) -> None:
                seen.append((message.body, message.reconsume_times))
                going_on.wait(20)

            await producer.send("T", b"slow", queue_id=0)
            await producer.send("T", b"next", queue_id=0)
            async with consumer(running, callback, consume_timeout_ms=10):
                await until(lambda: len(seen) == 1)
                await asyncio.sleep(0.1)  # ten times the limit of a coroutine
                going_on.set()
                await until(lambda: len(seen) == 2)
            assert seen == [(b"slow", 0), (b"next", 0)]

    asyncio.run(scenario())
