"""PULL_MESSAGE and LITE_PULL_MESSAGE: statuses, filters, limits, long polls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wheelmq.formats.kernels import jit
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from wheelmq.system import memory
from wheelmq.testing.harness import BrokerHarness


def send_heartbeat(
    harness: BrokerHarness, *subscriptions: dict[str, Any], model: str = "CLUSTERING", **consumer_fields: Any
) -> None:
    """Send a heartbeat of group `consumers` on the default connection."""
    consumer = {
        "groupName": "consumers",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "subscriptionDataSet": list(subscriptions),
        **consumer_fields,
    }
    body = bodies.write({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []})
    assert harness.ask(Command(code=RequestCode.HEART_BEAT, body=body)).code == 0


def rejection(answer: Command) -> tuple[int, str | None]:
    """Return the code and the reason of the prohibition."""
    return answer.code, answer.ext.get("forbiddenType")


def numbers(answer: Command) -> tuple[int, int, int]:
    """Return the next, the least and the greatest offset."""
    return (int(answer.ext["nextBeginOffset"]), int(answer.ext["minOffset"]), int(answer.ext["maxOffset"]))


class TestStatus:
    @pytest.mark.parametrize(
        ("offset", "code", "remark", "following"),
        [
            (0, 0, "FOUND", 5),
            (3, 0, "FOUND", 5),
            (5, 19, "OFFSET_OVERFLOW_ONE", 5),
            (6, 21, "OFFSET_OVERFLOW_BADLY", 5),
            (1 << 40, 21, "OFFSET_OVERFLOW_BADLY", 5),
            (-1, 21, "OFFSET_TOO_SMALL", 0),
        ],
    )
    def test_the_status_of_a_pull_depends_on_its_offset(
        self, harness: BrokerHarness, offset: int, code: int, remark: str, following: int
    ) -> None:
        for i in range(5):
            harness.send("T", b"%d" % i)
        pulled = harness.pull("T", 0, offset)
        assert (pulled.answer.code, pulled.answer.remark) == (code, remark)
        assert numbers(pulled.answer) == (following, 0, 5)
        assert [record.queue_offset for record in pulled.records] == (list(range(offset, 5)) if code == 0 else [])
        assert pulled.answer.ext["suggestWhichBrokerId"] == "0"

    @pytest.mark.parametrize(("offset", "code"), [(0, 19), (1, 21)])
    def test_a_pull_of_an_empty_queue_finds_no_message(self, harness: BrokerHarness, offset: int, code: int) -> None:
        harness.send("T", queue_id=1)
        answer = harness.pull("T", 0, offset).answer
        assert answer.code == code
        assert answer.remark in ("NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE")
        assert numbers(answer) == (0, 0, 0)

    def test_a_pull_skips_messages_that_the_log_no_longer_has(self, tmp_path: Path) -> None:
        """A pull skips units of deleted records. Once the queue begins after them, the broker moves the pull."""
        size = 4096
        with BrokerHarness(tmp_path, log_file_bytes=size) as harness:
            for i in range(30):
                harness.send("T", b"%02d" % i * 100)
            log, queues = harness.broker.parts.store.log, harness.broker.parts.store.queues
            assert log.files.drop_before(size) is not None
            alone = harness.pull("T", maxMsgNums=1)
            assert (alone.answer.code, alone.answer.remark, alone.next_offset) == (20, "MESSAGE_WAS_REMOVING", 1)
            first = harness.pull("T").records[0].queue_offset
            assert 1 < first < 20
            assert sum(job is not None for job in queues.drop_before(log.start)) == 0
            moved = harness.pull("T")
            assert (moved.answer.code, moved.answer.remark) == (21, "OFFSET_TOO_SMALL")
            assert numbers(moved.answer) == (first, first, 30)

    def test_a_pull_returns_the_bytes_of_the_log(self, harness: BrokerHarness) -> None:
        harness.send("T", b"a")
        harness.send("T", b"b")
        log = harness.broker.parts.store.log
        assert harness.pull("T").answer.body == bytes(log.read(log.start, log.end))

    def test_a_pull_skips_blanks_at_the_start_of_a_queue(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.create_for_group("T", 4)
        row = harness.broker.parts.store.queues.row("T", 0)
        harness.broker.parts.store.queues.next_offset[row] = 5
        harness.send("T", b"first")
        offset = 0
        for _ in range(3):
            pulled = harness.pull("T", 0, offset)
            assert pulled.answer.code in (0, 20, 21), pulled.answer
            if pulled.records:
                break
            offset = pulled.next_offset
        assert [record.message.body for record in pulled.records] == [b"first"]
        first = harness.pull("T", 0, 0)
        assert (first.answer.code, first.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 5)
        assert (harness.pull("T", 0, 6).answer.code, harness.pull("T", 0, 4).next_offset) == (19, 5)
        queue = {"topic": "T", "queueId": 0}
        assert harness.ask_code(RequestCode.GET_MIN_OFFSET, **queue).ext["offset"] == "5"
        for boundary, at_ms in (("LOWER", 0), ("UPPER", 0), ("UPPER", harness.now_ms)):
            answer = harness.ask_code(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=at_ms, boundaryType=boundary, **queue
            )
            assert answer.ext["offset"] == "5"

    def test_a_pull_skips_blanks_between_messages(self, harness: BrokerHarness) -> None:
        harness.send("T", b"first")
        row = harness.broker.parts.store.queues.row("T", 0)
        harness.broker.parts.store.queues.next_offset[row] = 5
        harness.send("T", b"second")
        pulled = harness.pull("T", 0, 0)
        assert ([record.message.body for record in pulled.records], pulled.next_offset) == ([b"first"], 1)
        assert harness.pull("T", 0, 1, subscription="A").next_offset == 5
        assert harness.pull("T", 0, 1).next_offset == 5
        assert [record.message.body for record in harness.pull("T", 0, 5).records] == [b"second"]


class TestLimits:
    @pytest.mark.parametrize(("asked", "given"), [(1, 1), (10, 10), (32, 32), (1000, 32), (0, 1), (-5, 1)])
    def test_the_number_of_messages_of_a_pull_is_limited(self, harness: BrokerHarness, asked: int, given: int) -> None:
        for _ in range(40):
            harness.submit(harness.send_command("T"))
        harness.tick()
        pulled = harness.pull("T", maxMsgNums=asked)
        assert (len(pulled.records), pulled.next_offset) == (given, given)

    @pytest.mark.parametrize(("body_bytes", "given"), [(10, 40), (20_000, 12), (500_000, 1)])
    def test_bytes_alone_limit_a_pull_that_asks_for_it(
        self, harness: BrokerHarness, body_bytes: int, given: int
    ) -> None:
        for _ in range(40):
            harness.submit(harness.send_command("T", bytes(body_bytes)))
            harness.tick()
        pulled = harness.pull("T", maxMsgNums=1000, wmqBytesOnly=True)
        given = given if jit.available() else min(given, 32)
        assert (len(pulled.records), pulled.next_offset) == (given, given)
        assert len(harness.pull("T", maxMsgNums=5, wmqBytesOnly=True).records) == min(given, 5)

    def test_a_pull_with_a_filter_keeps_the_number_of_messages(self, harness: BrokerHarness) -> None:
        for _ in range(40):
            harness.submit(harness.send_command("T", properties={"TAGS": "A"}))
        harness.tick()
        assert len(harness.pull("T", maxMsgNums=1000, subscription="A", wmqBytesOnly=True).records) == 32

    @pytest.mark.parametrize(("limit", "given"), [(None, 3), (150_000, 2), (1, 1), (0, 3), (-1, 1), (1 << 30, 3)])
    def test_the_bytes_of_a_pull_are_limited(self, harness: BrokerHarness, limit: int | None, given: int) -> None:
        for _ in range(4):
            harness.send("T", bytes(70_000))
        assert len(harness.pull("T", maxMsgBytes=limit).records) == given

    def test_a_pull_always_returns_the_first_message(self, harness: BrokerHarness) -> None:
        harness.send("T", bytes(500_000))
        assert len(harness.pull("T").records) == 1

    def test_a_pull_stops_at_the_end_of_a_queue_file(self, harness: BrokerHarness) -> None:
        for i in range(310):
            harness.submit(harness.send_command("T", b"%d" % i))
        harness.tick()
        pulled = harness.pull("T", 0, 290)
        assert (len(pulled.records), pulled.next_offset) == (10, 300)
        assert harness.bodies("T") == [b"%d" % i for i in range(310)]


class TestTags:
    @pytest.fixture(autouse=True)
    def messages(self, harness: BrokerHarness) -> None:
        for tag in ("A", "B", "", "A", "C", "BB", "Aa"):
            harness.send("T", tag.encode() or b"-", properties={"TAGS": tag} if tag else {})

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("*", [b"A", b"B", b"-", b"A", b"C", b"BB", b"Aa"]),
            ("", [b"A", b"B", b"-", b"A", b"C", b"BB", b"Aa"]),
            ("A", [b"A", b"A"]),
            ("A || C", [b"A", b"A", b"C"]),
            ("A||C", [b"A", b"A", b"C"]),
            (" B ||", [b"B"]),
            ("BB", [b"BB", b"Aa"]),  # equal hashes: the client separates them
            ("X", []),
            (" *", []),  # a tag, as in Apache's broker
        ],
    )
    def test_a_pull_by_tags_gets_the_matching_messages(
        self, harness: BrokerHarness, text: str, found: list[bytes]
    ) -> None:
        pulled = harness.pull("T", subscription=text)
        assert [record.message.body for record in pulled.records] == found
        assert pulled.next_offset == 7
        assert pulled.answer.code == (0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY)
        assert pulled.answer.remark == ("FOUND" if found else "NO_MATCHED_MESSAGE")

    def test_a_tag_expression_that_is_too_long_is_rejected(self, harness: BrokerHarness) -> None:
        """The broker computes its hash character by character, while all other requests wait."""
        answer = harness.pull("T", 0, 0, subscription="t" * 16_385).answer
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and "16384" in (answer.remark or "")
        assert harness.pull("T", 0, 0, subscription="t" * 16_384).answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY

    @pytest.mark.parametrize("text", ["||", " || ", "|| ||", " "])
    def test_an_expression_without_a_tag_is_rejected(self, harness: BrokerHarness, text: str) -> None:
        assert harness.pull("T", subscription=text).answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_pull_checks_a_limited_number_of_units(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, queue_file_bytes=20 * 2000, enable_property_filter=True) as harness:
        for _ in range(850):
            harness.submit(harness.send_command("T"))
        harness.tick()
        for kind, text in (("TAG", "X"), ("SQL92", "a = 'x'")):
            pulled = harness.pull("T", subscription=text, expressionType=kind)
            assert (pulled.answer.code, pulled.next_offset) == (20, 800)
        harness.restart(max_filter_message_size=20 * 20 - 1)
        assert harness.pull("T", subscription="X", maxMsgNums=10).next_offset == 20
        assert harness.pull("T", subscription="X", maxMsgNums=30).next_offset == 30


class TestSubscriptionOfTheHeartbeat:
    """A Java push consumer sends no subscription with its pulls."""

    def pull(self, harness: BrokerHarness, **fields: Any) -> Command:
        return harness.pull("T", sysFlag=0, subscription=None, **fields).answer

    @pytest.fixture(autouse=True)
    def topic(self, harness: BrokerHarness) -> None:
        for tag in ("A", "B"):
            harness.send("T", tag.encode(), properties={"TAGS": tag})

    def test_a_pull_uses_the_tags_of_the_heartbeat(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "B", "codeSet": [66], "tagsSet": ["B"], "subVersion": 7})
        answer = self.pull(harness, subVersion=7)
        assert answer.code == 0 and b"\x00\x00\x00\x01B\x01T" in answer.body

    def test_a_pull_gets_all_messages_if_the_heartbeat_has_no_tags(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "*", "subVersion": 1})
        assert self.pull(harness, subVersion=1).ext["nextBeginOffset"] == "2"

    def test_a_pull_without_a_heartbeat_is_rejected(self, harness: BrokerHarness) -> None:
        assert self.pull(harness).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    def test_a_pull_of_a_topic_missing_in_the_heartbeat_is_rejected(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "U", "subString": "*"})
        assert self.pull(harness).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    def test_a_pull_newer_than_the_heartbeat_is_rejected(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "*", "subVersion": 5})
        assert self.pull(harness, subVersion=6).code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    def test_a_pull_of_a_group_that_may_not_broadcast_is_rejected(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "*"}, model="BROADCASTING")
        group = harness.broker.parts.groups.get("consumers")
        assert group is not None and self.pull(harness).code == 0
        group.consume_broadcast_enable = False
        assert rejection(self.pull(harness)) == (ResponseCode.NO_PERMISSION, "4")

    def test_a_pull_of_a_topic_forbidden_to_the_group_is_rejected(self, harness: BrokerHarness) -> None:
        send_heartbeat(harness, {"topic": "T", "subString": "*"})
        harness.broker.parts.groups._table.forbidden_table["consumers"] = {"T": 1 << 2}
        assert rejection(self.pull(harness)) == (ResponseCode.NO_PERMISSION, "5")
        harness.broker.parts.groups._table.forbidden_table["consumers"] = {"T": 1 << 1, "U": 1 << 2}
        assert self.pull(harness).code == 0


class TestRejections:
    def test_a_pull_of_an_unknown_topic_is_rejected(self, harness: BrokerHarness) -> None:
        assert harness.pull("nowhere").answer.code == ResponseCode.TOPIC_NOT_EXIST

    @pytest.mark.parametrize("queue_id", [-1, 4, 1 << 30])
    def test_a_pull_of_an_invalid_queue_is_rejected(self, harness: BrokerHarness, queue_id: int) -> None:
        harness.send("T")
        assert harness.pull("T", queue_id).answer.code == ResponseCode.INVALID_PARAMETER

    def test_a_pull_of_a_topic_without_read_permission_is_rejected(self, harness: BrokerHarness) -> None:
        harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=1, writeQueueNums=1, perm=2)
        assert rejection(harness.pull("T").answer) == (ResponseCode.NO_PERMISSION, "3")

    def test_a_pull_of_a_group_that_may_not_consume_is_rejected(self, harness: BrokerHarness) -> None:
        harness.send("T")
        group = harness.broker.parts.groups.get("consumers")
        assert group is not None
        group.consume_enable = False
        assert rejection(harness.pull("T").answer) == (ResponseCode.NO_PERMISSION, "2")

    def test_a_broker_without_read_permission_rejects_pulls(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, broker_permission=2) as harness:
            harness.send("T")
            assert rejection(harness.pull("T").answer) == (ResponseCode.NO_PERMISSION, "1")

    def test_lite_pulls_are_rejected_when_they_are_off(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, lite_pull_message_enable=False) as harness:
            harness.send("T")
            command = harness.pull_command("T")
            command.code = RequestCode.LITE_PULL_MESSAGE
            assert rejection(harness.ask(command)) == (ResponseCode.NO_PERMISSION, "1")
            assert harness.pull("T").answer.code == 0

    def test_pull_consumers_are_rejected_when_they_are_off(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, reject_pull_consumer_enable=True) as harness:
            harness.send("T")
            answer = harness.pull("T").answer
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert harness.pull("T", consumerGroup="TOOLS_CONSUMER").answer.code == 0
            send_heartbeat(harness, {"topic": "T", "subString": "*"}, consumeType="CONSUME_ACTIVELY")
            assert "consumers" not in harness.broker.parts.clients.consumers
            send_heartbeat(harness, {"topic": "T", "subString": "*"})
            assert harness.pull("T").answer.code == 0
            assert harness.pull("T", connection=harness.connect()).answer.code == 0

    def test_a_pull_of_an_unknown_group_is_rejected(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.restart(auto_create_group=False)
        assert harness.pull("T").answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def test_a_pull_without_a_required_field_is_rejected(self, harness: BrokerHarness) -> None:
        harness.send("T")
        command = harness.pull_command("T")
        del command.ext["queueOffset"]
        assert harness.ask(command).code == ResponseCode.SYSTEM_ERROR


class TestSuggestedBroker:
    def suggested(self, harness: BrokerHarness, offset: int = 0, **fields: Any) -> str:
        return harness.pull("T", 0, offset, **fields).answer.ext["suggestWhichBrokerId"]

    def group(self, harness: BrokerHarness) -> None:
        group = harness.broker.parts.groups.get("consumers")
        assert group is not None
        group.broker_id, group.which_broker_when_consume_slowly = 2, 3

    def test_a_pull_suggests_this_broker_by_default(self, harness: BrokerHarness) -> None:
        harness.send("T")
        self.group(harness)
        assert self.suggested(harness) == self.suggested(harness, 1) == "0"

    def test_a_pull_suggests_the_broker_of_the_group_if_slaves_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "PHYSICAL_BYTES", 10_000)
        with BrokerHarness(tmp_path, slave_read_enable=True, access_message_in_memory_max_ratio=30) as harness:
            self.group(harness)
            harness.send("T", bytes(2000))
            assert self.suggested(harness) == "2"
            for _ in range(3):
                harness.send("T", bytes(2000))
            assert self.suggested(harness, maxMsgNums=1) == "3"
            assert self.suggested(harness) == "2"  # the last returned message decides
            assert (
                self.suggested(harness, maxMsgNums=1, subscription="none") == "2"
            )  # the pull checked all four messages
            assert self.suggested(harness, 4) == self.suggested(harness, 99) == "2"


class TestCommit:
    @pytest.mark.parametrize(("flag", "offset", "stored"), [(0, 1, None), (PULL_COMMIT_OFFSET, 1, 1)])
    def test_a_pull_commits_its_offset_only_with_the_flag(
        self, harness: BrokerHarness, flag: int, offset: int, stored: int | None
    ) -> None:
        harness.send("T")
        harness.pull("T", sysFlag=flag | PULL_SUBSCRIPTION, commitOffset=offset)
        assert harness.broker.parts.consumer_offsets.get("consumers", "T", 0) == stored

    def test_a_pull_does_not_commit_a_negative_offset(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.pull("T", sysFlag=PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION, commitOffset=-1)
        assert harness.broker.parts.consumer_offsets.get("consumers", "T", 0) is None


@pytest.mark.parametrize("at", [0, 6, 7, 8, 10, 11])
def test_a_unit_that_names_no_record_is_logged_and_skipped(
    harness: BrokerHarness, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The first 8 bytes of a unit are the record's position, and the next 4 are its size."""
    for i in range(3):
        harness.send("T", b"%d" % i)
    queue = harness.broker.parts.store.queues.find("T", 0)
    assert queue is not None
    queue.files.file_at(0).array[20 + at] ^= 4
    assert harness.bodies("T") == [b"0", b"2"]
    assert harness.pull("T", 0, 1).next_offset in (2, 3)
    assert "1 units of queue 0 of topic T" in caplog.text
