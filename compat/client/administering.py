"""Operations of administrators, and answers of consumers through the broker."""

from __future__ import annotations

import pytest

from compat.client.case import QUEUES, Inbox, World, case, eventually, until
from compat.client.consuming import fill, numbered
from wheelmq.client import Admin, CallError, Consumed, Refused, TopicUnknown


@case
async def topics(world: World) -> None:
    """Topics are created, listed, changed and deleted at every broker and name server."""
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
    """Brokers are listed, with their runtime information and settings."""
    async with world.admin() as admin:
        assert await admin.brokers() == {name: part.address for name, part in world.cluster.brokers.items()}
        assert sorted((await admin.clusters())["DefaultCluster"]) == ["broker-a", "broker-b"]
        info = await admin.runtime_info("broker-a")
        assert info["brokerVersionDesc"] == "V5_3_3" and int(info["commitLogMaxOffset"]) > 0
        assert (await admin.broker_config("broker-b"))["brokerName"] == "broker-b"


@case
async def finding(world: World) -> None:
    """A message is found by its key, its unique key and its id."""
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
    """Queues have their offsets, and a time has its first message."""
    topic = await world.topic()
    await fill(world, topic, numbered(16))
    async with world.admin() as admin:
        found = await admin.spans(topic)
        assert len(found) == 2 * QUEUES and {span.start for span in found.values()} == {0}
        assert sum(span.end for span in found.values()) == 16
        assert await admin.offset_at(next(iter(found)), 0) == 0


@case
async def statistics(world: World) -> None:
    """Statistics of a topic, and of the progress of a group."""
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
    """Groups are created, and deleted with all their data."""
    group = world.name()
    async with world.admin() as admin:
        await admin.create_group(group)
        await admin.delete_group(group)


async def is_done(admin: Admin, group: str, topic: str, count: int) -> bool:
    """Return whether a group has consumed `count` messages of a topic, according to the brokers."""
    return sum(one.consumer_offset for one in (await admin.consumer_progress(group, topic)).values()) == count


@case
async def resets(world: World) -> None:
    """The offsets of an active group are reset, and all its messages arrive again.

    The first broker resets them through its answers to pulls. The second has the member reset them (code 220), which
    knows its own offsets.
    """
    for broker in ("broker-a", "broker-b"):
        await reset_at(world, broker)


async def reset_at(world: World, broker: str) -> None:
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
    """A member returns its running information through the broker."""
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
    """A message that an administrator names is passed to a member's callback, whatever its earlier result was."""
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
    """An error names the kind of server that cannot be reached."""
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(CallError, match="cannot be reached"):
            await admin.topics()
