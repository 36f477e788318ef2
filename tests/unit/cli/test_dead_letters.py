"""`wheelmq dead-letters`: each letter is resent once, when a resend dies at any moment too."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from tests.docs.command_line import LINES
from tests.unit.cli.running import Command, Running, topic_registered
from tests.unit.client.conftest import Servers, until
from wheelmq.cli import main
from wheelmq.cli.dead_letters import LetterDetails, LetterRow
from wheelmq.client import CallError, ConsumerSettings, Later, Producer, PushConsumer
from wheelmq.client.dead_letters import RESENT, DeadLetters, producer_group
from wheelmq.client.reading import read_queue
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import LockBatch, QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command as Frame
from wheelmq.net.rpc_client import RpcClient

GROUP = "billing"
RESEND = ("dead-letters", "resend", "--group", GROUP)


async def make_letters(servers: Servers, count: int = 1, **options: Any) -> None:
    """Send messages to Orders, and let the group billing fail to process them."""
    failed = 0

    async def fail(message: Any) -> Later:
        nonlocal failed
        failed += 1
        return Later(-1)

    async with Producer(servers.namesrv) as producer:
        for i in range(count):
            await producer.send("Orders", b"body %d" % i, keys=f"K-{i}", tags="t", **options)
    consumer = PushConsumer(servers.namesrv, GROUP, ConsumerSettings())
    consumer.subscribe("Orders", fail)
    async with consumer:
        await until(lambda: failed == count)
    await topic_registered(servers, f"%DLQ%{GROUP}")


async def copies(servers: Servers) -> Counter[str]:
    """Return the number of copies of each letter in the retry topic."""
    found: Counter[str] = Counter()
    link = RpcClient(servers.address)
    queue = QueueName(topic=f"%RETRY%{GROUP}", broker_name="broker-a", queue_id=0)
    async for record in read_queue(link, queue, 5.0):
        if RESENT in record.message.properties:
            found[record.message.properties[RESENT]] += 1
    await link.close()
    return found


async def letter_ids(wheelmq: Command) -> list[str]:
    rows = json.loads(await wheelmq("dead-letters", "list", "--group", GROUP, "--json"))
    return [row["message_id"] for row in rows]


def test_a_letter_is_listed_inspected_and_delivered_again(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        assert await wheelmq("dead-letters", "list") == "There are no dead letters.\n"
        assert "has no dead letters" in await wheelmq("dead-letters", "list", "--group", GROUP)
        assert "has no dead letters" in await wheelmq(*RESEND, "--all", code=1)
        await make_letters(servers, properties={"region": "north"})
        [row] = json.loads(await wheelmq("dead-letters", "list", "--json"))
        assert tuple(row) == LetterRow.__struct_fields__
        assert (row["group"], row["topic"], row["keys"], row["tags"]) == (GROUP, "Orders", ["K-0"], "t")
        assert (row["reconsume_times"], row["broker"], row["resent"]) == (1, "broker-a", False)
        assert row["message_id"] in await wheelmq("dead-letters", "list", "--group", GROUP)
        [found] = json.loads(await wheelmq("dead-letters", "inspect", "--group", GROUP, "--key", "K-0", "--json"))
        assert tuple(found) == LetterDetails.__struct_fields__
        assert found["properties"]["region"] == "north"
        assert (found["body"], found["body_hex"], found["problem"]) == ("body 0", None, None)
        text = await wheelmq("dead-letters", "inspect", "--group", GROUP, "--id", row["message_id"])
        assert "region=north" in text and "body 0" in text and "deliveries  1" in text
        [line] = (await wheelmq(*RESEND, "--key", row["unique_key"], "--json")).splitlines()
        assert (json.loads(line)["result"], json.loads(line)["status"]) == ("resent", "SEND_OK")
        assert tuple(json.loads(line)) == LINES["`dead-letters resend`"]
        assert await copies(servers) == {row["message_id"]: 1}

        got = []

        async def take(message: Any) -> None:
            got.append(message)

        consumer = PushConsumer(servers.namesrv, GROUP)
        consumer.subscribe("Orders", take)
        async with consumer:
            await until(lambda: bool(got))
        [message] = got
        assert (message.topic, message.body, message.keys, message.tags) == ("Orders", b"body 0", ["K-0"], "t")
        assert (message.unique_key, message.reconsume_times) == (row["unique_key"], 0)
        out = await wheelmq(*RESEND, "--all")
        assert "was resent before" in out and "0 of 1 letters were resent" in out
        [after] = json.loads(await wheelmq("dead-letters", "list", "--json"))
        assert after == row | {"resent": True}
        for words in (("--key", "other"), ("--id", "F" * 32)):
            for verb in ("inspect", "resend"):
                out = await wheelmq("dead-letters", verb, "--group", GROUP, *words, code=1)
                assert f"`wheelmq dead-letters list --group {GROUP}` lists them" in out

    running(work)


def test_a_killed_resend_is_completed_by_the_next_one(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers, 40)
        command = [sys.executable, "-m", "wheelmq", *RESEND, "--all", "--json", "--namesrv", servers.namesrv]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(7):
            assert b'"resent"' in await process.stdout.readline()
        process.kill()
        await process.communicate()
        before = await copies(servers)
        assert 7 <= before.total() < 40
        out = await wheelmq(*RESEND, "--all")
        assert f"{40 - before.total()} of 40 letters were resent" in out
        assert await copies(servers) == dict.fromkeys(await letter_ids(wheelmq), 1)

    running(work)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_copy_without_an_answer_is_looked_for(
    running: Running, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    call = RpcClient.call

    async def lossy(self: RpcClient, command: Frame, timeout_s: float = 3.0) -> Frame:
        if command.code != RequestCode.SEND_MESSAGE_V2:
            return await call(self, command, timeout_s)
        if is_stored:
            await call(self, command, timeout_s)
        raise CallError("no answer")

    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers, 2)
        with monkeypatch.context() as patched:
            patched.setattr(RpcClient, "call", lossy)
            out = await wheelmq(*RESEND, "--all", code=1)
        assert "no answer" in out and "it first reads the copies that are stored" in out
        assert (await copies(servers)).total() == int(is_stored)
        assert f"{2 - is_stored} of 2 letters" in await wheelmq(*RESEND, "--all")
        assert await copies(servers) == dict.fromkeys(await letter_ids(wheelmq), 1)

    running(work)


def test_two_resends_of_a_group_exclude_each_other(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers)
        async with DeadLetters(servers.namesrv, GROUP) as first:
            await first.begin_resend()
            out = await wheelmq(*RESEND, "--all", code=1)
            assert f"another resend of the group {GROUP} runs at 127.0.0.1:" in out and "wait for its end" in out
            assert json.loads(await wheelmq("dead-letters", "list", "--json"))[0]["resent"] is False
        assert "1 of 1 letters were resent" in await wheelmq(*RESEND, "--all")

    running(work)


def test_a_resend_stays_registered_while_it_runs(running: Running) -> None:
    """The keep-alive task of the session sends its heartbeats, although no topic is in use."""

    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers)
        assert servers.app.broker is not None
        producers = servers.app.broker.parts.clients.producers
        async with DeadLetters(servers.namesrv, GROUP) as letters:
            await letters.begin_resend()
            [member] = producers[producer_group(GROUP)].values()
            before_ms = member.last_seen_ms
            while member.last_seen_ms == before_ms:  # its clock has milliseconds
                await letters._session.beat()
                [member] = producers[producer_group(GROUP)].values()
        await until(lambda: producer_group(GROUP) not in producers)

    running(work)


def test_a_resend_ends_when_its_connection_was_lost(running: Running) -> None:
    """Another resend may have begun meanwhile, so no copy is sent on the new connection."""

    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers)
        async with DeadLetters(servers.namesrv, GROUP) as letters:
            with pytest.raises(RuntimeError, match="begin_resend"):
                await letters.resend(await anext(letters.read()))
            await letters.begin_resend()
            letter = await anext(letters.read())
            link = letters._session.connections.to(servers.address)
            link.abort()
            with pytest.raises(CallError, match="another resend may have begun"):
                await letters.resend(letter)
            assert [one.is_resent async for one in letters.read()] == [False]  # this opens a connection again
            with pytest.raises(CallError, match="another resend may have begun"):
                await letters.resend(letter)
        assert not await copies(servers)

    running(work)


def test_the_table_has_the_newest_letters_of_all_groups(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        async with Producer(servers.namesrv) as producer:
            for name in ("a-1", "z-1", "a-2", "z-2"):
                await producer.send(f"%DLQ%group-{name[0]}", b"x", keys=name, queue_id=0)
        table = await wheelmq("dead-letters", "list", "--limit", "2")
        assert "4 dead letters, the newest 2" in table
        assert [name in table for name in ("a-1", "z-1", "a-2", "z-2")] == [False, False, True, True]
        rows = json.loads(await wheelmq("dead-letters", "list", "--json", "--limit", "2"))
        assert [row["keys"] for row in rows] == [["a-1"], ["a-2"], ["z-1"], ["z-2"]]

    running(work)


def test_a_copy_that_dies_again_is_another_letter(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers)
        await wheelmq(*RESEND, "--all")
        await make_letters(servers, 0)  # a consumer without new messages
        failed = []

        async def fail(message: Any) -> Later:
            failed.append(message)
            return Later(-1)

        consumer = PushConsumer(servers.namesrv, GROUP)
        consumer.subscribe("Orders", fail)
        async with consumer:
            await until(lambda: bool(failed))
        rows = json.loads(await wheelmq("dead-letters", "list", "--json"))
        assert [row["resent"] for row in rows] == [True, False]
        assert len({row["unique_key"] for row in rows}) == 1
        out = await wheelmq(*RESEND, "--key", "K-0")
        assert "1 of 2 letters were resent" in out

    running(work)


def test_the_copy_is_not_delayed_again(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        # The first send waits for its topic. A shorter delay could pass meanwhile, and nothing would be delayed.
        await make_letters(servers, delay_ms=1_000, properties={props.WAIT: "false"})
        await wheelmq(*RESEND, "--all")
        [row] = json.loads(await wheelmq("dead-letters", "inspect", "--group", GROUP, "--key", "K-0", "--json"))
        assert row["properties"][props.REAL_TOPIC] == "Orders"
        assert await copies(servers) == {row["message_id"]: 1}

    running(work)


def test_a_group_in_order_is_explained(running: Running) -> None:
    """The broker makes each message for the retry topic of such a group a dead letter."""

    async def work(servers: Servers, wheelmq: Command) -> None:
        await make_letters(servers)
        queue = QueueName(topic="Orders", broker_name="broker-a", queue_id=0)
        lock = LockBatch(client_id="c", consumer_group=GROUP, mq_set=[queue])
        link = RpcClient(servers.address)
        await link.ask(Frame(code=RequestCode.LOCK_BATCH_MQ, body=bodies.write(lock)))
        out = await wheelmq(*RESEND, "--all", code=1)
        assert "consumes in order" in out and "run the resend again" in out
        await link.ask(Frame(code=RequestCode.UNLOCK_BATCH_MQ, body=bodies.write(lock)))
        await link.close()
        rows = json.loads(await wheelmq("dead-letters", "list", "--json"))
        assert [row["resent"] for row in rows] == [True, False], "the copy took the place of the letter"
        assert "1 of 2 letters were resent" in await wheelmq(*RESEND, "--all")
        assert (await copies(servers)).total() == 1

    running(work)


def test_letters_that_cannot_be_copied_are_named(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        async with Producer(servers.namesrv) as producer:
            await producer.send(f"%DLQ%{GROUP}", b"not from a consumer", keys="stray")
            crowded = {"RETRY_TOPIC": "Orders", "filler": "x" * 32_600}
            await producer.send(f"%DLQ%{GROUP}", b"crowded", keys="crowded", properties=crowded)
        assert "does not name its topic (RETRY_TOPIC)" in await wheelmq(*RESEND, "--key", "stray", code=1)
        assert f"has no room for {RESENT}" in await wheelmq(*RESEND, "--key", "crowded", code=1)
        assert "unknown" in await wheelmq("dead-letters", "inspect", "--group", GROUP, "--key", "stray")

    running(work)


def test_a_long_group_has_a_producer_group_too() -> None:
    assert producer_group("g") == "WHEELMQ_RESEND_g"
    names = {producer_group(end * 255) for end in "ab"}
    assert len(names) == 2 and all(len(name) <= 255 for name in names)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["resend", "--group", "g"], "choose letters with --key or --id"),
        (["resend", "--group", "g", "--all", "--key", "k"], "give one of --key, --id and --all"),
        (["inspect", "--group", "g"], "choose letters with --key or --id"),
        (["inspect", "--key", "k"], "Missing option '--group'"),
    ],
)
def test_a_choice_of_letters_is_needed(words: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["dead-letters", *words])
    assert result.exit_code == 2 and text in result.output
