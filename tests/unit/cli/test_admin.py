"""`wheelmq admin`: mqadmin's commands with a running broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.cli.running import Command, Running, topic_registered
from tests.unit.cli.test_lists import fill
from tests.unit.client.conftest import ARRIVAL_DEADLINE_S, Servers, until
from wheelmq.cli import main
from wheelmq.cli.admin_brokers import BrokerRow, ValueRow
from wheelmq.cli.admin_groups import MemberRow, OffsetRow
from wheelmq.cli.admin_messages import MessageRow
from wheelmq.cli.admin_topics import QueueRow, RouteRow
from wheelmq.cli.lag import LagRow
from wheelmq.cli.topics import TopicRow
from wheelmq.client import Admin, Producer, PushConsumer


async def rows(wheelmq: Command, shape: type[msgspec.Struct], *words: str) -> list[dict[str, Any]]:
    """Return the rows of a command with --json. Each has the fields of `shape`, and the table is printed too."""
    found: list[dict[str, Any]] = json.loads(await wheelmq("admin", *words, "--json"))
    assert all(tuple(row) == shape.__struct_fields__ for row in found)
    assert await wheelmq("admin", *words)
    return found


def test_brokers_and_their_settings(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        [broker] = await rows(wheelmq, BrokerRow, "clusterList")
        assert (broker["cluster"], broker["broker"], broker["broker_id"]) == ("DefaultCluster", "broker-a", 0)
        assert broker["address"] == servers.address and broker["version"]
        for words in (["-b", servers.address], ["-b", "broker-a"], ["-c", "DefaultCluster"], []):
            figures = {row["name"]: row["value"] for row in await rows(wheelmq, ValueRow, "brokerStatus", *words)}
            assert figures["brokerActive"] == "true"
        for words in (["-b", "other"], ["-c", "Other"]):
            out = await wheelmq("admin", "brokerStatus", *words, code=1)
            assert "the brokers are broker-a (127.0.0.1:" in out or "the clusters are DefaultCluster" in out
        changed = await wheelmq("admin", "updateBrokerConfig", "-b", "broker-a", "-k", "fileReservedTime", "-v", "48")
        assert changed == "Changed fileReservedTime to 48 at broker-a.\n"
        table = {row["name"]: row["value"] for row in await rows(wheelmq, ValueRow, "getBrokerConfig")}
        assert table["fileReservedTime"] == "48"
        wrong = ("updateBrokerConfig", "-c", "DefaultCluster", "-k", "fileReservedTime", "-v", "soon")
        assert "fileReservedTime" in await wheelmq("admin", *wrong, code=1)

    running(work)


def test_topics_are_created_shown_and_deleted(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        out = await wheelmq("admin", "updateTopic", "-t", "T", "-c", "DefaultCluster", "-r", "4", "-w", "2")
        assert out == "The topic T has 2 queues at broker-a.\n"
        [route] = await rows(wheelmq, RouteRow, "topicRoute", "-t", "T")
        assert (route["read_queues"], route["write_queues"], route["perm"]) == (4, 2, "RW")
        async with Producer(servers.namesrv) as producer:
            await producer.send("T", b"x", queue_id=1)
        queues = await rows(wheelmq, QueueRow, "topicStatus", "--topic", "T")
        assert [(row["queue_id"], row["max_offset"]) for row in queues] == [(0, 0), (1, 1), (2, 0), (3, 0)]
        assert queues[1]["last_stored_ms"] > 0 and queues[0]["last_stored_ms"] is None
        topics = await rows(wheelmq, TopicRow, "topicList")
        assert {"T", "TBW102"} <= {row["topic"] for row in topics}
        assert await wheelmq("admin", "wipeWritePerm", "-b", "broker-a")
        [route] = await rows(wheelmq, RouteRow, "topicRoute", "-t", "T")
        assert route["perm"] == "R"
        assert "accepts sends again" in await wheelmq("admin", "addWritePerm", "-b", "broker-a")
        assert "Deleted the topic T." in await wheelmq("admin", "deleteTopic", "-t", "T", "-c", "DefaultCluster")
        for verb in ("topicRoute", "topicStatus", "deleteTopic"):
            assert "does not know topic T" in await wheelmq("admin", verb, "-t", "T", code=1)

    running(work)


def test_groups_their_members_and_offsets(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await fill(servers)
        progress = {row["topic"]: row["lag"] for row in await rows(wheelmq, LagRow, "consumerProgress")}
        assert progress["Orders"] == 2
        chosen = ("consumerProgress", "-g", "billing", "-t", "Orders")
        assert [row["lag"] for row in await rows(wheelmq, LagRow, *chosen)] == [2]
        reset = ("resetOffsetByTime", "-g", "billing", "-t", "Orders", "-s")
        for when, lag in (("-1h", 5), ("2001-05-04#13:30:00:000", 5), ("1000000000000", 5), ("now", 0)):
            offsets = await rows(wheelmq, OffsetRow, *reset, when)
            assert sum(row["offset"] for row in offsets) == 5 - lag, when
            assert [row["lag"] for row in await rows(wheelmq, LagRow, *chosen)] == [lag]
        assert await rows(wheelmq, MemberRow, "consumerConnection", "-g", "billing") == []
        consumer = PushConsumer(servers.namesrv, "billing")
        got: list[Any] = []
        consumer.subscribe("Orders", got.append)
        async with consumer, Producer(servers.namesrv) as producer:
            await producer.send("Orders", b"x")
            await until(lambda: bool(got))
            [member] = await rows(wheelmq, MemberRow, "consumerConnection", "-g", "billing")
            assert member["language"] and "@" in member["client_id"]
        out = await wheelmq("admin", "updateSubGroup", "-g", "careful", "-r", "3", "-s", "false")
        assert out == "The group careful has at most 3 retries.\n"
        async with Admin(servers.namesrv) as admin:
            found = (await admin.group_configs())["broker-a"]["careful"]
        assert (found.retry_max_times, found.consume_enable) == (3, False)
        assert "its offsets stay" in await wheelmq("admin", "deleteSubGroup", "-g", "careful")
        assert "there is no group careful" in await wheelmq("admin", "deleteSubGroup", "-g", "careful", code=1)

    running(work)


def test_messages_are_found(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        async with Producer(servers.namesrv) as producer:
            sent = await producer.send("T", b"\xff", keys="A-1", properties={"p": "v"})
        await topic_registered(servers, "T")
        async with Admin(servers.namesrv) as admin:
            async with asyncio.timeout(ARRIVAL_DEADLINE_S):
                while not await admin.find("T", "A-1"):  # the index of keys follows the log
                    await asyncio.sleep(0.005)
        [message] = await rows(wheelmq, MessageRow, "queryMsgById", "-i", sent.message_id)
        assert (message["body"], message["body_hex"], message["properties"]["p"]) == (None, "ff", "v")
        for words in (
            ("queryMsgByKey", "-t", "T", "-k", "A-1"),
            ("queryMsgByKey", "-t", "T", "-k", sent.unique_key),
            ("queryMsgByUniqueKey", "-t", "T", "-i", sent.unique_key),
        ):
            assert await rows(wheelmq, MessageRow, *words) == [message]
        out = await wheelmq("admin", "queryMsgByKey", "-t", "T", "-k", "B", code=1)
        assert "no message has the key B in T" in out and "wheelmq timers" in out

    running(work)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["updateTopic", "-t", "T"], "name a broker with -b"),
        (["updateBrokerConfig", "-k", "a", "-v", "b"], "name a broker with -b"),
        (["resetOffsetByTime", "-g", "g", "-t", "T", "-s", "+1h"], "is in the future"),
        (["resetOffsetByTime", "-g", "g", "-t", "T", "-s", "then"], "or now, or milliseconds since 1970"),
        (["topicRoute"], "Missing option '-t'"),
    ],
)
def test_a_wrong_use_is_explained(words: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["admin", *words])
    assert result.exit_code == 2 and text in result.output


def test_the_name_server_of_mqadmin_is_used() -> None:
    result = CliRunner().invoke(main, ["admin", "clusterList"], env={"NAMESRV_ADDR": "127.0.0.1:1"})
    assert result.exit_code == 1 and "127.0.0.1:1" in result.output
