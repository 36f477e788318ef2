"""Operations of producers."""

from __future__ import annotations

import asyncio

import pytest

from compat.client.case import Inbox, World, case, until
from wheelmq.client import (
    CallError,
    CancelResult,
    OutgoingMessage,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
    Refused,
    SendResult,
    SendStatus,
    SyncProducer,
    TransactionProducer,
    TransactionState,
)
from wheelmq.system.clock import SystemClock

LATE_MAX_MS = 10_000
"""The largest lateness that still passes.

Lateness itself is measured by compat/java and bench, on a quiet machine.
"""


def now_ms() -> int:
    return SystemClock().now_ms()


@case
async def sends(world: World) -> None:
    """Messages sent singly, in parallel, oneway and in a batch each arrive once, over all queues of both brokers."""
    topic, inbox = await world.topic(), Inbox()
    async with world.producer() as producer, world.consumer(world.name(), topic, inbox):
        first = await producer.send(topic, b"one", keys=["k1", "k2"], tags="t", properties={"p": "é"})
        assert first.status is SendStatus.OK and len(first.message_id) == 32
        many = await asyncio.gather(*(producer.send(topic, b"m%d" % i) for i in range(16)))
        assert {one.queue.broker_name for one in many} == {"broker-a", "broker-b"}
        assert len({one.queue for one in many}) == 8
        await producer.send_oneway(topic, b"oneway")
        batch = await producer.send_batch(topic, [OutgoingMessage(body=b"b%d" % i, keys="k") for i in range(3)])
        assert [one.queue_offset - batch[0].queue_offset for one in batch] == [0, 1, 2]
        assert len({one.message_id for one in batch}) == len({one.unique_key for one in batch}) == 3
        expected = [b"one", b"oneway", *(b"m%d" % i for i in range(16)), *(b"b%d" % i for i in range(3))]
        await inbox.has(*expected)
        assert sorted(inbox.bodies) == sorted(expected)
        [one] = [message for message in inbox.messages if message.body == b"one"]
        assert (one.keys, one.tags, one.properties["p"]) == (["k1", "k2"], "t", "é")
        assert (one.unique_key, one.message_id) == (first.unique_key, first.message_id)


@case
async def ordered_sends(world: World) -> None:
    """Messages with one key are in one queue, in the order of the sends. A selector picks any other queue."""
    topic = await world.topic()
    async with world.producer() as producer:
        by_key = {key: [await producer.send(topic, b"x", order_key=key) for _ in range(3)] for key in "abcdef"}
        for results in by_key.values():
            assert len({one.queue for one in results}) == 1
            assert sorted(one.queue_offset for one in results) == [one.queue_offset for one in results]
        assert len({results[0].queue for results in by_key.values()}) > 1
        queues = await producer.queues(topic)
        picked = await producer.send(topic, b"x", select=lambda queues: queues[5])
        assert picked.queue == queues[5]
        [in_batch] = await producer.send_batch(topic, [OutgoingMessage(body=b"x")], order_key="a")
        assert in_batch.queue == by_key["a"][0].queue


@case
async def large_bodies(world: World) -> None:
    """A body over 4 KiB is compressed with zlib and arrives unchanged.

    A body that zlib does not shorten is sent unchanged.
    """
    topic, inbox = await world.topic(), Inbox()
    async with world.producer() as producer, world.consumer(world.name(), topic, inbox):
        long = b"long " * 10_000
        mixed = bytes((i * i * 7919 >> 3) & 0xFF for i in range(8000))
        for body in (long, mixed):
            await producer.send(topic, body)
        await inbox.has(long, mixed)
        with pytest.raises(ValueError, match="the limit is 4194304"):
            await producer.send(topic, bytes((4 << 20) + 1))


@case
async def delays(world: World) -> None:
    """Messages with a level, a delay or a time are early by at most the second that Apache rounds down."""
    topic, inbox = await world.topic(), Inbox()
    async with world.producer() as producer, world.consumer(world.name(), topic, inbox):
        sent_ms = now_ms()
        await producer.send(topic, b"level", delay_level=1)
        relative = await producer.send(topic, b"relative", delay_ms=1500)
        absolute = await producer.send(topic, b"absolute", deliver_at_ms=sent_ms + 2500)
        assert relative.due_ms is not None and absolute.due_ms == sent_ms + 2500
        await producer.send(topic, b"now")
        await inbox.has(b"now", b"level", b"relative", b"absolute")
        assert len(inbox.bodies) == 4
        came = {message.body: message for message in inbox.messages}
        assert came[b"level"].received_ms >= sent_ms + 990
        for body in (b"relative", b"absolute"):
            late_ms = came[body].lateness_ms
            assert late_ms is not None and -1000 < late_ms < LATE_MAX_MS


