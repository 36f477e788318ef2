"""The pull consumer against a name server and a broker in the same loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.conftest import Start, until
from wheelmq.client import MessageError, Producer, PullConsumer, PullSettings, QueueName
from wheelmq.client.outgoing import OutgoingMessage

QUEUE = QueueName(topic="T", broker_name="broker-a", queue_id=0)


def test_a_poll_raises_for_an_unreadable_message_and_then_skips_it(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for body, flag in ((b"one", 0), (b"in LZ4", 0x101), (b"three", 0)):
                parcel = producer._pack("T", OutgoingMessage(body=body, queue_id=0))
                parcel.header.sys_flag = flag
                await producer._deliver(parcel)
            async with PullConsumer(running.namesrv, "G") as one:
                one.assign([QUEUE])
                assert [message.body for message in await one.poll(20_000)] == [b"one"]
                with pytest.raises(MessageError, match="LZ4"):
                    await one.poll(20_000)
                assert [message.body for message in await one.poll(20_000)] == [b"three"]
                await one.commit()
                assert await one.committed(QUEUE) == 3

    asyncio.run(scenario())


def test_a_stop_does_not_commit_unconfirmed_messages(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(3):
                await producer.send("T", b"%d" % i, queue_id=0)
            async with PullConsumer(running.namesrv, "G", PullSettings(auto_commit=False)) as one:
                one.assign([QUEUE])
                assert len(await one.poll(20_000, count=2)) == 2
                await one.commit()
                assert len(await one.poll(20_000)) == 1
            assert running.app.broker is not None
            assert running.app.broker.parts.consumer_offsets.get("G", "T", 0) == 2

    asyncio.run(scenario())


def test_a_consumer_beyond_the_end_continues_at_the_end(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"old", queue_id=0)
            assert running.app.broker is not None
            running.app.broker.parts.consumer_offsets.commit("G", "T", 0, 100)
            async with PullConsumer(running.namesrv, "G") as one:
                one.assign([QUEUE])
                await until(lambda: QUEUE in one._group.held and one.position(QUEUE) == 1)
                await producer.send("T", b"new", queue_id=0)
                assert [message.body for message in await one.poll(20_000)] == [b"new"]
            assert running.app.broker.parts.consumer_offsets.get("G", "T", 0) == 2

    asyncio.run(scenario())


def test_a_consumer_either_subscribes_or_has_assigned_queues(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"x")
            async with PullConsumer(running.namesrv, "G") as one:
                one.subscribe("T")
                with pytest.raises(RuntimeError, match="has subscriptions"):
                    one.assign([QUEUE])
                await until(lambda: len(one.queues) == 4)
                one.unsubscribe("T")
                await until(lambda: not one.queues)
            async with PullConsumer(running.namesrv, "H") as two:
                two.assign([QUEUE])
                with pytest.raises(RuntimeError, match="has assigned queues"):
                    two.subscribe("T")
                with pytest.raises(KeyError):
                    two.pause(QueueName(topic="U", broker_name="b", queue_id=1))

    asyncio.run(scenario())


def test_a_poll_of_a_consumer_that_does_not_run_raises_an_error(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            consumer = PullConsumer(running.namesrv, "G")
            with pytest.raises(RuntimeError, match="not started"):
                await consumer.poll()
            async with consumer:
                assert await consumer.poll(1) == []
            with pytest.raises(RuntimeError, match="not started"):
                await consumer.poll()

    asyncio.run(scenario())
