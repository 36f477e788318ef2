"""Operations of consumers."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from compat.client.case import QUEUES, Inbox, World, alone, case, until
from wheelmq.client import (
    Consumed,
    Later,
    Model,
    PullConsumer,
    PullSettings,
    QueueName,
    ReceivedMessage,
    Refused,
    StartFrom,
)
from wheelmq.system.clock import SystemClock

ALL = 2 * QUEUES


async def fill(world: World, topic: str, bodies: list[bytes], *, tags: str | None = None) -> None:
    async with world.producer() as producer:
        for body in bodies:
            await producer.send(topic, body, tags=tags)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


@case
async def members_share(world: World) -> None:
    """Two members have half of the queues each, and one gets all when the other leaves.

    Each message reaches one of them.
    """
    topic, group = await world.topic(), world.name()
    one, two = Inbox(), Inbox()
    first, second = world.consumer(group, topic, one), world.consumer(group, topic, two)

    def own(consumer: object) -> int:
        return len([queue for queue in consumer.queues if queue.topic == topic])  # type: ignore[attr-defined]

    async with first:
        await until(lambda: own(first) == ALL)
        async with second:
            await until(lambda: own(first) == own(second) == ALL // 2)
            await fill(world, topic, numbered(16))
            await until(lambda: len(one.bodies) + len(two.bodies) >= 16)
            assert sorted(one.bodies + two.bodies) == sorted(numbered(16))
            assert one.bodies and two.bodies
        await until(lambda: own(first) == ALL)
        await fill(world, topic, numbered(8, 16))
        await one.has(*numbered(8, 16))


@case
async def a_group_goes_on(world: World) -> None:
    """Consumed messages do not reach the next member; all others do."""
    topic, group = await world.topic(), world.name()
    first, second = Inbox(), Inbox()
    await fill(world, topic, numbered(8))
    async with world.consumer(group, topic, first):
        await first.has(*numbered(8))
    await fill(world, topic, numbered(8, 8))
    async with world.consumer(group, topic, second):
        await second.has(*numbered(8, 8))
        assert sorted(second.bodies) == sorted(numbered(8, 8))


@case
async def filters(world: World) -> None:
    """Tags and expressions filter messages. An error in an expression is raised at the start."""
    topic = await world.topic()
    by_tag, by_sql = Inbox(), Inbox()
    async with (
        world.producer() as producer,
        world.consumer(world.name(), topic, by_tag, "red || blue"),
        world.consumer(world.name(), topic, by_sql, sql="size > 3 AND TAGS <> 'blue'"),
    ):
        for tag in ("red", "green", "blue"):
            for size in (1, 5):
                body = f"{tag} {size}".encode()
                await producer.send(topic, body, tags=tag, properties={"size": str(size)}, queue_id=0, order_key="k")
        await producer.send(topic, b"end", tags="red", properties={"size": "9"}, order_key="k")
        await by_tag.has(b"end")
        await by_sql.has(b"end")
    assert by_tag.bodies == [b"red 1", b"red 5", b"blue 1", b"blue 5", b"end"] or set(by_tag.bodies) == {
        b"red 1", b"red 5", b"blue 1", b"blue 5", b"end"
    }  # fmt: skip
    assert set(by_sql.bodies) == {b"red 5", b"green 5", b"end"}
    with pytest.raises(Refused, match="code 23"):
        await world.consumer(world.name(), topic, by_sql, sql="size >").start()


@case
async def retries(world: World) -> None:
    """A failed message arrives again after the level that the callback returns.

    After too many failures it is a dead letter.
    """
    topic, group = await world.topic(), world.name()
    inbox = Inbox({b"twice": [Later(1), Later(1)], b"hopeless": [Later(1), Later(1)], b"unwanted": [Later(-1)]})
    dead = Inbox()

    async def fussy(message: ReceivedMessage) -> object:
        if message.body == b"broken" and not message.reconsume_times:
            raise RuntimeError("the callback failed")
        return await inbox(message)

    await fill(world, topic, [b"twice", b"unwanted", b"broken"])
    async with world.consumer(group, topic, fussy):  # type: ignore[arg-type]
        await until(lambda: inbox.bodies.count(b"twice") == 3 and b"unwanted" in inbox.bodies)
    times = [message.reconsume_times for message in inbox.messages if message.body == b"twice"]
    assert times == [0, 1, 2]
    assert {message.topic for message in inbox.messages} == {topic}
    hopeless = world.name()
    await fill(world, topic, [b"hopeless"])
    async with world.consumer(hopeless, topic, inbox, reconsume_times_max=1):
        await until(lambda: inbox.bodies.count(b"hopeless") == 2)
        async with (
            world.consumer(world.name(), f"%DLQ%{hopeless}", dead),
            world.consumer(world.name(), f"%DLQ%{group}", dead),
        ):
            await dead.has(b"hopeless", b"unwanted")


@case
async def order(world: World) -> None:
    """Orderly: messages of a queue arrive in order, a failed one before its successors, at one member at a time."""
    topic, group = await world.topic(), world.name()
    seen: dict[QueueName, list[int]] = defaultdict(list)
    inside: set[QueueName] = set()
    tries: dict[bytes, int] = defaultdict(int)

    async def callback(message: ReceivedMessage) -> Consumed:
        queue = QueueName(topic=message.topic, broker_name=message.broker_name, queue_id=message.queue_id)
        assert queue not in inside, "two callbacks in one queue"
        inside.add(queue)
        await asyncio.sleep(0.005)
        inside.discard(queue)
        tries[message.body] += 1
        if message.body.endswith(b"3") and tries[message.body] < 3:
            assert message.reconsume_times == tries[message.body] - 1
            return Consumed.LATER
        seen[queue].append(int(message.body))
        return Consumed.DONE

    chosen = {"orderly": True, "suspend_ms": 50}
    first = world.consumer(group, topic, callback, **chosen)
    second = world.consumer(group, topic, callback, **chosen)
    async with world.producer() as producer, first:
        for i in range(20):
            await producer.send(topic, b"%d" % i, order_key="a" if i % 2 else "b")
        async with second:
            await until(lambda: {queue.topic for queue in second.queues} >= {topic})
            for i in range(20, 40):
                await producer.send(topic, b"%d" % i, order_key="a" if i % 2 else "b")
            await until(lambda: sum(map(len, seen.values())) >= 30)
        for i in range(40, 60):
            await producer.send(topic, b"%d" % i, order_key="a" if i % 2 else "b")
        await until(lambda: sum(map(len, seen.values())) >= 60)
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(60))
    assert all(numbers == sorted(numbers) for numbers in seen.values())


@case
async def order_gives_up(world: World) -> None:
    """Orderly with a limit: a message that always fails becomes a dead letter, and its queue continues."""
    topic, group = await world.topic(), world.name()
    inbox, dead = Inbox({b"bad": [Consumed.LATER] * 3}), Inbox()
    async with (
        world.producer() as producer,
        world.consumer(group, topic, inbox, orderly=True, suspend_ms=20, reconsume_times_max=2),
    ):
        for body in (b"bad", b"good"):
            await producer.send(topic, body, order_key="k")
        await inbox.has(b"good")
        assert inbox.bodies == [b"bad", b"bad", b"bad", b"good"]
        async with world.consumer(world.name(), f"%DLQ%{group}", dead):
            await dead.has(b"bad")


@case
async def broadcast(world: World) -> None:
    """Every member gets every message, and continues from the offsets in its own file."""
    topic, group = await world.topic(), world.name()
    chosen = {"model": Model.BROADCASTING, "offsets_folder": world.folder}
    one, two, again = Inbox(), Inbox(), Inbox()
    first = world.consumer(group, topic, one, instance="one", **chosen)
    async with first, world.consumer(group, topic, two, instance="two", **chosen):
        await fill(world, topic, numbered(8))
        await one.has(*numbered(8))
        await two.has(*numbered(8))
    [file] = world.folder.glob(f"*@one/{group}/offsets.json")
    assert b'{"offsetTable":{{"brokerName":"broker-' in file.read_bytes()
    await fill(world, topic, [b"later"])
    async with world.consumer(group, topic, again, instance="one", **chosen):
        await again.has(b"later")
    assert again.bodies == [b"later"]


@case
async def where_a_group_begins(world: World) -> None:
    """The broker returns offset 0 for a queue with its first message, whatever start a push consumer wants."""
    topic = await world.topic()
    await fill(world, topic, numbered(8))
    for start in (StartFrom.FIRST, StartFrom.LAST, StartFrom.TIMESTAMP):
        inbox = Inbox()
        async with world.consumer(world.name(), topic, inbox, start_from=start, start_ms=SystemClock().now_ms()):
            await inbox.has(*numbered(8))


@case
async def polls(world: World) -> None:
    """Polled messages count as consumed at the next poll. Other messages reach the next member."""
    topic, group = await world.topic(), world.name()
    await fill(world, topic, numbered(24))
    got: list[bytes] = []
    async with PullConsumer(world.namesrv, group) as consumer:
        consumer.subscribe(topic)
        while len(got) < 24:
            messages = await consumer.poll(15_000, count=5)
            assert 0 < len(messages) <= 5
            got += [message.body for message in messages]
        assert sorted(got) == sorted(numbered(24))
        assert await consumer.poll(50) == []
    await fill(world, topic, [b"next"])
    with pytest.raises(RuntimeError, match="failed"):
        async with PullConsumer(world.namesrv, group) as consumer:
            consumer.subscribe(topic)
            assert [message.body for message in await consumer.poll(15_000)] == [b"next"]
            raise RuntimeError("failed before it was consumed")
    async with PullConsumer(world.namesrv, group, PullSettings(auto_commit=False)) as consumer:
        consumer.subscribe(topic)
        assert [message.body for message in await consumer.poll(15_000)] == [b"next"]
        await consumer.commit()
        offsets = [await consumer.committed(queue) for queue in await consumer.queues_of(topic)]
        assert sum(offset or 0 for offset in offsets) == 25


@case
async def reading_queues(world: World) -> None:
    """A consumer with assigned queues seeks, pauses and starts at a time. It shares them with no other consumer."""
    topic = await world.topic(broker="broker-a")
    async with world.producer() as producer:
        early = [await producer.send(topic, b"%d" % i, queue_id=0) for i in range(5)]
        await asyncio.sleep(0.05)
        middle_ms = SystemClock().now_ms()
        await producer.send(topic, b"5", queue_id=0)
        await producer.send(topic, b"other", queue_id=1)
    queue, other = early[0].queue, QueueName(topic=topic, broker_name="broker-a", queue_id=1)
    async with PullConsumer(world.namesrv, world.name()) as consumer:
        assert queue in await consumer.queues_of(topic)
        consumer.assign([queue])
        got: list[bytes] = []
        while len(got) < 6:
            got += [message.body for message in await consumer.poll(15_000, count=2)]
        assert got == numbered(6)
        assert consumer.position(queue) == 6
        await consumer.seek(queue, 3)
        assert [message.body for message in await consumer.poll(15_000, count=1)] == [b"3"]
        await consumer.seek(queue, await consumer.offset_at(queue, middle_ms))
        assert [message.body for message in await consumer.poll(15_000)] == [b"5"]
        await consumer.seek_to_begin(queue)
        consumer.pause(queue)
        assert await consumer.poll(200) == []
        consumer.resume(queue)
        assert (await consumer.poll(15_000, count=1))[0].body == b"0"
        await consumer.seek_to_end(queue)
        assert await consumer.poll(100) == []
        consumer.assign([other])
        assert [message.body for message in await consumer.poll(15_000)] == [b"other"]
        with pytest.raises(KeyError, match="does not hold"):
            await consumer.seek(queue, 0)


@case
async def leaving(world: World) -> None:
    """A member or producer that stops leaves its group at once."""
    topic, group = await world.topic(), world.name()
    async with world.admin() as admin:
        consumer = world.consumer(group, topic, Inbox())
        async with consumer:
            await until(lambda: len(consumer.queues) >= ALL)
            assert len(await admin.consumers(group)) == 1
        assert await admin.consumers(group) == []


@alone
async def a_broker_goes_away(world: World) -> None:
    """Sends continue at the other broker, and the messages of the stopped broker arrive when it is back."""
    topic, group, inbox = await world.topic(), world.name(), Inbox()
    part = world.cluster.brokers["broker-b"]
    quick = {"keep_alive_ms": 500}
    async with world.producer(**quick) as producer, world.consumer(group, topic, inbox, **quick):
        await asyncio.gather(*(producer.send(topic, body) for body in numbered(8)))
        await inbox.has(*numbered(8))
        await asyncio.to_thread(part.kill)
        try:
            results = [await producer.send(topic, body) for body in numbered(8, 8)]
            assert {result.queue.broker_name for result in results} == {"broker-a"}
            await inbox.has(*numbered(8, 8))
        finally:
            await asyncio.to_thread(part.start)
        came_back: list[bytes] = []

        async def back() -> bool:
            result = await producer.send(topic, b"back %d" % len(came_back))
            came_back.append(b"back %d" % len(came_back))
            return result.queue.broker_name == "broker-b"

        async with asyncio.timeout(60):
            while not await back():
                await asyncio.sleep(0.2)
        await inbox.has(*came_back)


@alone
async def a_name_server_goes_away(world: World) -> None:
    """The other name server answers, for existing and new clients."""
    part = world.cluster.namesrvs[0]
    topic, group, inbox = await world.topic(), world.name(), Inbox()
    async with world.producer() as producer:
        await producer.send(topic, b"before")
        await asyncio.to_thread(part.kill)
        try:
            await producer.send(world.name("t"), b"elsewhere")  # asks for a route
            async with world.consumer(group, topic, inbox):
                await inbox.has(b"before")
        finally:
            await asyncio.to_thread(part.start)
