"""`wheelmq cancel`: by a unique key, or by a business key."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.docs.command_line import LINES
from tests.unit.cli.running import Command, Running, topic_registered
from tests.unit.client.conftest import ARRIVAL_DEADLINE_S, Servers
from wheelmq.cli import cancel, clients, timers


async def indexed(servers: Servers, wheelmq: Command, key: str, count: int) -> None:
    """Wait until the broker finds the messages by their key: the index of keys follows the log."""
    async with asyncio.timeout(ARRIVAL_DEADLINE_S):
        await topic_registered(servers, "T")
        while len(json.loads(await wheelmq("timers", "--topic", "T", "--key", key, "--json"))) < count:
            await asyncio.sleep(0.005)


def test_a_business_key_cancels_its_message(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        for key in ("A", "B"):
            await wheelmq("send", "T", key, "--key", key, "--delay", "1h")
            await indexed(servers, wheelmq, key, 1)
        [line] = (await wheelmq("cancel", "T", "--key", "A", "--json")).splitlines()
        cancelled = json.loads(line)
        assert (tuple(cancelled), cancelled["result"]) == (LINES["`cancel`"], "cancelled")
        [left] = json.loads(await wheelmq("timers", "--json"))
        assert left["keys"] == "B" and left["end"] is None
        async with asyncio.timeout(ARRIVAL_DEADLINE_S):  # the index of keys follows the log
            gone = left
            while gone["end"] in (None, "settled"):
                [gone] = json.loads(await wheelmq("timers", "--topic", "T", "--key", "A", "--json"))
        assert tuple(gone) == tuple(left) and gone["end"] == "cancelled"
        assert gone["unique_key"] == cancelled["unique_key"]
        assert "no pending message for T has the key A" in await wheelmq("cancel", "T", "--key", "A", code=1)
        assert "before" in await wheelmq("cancel", "T", "--key", cancelled["unique_key"], code=1)
        assert "Cancelled" in await wheelmq("cancel", "T", "--key", left["unique_key"])
        assert await wheelmq("timers", "--json") == "[]\n"

    running(work)


def test_several_messages_with_a_key_need_a_decision(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        await wheelmq("send", "T", "x", "--key", "A", "--delay", "1h", "--count", "7")
        await indexed(servers, wheelmq, "A", 7)
        out = await wheelmq("cancel", "T", "--key", "A", code=1)
        assert "7 pending messages for T have the key A: give --all" in out and ", ...)" in out
        assert len(json.loads(await wheelmq("timers", "--json"))) == 7
        out = await wheelmq("cancel", "T", "--key", "A", "--all")
        assert out.count("Cancelled") == 7
        assert json.loads(await wheelmq("timers", "--json")) == []

    running(work)


def test_an_unknown_key_is_sent_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt cancels by unique keys, and finds none."""
    opened = []

    def open_producer(*args: object) -> object:
        opened.append(args)
        return clients.open_producer(*args)  # type: ignore[arg-type]

    async def work(servers: Servers, wheelmq: Command) -> None:
        await wheelmq("send", "T", "x")
        assert "has the key A" in await wheelmq("cancel", "T", "--key", "A", code=1)

    monkeypatch.setattr(cancel, "open_producer", open_producer)
    running(work)
    assert len(opened) == 1


def test_a_due_time_is_written_as_in_other_commands(running: Running) -> None:
    async def work(servers: Servers, wheelmq: Command) -> None:
        sent = json.loads(await wheelmq("send", "T", "x", "--delay", "1h", "--json"))
        assert "write a time from now" in await wheelmq("cancel", "T", "--key", "A", "--at", "soon", code=2)
        assert "Cancelled" in await wheelmq("cancel", "T", "--key", sent["unique_key"], "--at", "+1h")

    running(work)


@pytest.mark.parametrize("problem", ["no search", "no index"])
def test_a_broker_without_a_search_takes_unique_keys(
    running: Running, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """Apache's broker has no such search. WheelMQ's has none without the message index."""

    def find(*_: object) -> list[bytes]:
        raise timers.CannotList("not WheelMQ's")

    async def work(servers: Servers, wheelmq: Command) -> None:
        sent = json.loads(await wheelmq("send", "T", "x", "--key", "A", "--delay", "1h", "--json"))
        assert "has the key A" in await wheelmq("cancel", "T", "--key", "A", code=1)
        assert "Cancelled" in await wheelmq("cancel", "T", "--key", sent["unique_key"])

    if problem == "no search":
        monkeypatch.setattr(timers, "find", find)
    running(work, **({} if problem == "no search" else {"message_index_enable": False}))
