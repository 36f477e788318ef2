"""`wheelmq topics`, `groups` and `lag` with a running broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.cli.running import Command, Running, topic_registered
from tests.unit.client.conftest import ARRIVAL_DEADLINE_S, Servers
from wheelmq.cli.groups import GroupRow
from wheelmq.cli.lag import LagRow, QueueLag
from wheelmq.cli.names import NameKind, topic_kind
from wheelmq.cli.tables import counted
from wheelmq.cli.topics import TopicRow, perm_text
from wheelmq.client import Admin, Producer, PullConsumer


async def fill(servers: Servers) -> None:
    """Send five messages to Orders and one to Bills. The group billing consumes three of Orders."""
    async with Admin(servers.namesrv) as admin, Producer(servers.namesrv) as producer:
        await admin.create_topic("Orders", queues=2)
        await admin.create_topic("Bills", queues=1, perm=4 | 2)
        await admin.create_topic("Frozen", queues=1, perm=4)
        for i in range(5):
            await producer.send("Orders", b"%d" % i, order_key="one queue")
        await producer.send("Bills", b"x")
    async with PullConsumer(servers.namesrv, "billing") as consumer:
        consumer.subscribe("Orders")
        found: list[Any] = []
        while len(found) < 3:
            found += await consumer.poll(timeout_ms=20_000, count=3 - len(found))


def test_topics_lists_those_of_users(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        assert "The first message to a topic creates it" in await wheelmq("topics")
        assert await wheelmq("topics", "--json") == "[]\n"
        await fill(servers)
        rows = json.loads(await wheelmq("topics", "--json"))
        assert [(row["topic"], row["queues"], row["perm"], row["messages"]) for row in rows] == [
            ("Bills", 1, "RW", 1),
            ("Frozen", 1, "R", 0),
            ("Orders", 2, "RW", 5),
        ]
        assert {row["kind"] for row in rows} == {"user"} and rows[0]["brokers"] == ["broker-a"]
        assert rows[0]["last_stored_ms"] > 0 and rows[1]["last_stored_ms"] is None
        table = await wheelmq("topics")
        assert "3 topics" in table and "%RETRY%billing" not in table
        every = json.loads(await wheelmq("topics", "--all", "--json"))
        kinds = {row["topic"]: row["kind"] for row in every}
        assert kinds["%RETRY%billing"] == "retry" and kinds["TBW102"] == kinds["broker-a"] == "system"
        assert "%RETRY%billing" in await wheelmq("topics", "--all")
        for row in every:
            assert tuple(row) == TopicRow.__struct_fields__

    running(work)


def test_groups_have_members_lag_and_dead_letters(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        assert "The first consumer of a group creates it" in await wheelmq("groups")
        await fill(servers)
        async with Producer(servers.namesrv) as producer:
            await producer.send("%DLQ%billing", b"dead")
        async with asyncio.timeout(ARRIVAL_DEADLINE_S):
            await topic_registered(servers, "%DLQ%billing")
        expected = {
            "group": "billing",
            "kind": "user",
            "members": 0,
            "topics": ["Orders"],
            "lag": 2,
            "dead_letters": 1,
        }
        assert json.loads(await wheelmq("groups", "--json")) == [expected]
        assert tuple(expected) == GroupRow.__struct_fields__
        async with PullConsumer(servers.namesrv, "billing") as consumer:
            consumer.subscribe("Orders")
            async with asyncio.timeout(ARRIVAL_DEADLINE_S), Admin(servers.namesrv) as admin:
                while not await admin.consumers("billing"):  # the heartbeat follows the start
                    await asyncio.sleep(0.005)
            [row] = json.loads(await wheelmq("groups", "--json"))
            assert row["members"] == 1
        table = await wheelmq("groups")
        assert "1 group" in table and "TOOLS_CONSUMER" not in table
        assert "TOOLS_CONSUMER" in await wheelmq("groups", "--all")

    running(work)


def test_lag_is_listed_per_topic_and_queue(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        assert "No group has consumed anything" in await wheelmq("lag")
        await fill(servers)
        whole = await wheelmq("lag", "--json")
        rows = {row["topic"]: row for row in json.loads(whole)}
        orders = rows["Orders"]
        assert tuple(orders) == LagRow.__struct_fields__
        assert (orders["group"], orders["lag"]) == ("billing", 2) and orders["last_consumed_ms"] > 0
        assert {tuple(queue) for queue in orders["queues"]} == {QueueLag.__struct_fields__}
        assert sorted((queue["committed_offset"], queue["end_offset"], queue["lag"]) for queue in orders["queues"]) == [
            (0, 0, 0),
            (3, 5, 2),
        ]
        chosen = ("--group", "billing", "--topic", "Orders")
        assert json.loads(await wheelmq("lag", *chosen, "--json")) == [orders]
        assert json.loads(await wheelmq("lag", *chosen, "--queues", "--json")) == [orders]
        table = await wheelmq("lag")
        assert "2 messages in all" in table and "committed" not in table
        assert "committed" in await wheelmq("lag", "--queues")
        assert "there is no group nobody: `wheelmq groups`" in await wheelmq("lag", "--group", "nobody", code=1)
        assert "does not know topic Absent" in await wheelmq("lag", "--topic", "Absent", code=1)

    running(work)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (12345, "12,345 messages")]
)
def test_a_count_has_its_noun(number: int, text: str) -> None:
    assert counted(number, "message") == text


def test_a_list_without_a_broker_is_an_error(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await servers.app.stop()
        for words in (["topics"], ["topics", "--json"], ["groups"], ["groups", "--json"], ["lag"]):
            out = await wheelmq(*words, code=1)
            assert "no master is registered at the name server. Start a broker with `wheelmq up`" in out

    running(work)


def test_kinds_and_permissions() -> None:
    kinds = {topic: topic_kind(topic, {"broker-a"}) for topic in ("T", "%DLQ%g", "%RETRY%g", "broker-a", "rmq_sys_x")}
    assert list(kinds.values()) == [
        NameKind.USER,
        NameKind.DEAD_LETTERS,
        NameKind.RETRY,
        NameKind.SYSTEM,
        NameKind.SYSTEM,
    ]
    assert topic_kind("%SYNC_BROKER_MEMBER_broker-a", set()) is NameKind.SYSTEM
    assert topic_kind("DefaultCluster_REPLY_TOPIC", set()) is NameKind.SYSTEM
    assert [perm_text(perm) for perm in (0, 2, 4, 6, 7)] == ["-", "W", "R", "RW", "RW"]