@case
async def cancels(world: World) -> None:
    """A timer is cancelled by its key and time, or by its handle. Messages due later show that it did not arrive."""
    topic, inbox = await world.topic(), Inbox()
    async with world.producer() as producer, world.consumer(world.name(), topic, inbox):
        by_key = await producer.send(topic, b"by key", delay_ms=8000)
        by_handle = await producer.send(topic, b"by handle", delay_ms=8000)
        fences = [
            await producer.send(topic, b"fence %d" % i, delay_ms=9500, select=lambda queues, i=i: queues[4 * i])  # type: ignore[misc]
            for i in range(2)
        ]
        assert by_key.due_ms is not None and by_handle.recall_handle is not None
        outcome = await producer.cancel(topic, by_key.unique_key, by_key.due_ms, broker_name=by_key.queue.broker_name)
        # WheelMQ returns the result; Apache only accepts the cancel
        assert outcome in (CancelResult.CANCELLED, CancelResult.ACCEPTED)
        assert await producer.recall(topic, by_handle.recall_handle) == by_handle.unique_key
        with pytest.raises(ValueError, match="not a recall handle"):
            await producer.recall(topic, "nonsense")
        await inbox.has(*(b"fence %d" % i for i in range(len(fences))))
        assert sorted(inbox.bodies) == [b"fence 0", b"fence 1"]


@case
async def refusals(world: World) -> None:
    """A rejection of the broker is raised, and the send is not retried."""
    topic = await world.topic()
    async with world.producer() as producer:
        with pytest.raises(Refused, match="code 1"):
            await producer.send("SCHEDULE_TOPIC_XXXX", b"", queue_id=0)
        with pytest.raises(ValueError, match="has no queue 4"):
            await producer.send(topic, b"", queue_id=4)
        with pytest.raises(Refused):
            await producer.send(topic, b"", delay_ms=4 * 86_400_000)


@case
async def transactions(world: World) -> None:
    """Transactions are committed, rolled back, or unknown.

    For an unknown one the broker asks, and the answer counts.
    """
    topic, inbox = await world.topic(), Inbox()
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT if message.body in (b"committed", b"found done") else TransactionState.ROLLBACK

    def fails(sent: SendResult) -> TransactionState:
        raise OSError("the database is away")

    says = {
        b"committed": lambda sent: TransactionState.COMMIT,
        b"rolled back": lambda sent: TransactionState.ROLLBACK,
        b"found done": lambda sent: TransactionState.UNKNOWN,
        b"found undone": fails,
    }
    settings = ProducerSettings(group=world.name("p"))
    async with (
        TransactionProducer(world.namesrv, check, settings) as producer,
        world.consumer(world.name(), topic, inbox),
    ):
        for body, execute in says.items():
            result = await producer.send_in_transaction(topic, body, execute, keys="k")
            assert result.sent.status is SendStatus.OK
        await until(lambda: {message.body for message in asked} >= {b"found done", b"found undone"})
        assert all(message.topic == topic and message.keys == ["k"] for message in asked)
        await inbox.has(b"committed", b"found done")
        for i in range(8):
            await producer.send(topic, b"fence %d" % i, select=lambda queues, i=i: queues[i])  # type: ignore[misc]
        await inbox.has(*(b"fence %d" % i for i in range(8)))
        assert sorted(body for body in inbox.bodies if not body.startswith(b"fence")) == [b"committed", b"found done"]


@case
async def requests_and_replies(world: World) -> None:
    """A request gets the reply of its consumer. A request without a reply ends after its timeout."""
    topic = await world.topic()
    async with world.producer() as asking, world.producer() as answering:
        problems: list[Refused] = []

        async def answer(message: ReceivedMessage) -> None:
            if message.body != b"silence":
                try:
                    await answering.reply(message, b"re: " + message.body)
                except Refused as rejection:
                    problems.append(rejection)

        async with world.consumer(world.name(), topic, answer):
            asked = asyncio.create_task(asking.request(topic, b"question", reply_within_ms=15_000))
            await until(lambda: asked.done() or bool(problems))
            if problems:
                asked.cancel()
                raise problems[0]
            reply = await asked
            assert reply.body == b"re: question"
            with pytest.raises(CallError, match="replied within 300 ms"):
                await asking.request(topic, b"silence", reply_within_ms=300)


@case
async def sync_face(world: World) -> None:
    """The same works without an event loop: from any thread, with plain callbacks."""
    topic = await world.topic()
    came: list[bytes] = []
    consumer = PushConsumer(world.namesrv, world.name())
    consumer.subscribe(topic, lambda message: came.append(message.body))

    def script() -> list[SendStatus]:
        with SyncProducer(world.namesrv) as producer:
            futures = [producer.send_async(topic, b"%d" % i) for i in range(4)]
            batch = producer.send_batch(topic, [OutgoingMessage(body=b"b")])
            return [batch[0].status, *(future.result().status for future in futures)]

    async with consumer:
        assert await asyncio.to_thread(script) == [SendStatus.OK] * 5
        await until(lambda: sorted(came) == [b"0", b"1", b"2", b"3", b"b"])
