"""What an administrator does, and what consumers answer through the broker."""

from __future__ import annotations

import pytest

from compat.client.case import QUEUES, Inbox, World, case, eventually, until
from compat.client.consuming import fill, numbered
from wheelmq.client import Admin, CallError, Consumed, Refused, TopicUnknown


@case
async def topics(world: World) -> None:
    """Made, seen, changed and deleted at every broker and name server."""
    topic = world.name("t")
    async with world.admin() as admin:
        with pytest.raises(TopicUnknown):
            await admin.route(topic)
        await admin.create_topic(topic, queues=2)
        route = await admin.route(topic)
        assert len(route.readable) == 4 and set(route.masters) == {"broker-a", "broker-b"}
        assert topic in await admin.topics()
        await admin.create_topic(topic, queues=3)

        async def has_six() -> bool:
            return len((await admin.route(topic)).writable) == 6

        await eventually(has_six, "the queues are not six")
        await admin.delete_topic(topic)
        with pytest.raises(TopicUnknown):
            await admin.route(topic)
        with pytest.raises(Refused):
            await admin.create_topic("SCHEDULE_TOPIC_XXXX")
        with pytest.raises(ValueError, match="there is no broker x: broker-"):
            await admin.create_topic(topic, broker_name="x")


@case
async def brokers(world: World) -> None:
    """Who is there, and what it tells of itself."""
    async with world.admin() as admin:
        assert await admin.brokers() == {name: part.address for name, part in world.cluster.brokers.items()}
        assert sorted((await admin.clusters())["DefaultCluster"]) == ["broker-a", "broker-b"]
        info = await admin.runtime_info("broker-a")
        assert info["brokerVersionDesc"] == "V5_3_3" and int(info["commitLogMaxOffset"]) > 0
        assert (await admin.broker_config("broker-b"))["brokerName"] == "broker-b"


@case
async def finding(world: World) -> None:
    """A message by its key, its unique key and its id."""
    topic = await world.topic()
    async with world.producer() as producer, world.admin() as admin:
        sent = await producer.send(topic, b"wanted", keys=["order-1", "both"])
        await producer.send(topic, b"other", keys=["order-2", "both"])

        async def is_indexed() -> bool:
            return len(await admin.find(topic, "both")) == 2

        await eventually(is_indexed, "the messages are not found by their key")
        assert [message.body for message in await admin.find(topic, "order-1")] == [b"wanted"]
        assert [message.message_id for message in await admin.find_unique(topic, sent.unique_key)] == [sent.message_id]
        assert await admin.find(topic, "nobody") == []
        viewed = await admin.view(sent.message_id)
        assert (viewed.body, viewed.broker_name, viewed.keys) == (
            b"wanted",
            sent.queue.broker_name,
            ["order-1", "both"],
        )
        with pytest.raises(ValueError, match="hex"):
            await admin.view("12")


@case
async def spans(world: World) -> None:
    """What queues hold, and which message was the first since a time."""
    topic = await world.topic()
    await fill(world, topic, numbered(16))
    async with world.admin() as admin:
        found = await admin.spans(topic)
        assert len(found) == 2 * QUEUES and {span.start for span in found.values()} == {0}
        assert sum(span.end for span in found.values()) == 16
        assert await admin.offset_at(next(iter(found)), 0) == 0


@case
async def statistics(world: World) -> None:
    """Of a topic, and of how far a group is."""
    topic, group, inbox = await world.topic(), world.name(), Inbox()
    await fill(world, topic, numbered(16))
    async with world.admin() as admin:

        async def is_counted() -> bool:
            stats = await admin.topic_stats(topic)
            return sum(one.max_offset for one in stats.values()) == 16 and len(stats) == 2 * QUEUES

        await eventually(is_counted, "the queues do not hold 16 messages")
        async with world.consumer(group, topic, inbox):
            await inbox.has(*numbered(16))
        await fill(world, topic, numbered(3, 16))

        async def is_behind() -> bool:
            progress = (await admin.consumer_progress(group, topic)).values()
            return (sum(one.behind for one in progress), sum(one.consumer_offset for one in progress)) == (3, 16)

        await eventually(is_behind, "the group is not 3 messages behind 16")


@case
async def groups(world: World) -> None:
    """Made and deleted, with what is kept of it."""
    group = world.name()
    async with world.admin() as admin:
        await admin.create_group(group)
        await admin.delete_group(group)


async def is_done(admin: Admin, group: str, topic: str, count: int) -> bool:
    """Whether the brokers know that a group has consumed so many messages of a topic."""
    return sum(one.consumer_offset for one in (await admin.consumer_progress(group, topic)).values()) == count


@case
async def resets(world: World) -> None:
    """A group that consumes is put back: all comes again. At the first broker it does so itself, through its answers to
    pulls; at the second it has the member do it (code 220), of which it knows where it is."""
    for broker in ("broker-a", "broker-b"):
        await reset_at(world, broker)


async def reset_at(world: World, broker: str) -> None:
    """The same at one broker."""
    topic, group, inbox = await world.topic(broker=broker), world.name(), Inbox()
    await fill(world, topic, numbered(8))
    async with world.admin() as admin, world.consumer(group, topic, inbox):
        await eventually(lambda: is_done(admin, group, topic, 8), "the group has not committed")
        moved = await admin.reset_offsets(group, topic, 0)
        assert set(moved.values()) == {0} and len(moved) == QUEUES
        await fill(world, topic, [b"wake %d" % i for i in range(QUEUES)])
        await until(lambda: sorted(inbox.bodies)[:16] == sorted(numbered(8) * 2))


@case
async def running_information(world: World) -> None:
    """What a member tells of itself through the broker."""
    topic, group = await world.topic(), world.name()
    consumer = world.consumer(group, topic, Inbox(), orderly=True)
    async with consumer, world.admin() as admin:
        await until(lambda: len([queue for queue in consumer.queues if queue.topic == topic]) == 2 * QUEUES)
        [member] = await admin.consumers(group)
        assert member.language == "PYTHON"
        info = await admin.running_info(group, member.client_id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CONSUMEORDERLY"] == "true"
        assert {one["topic"] for one in info.subscription_set} == {topic, f"%RETRY%{group}"}
        assert sum(f'"topic":"{topic}"' in queue for queue in info.mq_table) == 2 * QUEUES
        assert all(one.locked for one in info.mq_table.values())
        with pytest.raises(Refused):
            await admin.running_info(group, "nobody")


@case
async def consuming_directly(world: World) -> None:
    """A message that an administrator names is given to a member's callback, whatever it said before."""
    topic, group = await world.topic(), world.name()
    inbox = Inbox({b"x": [Consumed.DONE, Consumed.LATER]})
    await fill(world, topic, [b"x"])
    async with world.consumer(group, topic, inbox), world.admin() as admin:
        await inbox.has(b"x")
        [member] = await admin.consumers(group)
        for expected in ("CR_LATER", "CR_SUCCESS"):
            result = await admin.consume_directly(group, member.client_id, inbox.messages[0])
            assert result.consume_result == expected
        assert inbox.bodies == [b"x"] * 3


@case
async def no_servers(world: World) -> None:
    """Who is not there is told as what it is."""
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(CallError, match="cannot be reached"):
            await admin.topics()
