"""Four kills with each flush mode in every test run (`make crash` has 600), and faults planted in a follower's input.

Each planted fault must be found and named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.crash.following import Follower
from tests.crash.notes import TOPICS, Fate, Kind, Notes, body
from tests.crash.sends import BETWEEN_MIN, Run, make_moments, report
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient
from wheelmq.testing.harness import BrokerHarness

KILLS = 4
SEED = 1820
"""A seed with four failpoints under load and two in starts."""
BODY_BYTES = 64


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_kills_under_sends_lose_invent_and_repeat_no_messages(flush: str, tmp_path: Path) -> None:
    outcome = asyncio.run(Run(tmp_path, KILLS, flush, SEED, print).execute(280.0))
    print("\n".join(report(outcome)))
    assert outcome.violations == []
    assert outcome.kills == KILLS and min(outcome.between) >= BETWEEN_MIN
    assert outcome.at_failpoints + outcome.extra_kills > 0
    assert outcome.counts["lost"] == outcome.counts["invented"] == outcome.counts["twice"] == 0
    assert outcome.counts["in blocks"] > KILLS * BETWEEN_MIN // 50
    assert outcome.read == outcome.viewed == outcome.counts["delivered"] >= KILLS * BETWEEN_MIN


def test_a_seed_determines_the_moments_of_the_kills() -> None:
    assert make_moments(30, 7) == make_moments(30, 7) != make_moments(30, 8)
    assert all(moment.acknowledged >= BETWEEN_MIN for moment in make_moments(300, 1))


# Planted faults -------------------------------------------------------------------------------------------------------


class _Calls:
    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness

    async def call(self, command: Command, timeout_s: float) -> Command:
        return self._harness.ask(command)


class Senders:
    """Three messages in a queue, their notes, and a follower."""

    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness
        self.notes = Notes("F" * 22)
        self.follower = Follower(cast(RpcClient, _Calls(harness)), self.notes, BODY_BYTES)
        for _ in range(3):
            self.send(self.note())

    def note(self) -> int:
        """Add a row for a message to the first queue, without sending it."""
        return self.notes.add(Kind.PLAIN, topic=0, queue=0, asked_ms=self._harness.now_ms)

    def send(self, number: int, *, queue: int = 0, payload: bytes | None = None) -> None:
        answer = self._harness.send(
            TOPICS[0],
            body(number, BODY_BYTES) if payload is None else payload,
            queue_id=queue,
            properties={"UNIQ_KEY": self.notes.key(number)},
        )
        self.notes.answer(number, Fate.STORED, 0, queue_offset=int(answer.ext["queueOffset"]))

    def found(self) -> dict[str, int]:
        """Return the follower's findings after two readings of all queues."""
        asyncio.run(self.follower.follow())
        asyncio.run(self.follower.read_again())
        self.follower.find_lost(0, self.notes.count)
        return dict(self.follower.wrong)


@pytest.fixture
def senders(tmp_path: Path) -> Iterator[Senders]:
    with BrokerHarness(tmp_path) as harness:
        yield Senders(harness)


def test_correct_messages_are_no_violation(senders: Senders) -> None:
    assert senders.found() == {}
    assert senders.follower.read == senders.follower.viewed == 3


def test_a_missing_acknowledged_message_counts_as_lost(senders: Senders) -> None:
    senders.notes.answer(senders.note(), Fate.STORED, 0)
    assert senders.found() == {"lost": 1}


def test_an_unanswered_message_may_be_missing(senders: Senders) -> None:
    senders.note()
    assert senders.found() == {}


def test_an_unsent_message_counts_as_invented(senders: Senders) -> None:
    senders.send(2)
    senders.notes.count = 2
    assert senders.found()["invented"] == 2


def test_a_message_stored_twice_is_found(senders: Senders) -> None:
    senders.send(2)
    assert senders.found()["twice"] == 1


def test_a_changed_body_is_found(senders: Senders) -> None:
    senders.send(senders.note(), payload=b"another")
    assert senders.found()["changed"] == 2  # at each reading


def test_a_message_in_another_queue_is_found(senders: Senders) -> None:
    senders.send(senders.note(), queue=1)
    assert senders.found() == {"elsewhere": 1}


def test_a_message_at_another_queue_offset_is_found(senders: Senders) -> None:
    senders.notes[1]["queue_offset"] = 7
    assert senders.found() == {"not where the answer said": 1}


def test_a_rejected_but_stored_message_is_found(senders: Senders) -> None:
    senders.notes.answer(1, Fate.REFUSED, 0)
    assert senders.found() == {"refused and there": 1}


def test_a_message_that_disappears_after_a_read_is_found(senders: Senders, tmp_path: Path) -> None:
    asyncio.run(senders.follower.follow())
    with BrokerHarness(tmp_path / "another") as empty:
        senders.follower._caller = cast(RpcClient, _Calls(empty))
        asyncio.run(senders.follower.read_again())
    assert senders.follower.wrong == {"lost": 1}
