"""Ten thousand held pulls. A message wakes only matching pulls, and its cost grows with their number only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.broker.handlers import pull as pulls
from wheelmq.broker.holds import Holds
from wheelmq.broker.request import Request
from wheelmq.filter.expression import Ordered
from wheelmq.formats.java import java_hash
from wheelmq.formats.kernels.journal import TAG_CODE
from wheelmq.formats.wire.bodies import PERM_WRITE, GroupConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_SUSPEND
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, BrokerHarness, records_in

HOLDS = 10_000
CONNECTIONS = 100
QUEUES = 100
HOLD_MS = 30_000


@pytest.fixture
def reads() -> Iterator[mock.Mock]:
    """Count the reads of queues for pulls."""
    with mock.patch.object(pulls, "read_queue", wraps=pulls.read_queue) as counted:
        yield counted


class Crowd:
    """Held pulls over many connections. `answered` returns the pulls answered since its last call."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.connections = [harness.connect() for _ in range(CONNECTIONS)]
        self.asked: list[Ask] = []
        self._open: list[int] = []

    def pull(self, topic: str, queue_id: int, offset: int = 0, *, hold_ms: int = HOLD_MS, **fields: object) -> None:
        command = self.harness.pull_command(topic, queue_id, offset, hold_ms=hold_ms, **fields)
        self._open.append(len(self.asked))
        self.asked.append(self.harness.submit(command, self.connections[len(self.asked) % CONNECTIONS]))

    def answered(self) -> list[int]:
        self.harness.settle()
        done = [i for i in self._open if self.asked[i].answer is not None]
        self._open = [i for i in self._open if self.asked[i].answer is None]
        return done

    def codes(self, numbers: list[int]) -> set[int]:
        answers = [self.asked[i].answer for i in numbers]
        return {answer.code for answer in answers if answer is not None}


def test_a_message_wakes_only_the_pulls_of_its_queue(harness: BrokerHarness, reads: mock.Mock) -> None:
    harness.broker.parts.topics.create_for_group("T", QUEUES)
    crowd = Crowd(harness)
    for i in range(HOLDS):
        crowd.pull("T", i % QUEUES)
    harness.tick()
    assert len(harness.broker.parts.holds) == HOLDS
    reads.reset_mock()
    harness.send("T", b"one", queue_id=7)
    woken = crowd.answered()
    assert woken == list(range(7, HOLDS, QUEUES)) and crowd.codes(woken) == {0}
    assert reads.call_count == len(woken)
    assert len(harness.broker.parts.holds) == HOLDS - len(woken)
    reads.reset_mock()
    harness.advance(HOLD_MS)
    assert crowd.codes(crowd.answered()) == {ResponseCode.PULL_NOT_FOUND}
    assert reads.call_count == HOLDS - len(woken) and len(harness.broker.parts.holds) == 0


def test_a_message_wakes_only_the_pulls_of_its_tag(harness: BrokerHarness, reads: mock.Mock) -> None:
    """All pulls wait at one queue, each for two tags of a hundred, or for any tag.

    Messages of some tags were stored before the pulls were held.
    """
    harness.broker.parts.topics.create_for_group("T", 1)
    harness.send("T", properties={"TAGS": "tag7"})
    crowd = Crowd(harness)
    for i in range(HOLDS):
        wanted = "*" if i % 1000 == 999 else f"tag{i % 100} || other{i % 10}"
        crowd.pull("T", 0, 1, subscription=wanted)
    harness.tick()
    reads.reset_mock()
    harness.send("T", b"one", properties={"TAGS": "tag7"})
    woken = crowd.answered()
    assert woken == [i for i in range(HOLDS) if i % 100 == 7 or i % 1000 == 999] and crowd.codes(woken) == {0}
    assert reads.call_count == len(woken)
    reads.reset_mock()
    harness.send("T", b"nobody's", properties={"TAGS": "unheard-of"})
    assert crowd.answered() == [] and reads.call_count == 0
    harness.send("T", b"two", properties={"TAGS": "other5"})
    woken = crowd.answered()
    assert woken == [i for i in range(HOLDS) if i % 10 == 5] and reads.call_count == len(woken)
    answer = crowd.asked[woken[0]].answer
    assert answer is not None and (answer.ext["nextBeginOffset"], answer.code) == ("4", 0)


