"""`wheelmq send`: bodies from a file and the standard input, properties, keys, and a count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.docs.command_line import LINES
from tests.unit.cli.running import Command, Running, topic_registered
from tests.unit.client.conftest import Servers
from wheelmq.cli import main
from wheelmq.client import Admin, Producer, PullConsumer
from wheelmq.client.results import SendResult, SendStatus
from wheelmq.net.errors import CallError

OK, NO_SLAVE, LATE = SendStatus.OK, SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_DISK_TIMEOUT


async def received(servers: Servers, topic: str, count: int) -> list[Any]:
    """Return `count` messages of a topic, in the order of their arrival."""
    found: list[Any] = []
    async with PullConsumer(servers.namesrv, "readers") as consumer:
        consumer.assign(await consumer.queues_of(topic))
        while len(found) < count:
            found += await consumer.poll(timeout_ms=20_000)
    return sorted(found, key=lambda message: message.born_ms)


def test_each_source_of_a_body_is_sent_as_it_is(running: Running, tmp_path: Path) -> None:
    raw = bytes(range(256)) + b"\n"
    (tmp_path / "body").write_bytes(raw)

    async def work(servers: Servers, wheelmq: Command) -> None:
        for words, stdin in (
            (["Sources", "text"], b""),
            (["Sources", "-"], b"line 1\nline 2\n"),
            (["Sources", "--file", str(tmp_path / "body")], b""),
            (["Sources", "--file", "-"], b"piped"),
        ):
            assert "unique key" in await wheelmq("send", *words, stdin=stdin)
        bodies = {message.body for message in await received(servers, "Sources", 4)}
        assert bodies == {b"text", b"line 1\nline 2\n", raw, b"piped"}

    running(work)


def test_lines_counts_keys_and_properties(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        words = ["Lines", "-", "--lines", "--count", "2", "--key", "A-17", "--keys", "B C", "--tags", "t"]
        words += ["--property", "region=north", "--property", "formula=a=b", "--json"]
        out = await wheelmq("send", *words, stdin=b"one\r\n\ntwo")
        rows = [json.loads(line) for line in out.splitlines()]
        assert len(rows) == 4 == len({row["unique_key"] for row in rows})
        found = await received(servers, "Lines", 4)
        assert sorted(message.body for message in found) == [b"one", b"one", b"two", b"two"]
        for message in found:
            assert (message.keys, message.tags) == (["A-17", "B", "C"], "t")
            assert (message.properties["region"], message.properties["formula"]) == ("north", "a=b")
        text = await wheelmq("send", "Lines", "x", "--count", "2", "--at", "tomorrow")
        assert text.count("due ") == 2 and text.endswith("Sent 2 messages.\n")

    running(work)


def test_the_shape_of_the_json_does_not_depend_on_options(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        shapes = set()
        for words in ([], ["--delay", "1h"], ["--at", "tomorrow 23:59"], ["--level", "3"], ["--delay-in-seconds", "9"]):
            out = await wheelmq("send", "Shapes", "x", *words, "--json")
            shapes.add(tuple(json.loads(out)))
        assert shapes == {LINES["`send`"]}

    running(work)


def test_an_error_after_some_messages_counts_them(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        body = b"short\n" + b"x" * (5 << 20) + b"\n"
        out = await wheelmq("send", "T", "-", "--lines", stdin=body, code=1)
        assert "body_bytes_max" in out and "1 message was sent before it" in out

    running(work)


def test_a_topic_that_cannot_be_written_is_no_missing_broker(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        async with Admin(servers.namesrv) as admin:
            await admin.create_topic("Frozen", queues=1, perm=4)
        await topic_registered(servers, "Frozen")
        out = await wheelmq("send", "Frozen", "x", code=1)
        assert "none of its queues is writable. `wheelmq topics` shows its permission" in out and "up`" not in out

    running(work)


def test_messages_stored_less_safely_are_counted(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter((OK, NO_SLAVE, LATE, NO_SLAVE, OK, NO_SLAVE, NO_SLAVE, LATE))
    send = Producer.send

    async def stored(producer: Producer, *words: Any, **options: Any) -> SendResult:
        if b"x" * 9 in words:
            raise CallError("no answer")
        return msgspec.structs.replace(await send(producer, *words, **options), status=next(statuses))

    monkeypatch.setattr(Producer, "send", stored)

    async def work(servers: Servers, wheelmq: Command) -> None:
        out = await wheelmq("send", "Safe", "x", "--count", "4", code=3)
        assert out.endswith(
            "Sent 4 messages; stored less safely than requested: 1 FLUSH_DISK_TIMEOUT, 2 SLAVE_NOT_AVAILABLE.\n"
        )
        assert [line.endswith("SLAVE_NOT_AVAILABLE") for line in out.splitlines()[:4]] == [False, True, False, True]
        assert "Sent 1 message.\n" in await wheelmq("send", "Safe", "-", "--lines", stdin=b"x")
        assert "status     SLAVE_NOT_AVAILABLE: stored" in await wheelmq("send", "Safe", "x", code=3)
        out = await wheelmq("send", "Safe", "x", "--json", code=3)
        assert json.loads(out)["status"] == NO_SLAVE
        out = await wheelmq("send", "Safe", "-", "--lines", stdin=b"x\n" + b"x" * 9, code=1)
        assert "(1 message was sent before it; stored less safely than requested: 1 FLUSH_DISK_TIMEOUT)" in out

    running(work)


@pytest.mark.parametrize(
    ("words", "stdin", "text"),
    [
        (["T", "x", "--file", "y"], b"", "give one of them"),
        (["T", "x", "--lines"], b"", "give --file PATH, or - for BODY"),
        (["T", "-"], b"", "the standard input is empty"),
        (["T", "--file", "absent"], b"", "absent cannot be read: No such file"),
        (["T", "x", "--property", "a"], b"", "write NAME=VALUE"),
        (["T", "x", "--property", "a="], b"", "both not empty"),
        (["T", "x", "--property", "KEYS=a"], b"", "KEYS is set by --key"),
        (["T", "x", "--property", "TIMER_DELIVER_MS=5"], b"", "is set by --at"),
        (["T", "x", "--key", "a b"], b"", "has no blanks. Repeat --key"),
        (["T", "x", "--count", "0"], b"", "is not in the range"),
    ],
)
def test_a_wrong_use_is_explained(words: list[str], stdin: bytes, text: str) -> None:
    result = CliRunner().invoke(main, ["send", *words], input=stdin)
    assert result.exit_code == 2
    assert text in " ".join(result.output.replace("│", "").split())