class TestByTags:
    def hold(self, harness: BrokerHarness, offset: int, wanted: str = "A", **fields: object) -> Ask:
        command = harness.pull_command("T", 0, offset, hold_ms=HOLD_MS, subscription=wanted, **fields)
        asked = harness.submit(command, harness.connect())
        harness.tick()
        return asked

    def send(self, harness: BrokerHarness, *tags: str) -> None:
        """Send a message with each tag, all in one tick."""
        for tag in tags:
            harness.submit(harness.send_command("T", tag.encode(), properties={"TAGS": tag}))
        harness.tick()

    def found(self, asked: Ask) -> tuple[int, int, bytes]:
        """Return the code, the next offset and the body of the answer."""
        assert asked.answer is not None
        return asked.answer.code, int(asked.answer.ext["nextBeginOffset"]), bytes(asked.answer.body)

    def test_a_woken_pull_does_not_read_skipped_messages_again(self, harness: BrokerHarness, reads: mock.Mock) -> None:
        self.send(harness, "B")
        asked = self.hold(harness, 1)
        for _ in range(4):
            self.send(harness, *["B"] * 300)
        self.send(harness, *["B"] * 5, "A", "B", "A")
        code, next_offset, body = self.found(asked)
        assert (code, next_offset) == (0, 1209)
        assert body.count(b"TAGS\x01A") == 2

    def test_an_expired_pull_returns_the_offset_after_all_messages(self, harness: BrokerHarness) -> None:
        self.send(harness, "B")
        asked = self.hold(harness, 1)
        for _ in range(4):
            self.send(harness, *["B"] * 300)
        harness.advance(HOLD_MS)
        assert self.found(asked)[:2] == (ResponseCode.PULL_NOT_FOUND, 1201)

    def test_a_pull_skipped_for_its_full_connection_misses_no_message(self, harness: BrokerHarness) -> None:
        self.send(harness, "B")
        asked = self.hold(harness, 1)
        asked.connection.is_full = True
        self.send(harness, "A", "B", "A")
        assert asked.answer is None
        self.send(harness, "A")
        asked.connection.is_full = False
        harness.tick()
        code, next_offset, body = self.found(asked)
        assert (code, next_offset, body.count(b"TAGS\x01A")) == (0, 5, 3)

    def test_a_pull_skipped_until_its_deadline_finds_its_message(self, harness: BrokerHarness) -> None:
        self.send(harness, "B")
        asked = self.hold(harness, 1)
        asked.connection.is_full = True
        self.send(harness, "A")
        harness.advance(HOLD_MS)
        assert self.found(asked)[:2] == (0, 2)

    def test_a_message_wakes_a_pull_at_an_empty_queue(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 1)
        asked = self.hold(harness, 0)
        self.send(harness, "B", "A")
        assert self.found(asked)[:2] == (0, 2)

    def test_a_pull_that_expires_before_its_wake_finds_the_units(self, harness: BrokerHarness) -> None:
        """The deadline falls between the write of the units and the wake. No unit is skipped."""
        self.send(harness, "B")
        asked = self.hold(harness, 1)
        store = harness.broker.parts.store
        harness.submit(harness.send_command("T", b"A", properties={"TAGS": "A"}))
        store.queues.write(store.journal.rows())
        harness.broker.parts.holds.expire(harness.broker.parts.clock.monotonic_ms() + HOLD_MS)
        harness.tick()
        assert self.found(asked)[:2] == (0, 2)

    def test_a_unit_without_a_tag_code_wakes_all_pulls(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 1)
        harness.broker.parts.topics.file.save_now()
        asked = self.hold(harness, 0)
        row = harness.broker.parts.store.queues.row("T", 0)
        harness.submit(harness.send_command("T", b"x"))
        harness.broker.parts.store.journal.rows()[0, TAG_CODE] = 1 << 40
        harness.tick()
        assert row == harness.broker.parts.store.queues.row("T", 0)
        assert self.found(asked)[:2] == (0, 1)

    def test_a_pull_waits_for_the_tags_of_its_heartbeat(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        send_heartbeat(harness, connection, messageModel="BROADCASTING", subscriptionDataSet=[
            {"topic": "T", "subString": "A", "tagsSet": ["A"], "codeSet": [65]}
        ])  # fmt: skip
        self.send(harness, "B")
        asked = self.hold(harness, 1, consumerGroup="g", sysFlag=PULL_SUSPEND)
        self.send(harness, "B")
        assert asked.answer is None
        self.send(harness, "A")
        assert self.found(asked)[:2] == (0, 3)

    def test_answered_and_lost_pulls_leave_no_state(self, harness: BrokerHarness) -> None:
        self.send(harness, "B")
        holds = harness.broker.parts.holds
        for wanted in ("A", "A || C", "*"):
            self.hold(harness, 1, wanted)
        left = self.hold(harness, 1, "D || E")
        self.send(harness, "A")
        assert len(holds) == 1
        harness.lose(left.connection)
        assert len(holds) == 0 and not holds._by_key and not holds._by_connection


class TestBySql:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path, enable_property_filter=True) as harness:
            harness.broker.parts.topics.create_for_group("T", 1)
            yield harness

    def crowd(self, harness: BrokerHarness, *expressions: str) -> Crowd:
        """Return held pulls that use the expressions in turn."""
        crowd = Crowd(harness)
        for i in range(100 * len(expressions)):
            expression = expressions[i % len(expressions)]
            crowd.pull(
                "T", 0, harness.broker.parts.store.queues.end("T", 0), subscription=expression, expressionType="SQL92"
            )
        harness.tick()
        return crowd

    def test_an_expression_is_evaluated_once_for_all_its_pulls(self, harness: BrokerHarness, reads: mock.Mock) -> None:
        crowd = self.crowd(harness, "n > 5", "n > 7")
        reads.reset_mock()
        with mock.patch.object(Ordered, "evaluate", autospec=True, side_effect=Ordered.evaluate) as asked:
            harness.send("T", properties={"n": "1"})
        assert (asked.call_count, reads.call_count) == (2, 0)
        harness.send("T", b"six", properties={"n": "6"})
        assert crowd.answered() == list(range(0, 200, 2))
        answer = crowd.asked[0].answer
        assert answer is not None and (answer.code, answer.ext["nextBeginOffset"]) == (0, "2")
        assert bytes(answer.body).count(b"six") == 1
        harness.advance(HOLD_MS)
        late = crowd.asked[1].answer
        assert late is not None and (late.code, late.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")

    def test_a_pull_gets_all_matching_messages_of_one_tick(self, harness: BrokerHarness) -> None:
        crowd = self.crowd(harness, "n > 5")
        for i in (1, 6, 2, 7):
            harness.submit(harness.send_command("T", b"body", properties={"n": str(i)}))
        harness.tick()
        answer = crowd.asked[0].answer
        assert answer is not None and (answer.code, answer.ext["nextBeginOffset"]) == (0, "4")
        assert len(records_in(bytes(answer.body))) == 2


class TestChangesDuringAHold:
    """A held pull is checked again as if it had just arrived."""

    def send_heartbeat(self, harness: BrokerHarness, connection: FakeConnection, *tags: str, version: int) -> None:
        subscription = {
            "topic": "T",
            "subString": "||".join(tags),
            "tagsSet": tags,
            "codeSet": [java_hash(tag) for tag in tags],
            "subVersion": version,
        }
        send_heartbeat(harness, connection, subscriptionDataSet=[subscription])

    @pytest.fixture
    def held(self, harness: BrokerHarness) -> Ask:
        """A held pull, after one message, of a group that subscribes to tag A."""
        connection = harness.connect()
        harness.send("T")
        self.send_heartbeat(harness, connection, "A", version=1)
        command = harness.pull_command("T", 0, 1, hold_ms=HOLD_MS, consumerGroup="g", sysFlag=PULL_SUSPEND)
        asked = harness.submit(command, connection)
        harness.tick()
        return asked

    def code(self, asked: Ask) -> int:
        assert asked.answer is not None
        return asked.answer.code

    def test_a_pull_gets_messages_of_tags_added_during_its_hold(self, harness: BrokerHarness, held: Ask) -> None:
        """The pull does not skip messages of the new tags that arrived before its deadline."""
        self.send_heartbeat(harness, held.connection, "A", "B", version=2)
        harness.send("T", b"B", properties={"TAGS": "B"})
        harness.advance(HOLD_MS)
        assert self.code(held) == 0 and held.answer is not None
        assert [one.queue_offset for one in records_in(bytes(held.answer.body))] == [1]

    def test_a_message_of_an_old_tag_wakes_a_pull_with_added_tags(self, harness: BrokerHarness, held: Ask) -> None:
        self.send_heartbeat(harness, held.connection, "A", "B", version=2)
        harness.send("T", b"B", properties={"TAGS": "B"})
        harness.send("T", b"A", properties={"TAGS": "A"})
        assert held.answer is not None
        assert [one.message.body for one in records_in(bytes(held.answer.body))] == [b"B", b"A"]

    def test_a_pull_woken_by_a_removed_tag_is_held_again(self, harness: BrokerHarness, held: Ask) -> None:
        """A message of the old tag wakes the pull, which then waits for its new tag."""
        self.send_heartbeat(harness, held.connection, "B", version=2)
        harness.send("T", b"A", properties={"TAGS": "A"})
        harness.send("T", b"B", properties={"TAGS": "B"})
        assert held.answer is None
        harness.send("T", b"A", properties={"TAGS": "A"})
        assert held.answer is not None
        assert [one.message.body for one in records_in(bytes(held.answer.body))] == [b"B"]

    @pytest.mark.parametrize("what", ["topic", "group", "forbidden", "broker"])
    def test_a_held_pull_without_permission_is_rejected(self, harness: BrokerHarness, held: Ask, what: str) -> None:
        broker = harness.broker
        match what:
            case "topic":
                topic = broker.parts.topics.get("T")
                assert topic is not None
                broker.parts.topics.put(structs.replace(topic, perm=PERM_WRITE))
            case "group":
                broker.parts.groups.put_all([GroupConfig(group_name="g", consume_enable=False)])
            case "forbidden":
                broker.parts.groups.forbid("g", "T", forbidden=True)
            case _:
                broker.parts.settings.broker.permission = PERM_WRITE
        harness.submit(harness.send_command("T", properties={"TAGS": "A"}))
        harness.tick()
        assert self.code(held) == ResponseCode.NO_PERMISSION

    def test_a_held_pull_of_a_deleted_topic_is_rejected(self, harness: BrokerHarness, held: Ask) -> None:
        harness.broker.parts.topics.delete("T")
        harness.advance(HOLD_MS)
        assert self.code(held) == ResponseCode.TOPIC_NOT_EXIST

    def test_a_held_pull_of_a_group_that_left_is_rejected(self, harness: BrokerHarness, held: Ask) -> None:
        fields = {"clientID": "c", "consumerGroup": "g"}
        harness.ask_code(RequestCode.UNREGISTER_CLIENT, connection=held.connection, **fields)
        harness.advance(HOLD_MS)
        assert self.code(held) == ResponseCode.SUBSCRIPTION_NOT_EXIST


class TestBounds:
    @pytest.mark.parametrize("which", ["HOLDS_MAX", "HOLDS_OF_ONE_MAX"])
    def test_a_pull_beyond_the_limit_of_holds_is_rejected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
    ) -> None:
        monkeypatch.setattr(f"wheelmq.broker.holds.{which}", 3)
        with BrokerHarness(tmp_path) as harness:
            harness.send("T")
            asked = [harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS)) for _ in range(4)]
            harness.tick()
            assert [one.answer is None for one in asked] == [True, True, True, False]
            assert asked[3].answer is not None and asked[3].answer.code == ResponseCode.SYSTEM_BUSY
            other = harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS), harness.connect())
            harness.tick()
            assert (other.answer is None) == (which == "HOLDS_OF_ONE_MAX")
            harness.lose(harness.client)
            again = harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS))
            harness.tick()
            assert again.answer is None

    def test_each_tag_of_a_held_pull_counts_towards_the_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each tag takes an entry in the tables, and one frame has room for a million tags."""
        monkeypatch.setattr("wheelmq.broker.holds.HOLDS_OF_ONE_MAX", 5)
        with BrokerHarness(tmp_path) as harness:
            harness.send("T")
            codes = []
            for wanted in ("A || B", "A || B", "A", "*"):
                asked = harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS, subscription=wanted))
                harness.tick()
                codes.append(None if asked.answer is None else asked.answer.code)
            assert codes == [None, ResponseCode.SYSTEM_BUSY, None, ResponseCode.SYSTEM_BUSY]
            harness.send("T", properties={"TAGS": "B"})
            asked = harness.submit(harness.pull_command("T", 0, 2, hold_ms=HOLD_MS, subscription="A || B"))
            harness.tick()
            assert asked.answer is None

    def test_pulls_of_a_peer_that_does_not_read_are_skipped(self, harness: BrokerHarness) -> None:
        """The broker wakes its pulls once. Then it skips them until the peer reads."""
        harness.send("T")
        deaf = harness.connect()
        asked = []
        for wanted in ["*", "A", "B"] * 100:
            asked.append(harness.submit(harness.pull_command("T", 0, 1, hold_ms=HOLD_MS, subscription=wanted), deaf))
        harness.tick()
        deaf.is_full = True
        harness.send("T", b"A", properties={"TAGS": "A"})
        with mock.patch.object(Holds, "_again", autospec=True, side_effect=Holds._again) as again:
            for _ in range(10):
                harness.send("T", b"A", properties={"TAGS": "A"})
            assert again.call_count == 0
            deaf.is_full = False
            harness.tick()
        assert [one.answer is not None for one in asked] == [True, True, False] * 100
        harness.send("T", b"B", properties={"TAGS": "B"})
        assert all(one.answer is not None for one in asked)

    def test_a_pull_of_a_closed_connection_is_not_held(self, harness: BrokerHarness) -> None:
        """The broker drops the requests of a connection once, when the connection is lost."""
        closed = harness.connect()
        harness.lose(closed)
        request = Request(Command(code=RequestCode.PULL_MESSAGE), closed)
        answer = harness.broker.parts.holds.wait(request, "key", HOLD_MS, lambda last: None)
        assert not len(harness.broker.parts.holds) and answer.is_over


def test_a_reset_wakes_only_the_pulls_of_its_group(harness: BrokerHarness) -> None:
    harness.send("T")
    crowd = Crowd(harness)
    for i in range(100):
        crowd.pull("T", 0, 1, consumerGroup=f"g{i}", subscription="A" if i % 2 else "*")
    harness.tick()
    fields = {"group": "g41", "topic": "T", "timestamp": 0, "isForce": True, "queueId": 0, "offset": 0}
    assert harness.ask_code(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields).code == 0
    assert crowd.answered() == [41] and crowd.codes([41]) == {ResponseCode.PULL_OFFSET_MOVED}
