"""INVOKE_BROKER_TO_RESET_OFFSET: a group goes on elsewhere, with its clients on and off line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.test_handlers import beat
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture
def five(harness: BrokerHarness) -> BrokerHarness:
    """Five messages, 10 ms from one to the next, in queue 0 of the topic T of four; the group is at their end."""
    for _ in range(5):
        harness.send("T")
        harness.clock.advance(10)
    harness.broker.groups.get("g")
    harness.broker.consumer_offsets.commit("g", "T", 0, 5)
    return harness


def reset(harness: BrokerHarness, *, language: str = "JAVA", **fields: object) -> Command:
    named = {"group": "g", "topic": "T", "timestamp": 0, "isForce": True, **fields}
    ext = {name: str(value) for name, value in named.items() if value is not None}
    return harness.ask(Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext, language=language))


def committed(harness: BrokerHarness) -> int:
    answer = harness.ask_code(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0)
    return int(answer.ext["offset"])


def commit(harness: BrokerHarness, offset: int) -> Command:
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    return harness.ask_code(code, consumerGroup="g", topic="T", queueId=0, commitOffset=offset)


def pull(harness: BrokerHarness, offset: int, **fields: object) -> Command:
    return harness.pull("T", 0, offset, consumerGroup="g", **fields).answer


class TestOnTheBroker:
    @pytest.mark.parametrize(("at_ms", "offset"), [(-60, 0), (-50, 0), (-30, 2), (-25, 3), (1000, 5), (None, 5)])
    def test_to_a_time(self, five: BrokerHarness, at_ms: int | None, offset: int) -> None:
        answer = reset(five, timestamp=-1 if at_ms is None else five.now_ms + at_ms)
        tables = b",".join(
            b'{"brokerName":"broker-a","queueId":%d,"topic":"T"}:%d' % (queue, offset if queue == 0 else 0)
            for queue in range(4)
        )
        assert answer.body == b'{"offsetTable":{%b}}' % tables
        assert committed(five) == offset

    def test_of_one_queue_to_an_offset(self, five: BrokerHarness) -> None:
        answer = reset(five, queueId=0, offset=2)
        assert answer.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
        assert committed(five) == 2
        assert reset(five, queueId=0, offset=-1, timestamp=five.now_ms).code == 0
        assert committed(five) == 5

    def test_a_client_that_pulls_is_sent_there_once(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        answer = pull(five, 5)
        assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")
        assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "5")
        assert pull(five, 2).remark == "FOUND"

    def test_other_groups_and_queues_go_on(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        assert five.pull("T", 0, 5).answer.remark == "OFFSET_OVERFLOW_ONE"
        assert five.pull("T", 1, 0, consumerGroup="g").answer.code == 19
        assert five.broker.consumer_offsets.has_reset("g", "T", 0)

    def test_what_a_client_commits_that_does_not_know_is_not_taken(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        answer = commit(five, 5)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        assert pull(five, 5, sysFlag=5, commitOffset=5).code == 21
        assert committed(five) == 2
        assert commit(five, 3).remark is None
        assert committed(five) == 3

    def test_a_held_pull_is_sent_there_at_once(self, five: BrokerHarness) -> None:
        other = five.submit(five.pull_command("T", 0, 5, hold_ms=10_000))
        held = five.submit(five.pull_command("T", 0, 5, hold_ms=10_000, consumerGroup="g"))
        five.tick()
        reset(five, queueId=0, offset=1)
        assert held.answer is not None and held.answer.ext["nextBeginOffset"] == "1"
        assert other.answer is None

    def test_off_line_and_over_a_stop(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        five.restart()
        assert committed(five) == 2
        assert pull(five, 2).remark == "FOUND"

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "nowhere"}, 17),
            ({"group": "unheardOf"}, 26),
            ({"queueId": 0, "offset": 6}, 1),
            ({"queueId": 0, "offset": -2}, 1),
            ({"queueId": 4, "offset": 0}, 29),
            ({"queueId": 4}, 29),
            ({"timestamp": None}, 1),
        ],
    )
    def test_refused(self, five: BrokerHarness, fields: dict[str, object], code: int) -> None:
        assert reset(five, **fields).code == code
        assert committed(five) == 5 and not five.broker.consumer_offsets.has_reset("g", "T", 0)

    def test_what_was_taken_leaves_nothing_behind(self, five: BrokerHarness) -> None:
        reset(five)
        for queue in range(4):
            five.pull("T", queue, 0, consumerGroup="g")
        assert five.broker.consumer_offsets._resets == {}


class TestOnTheClients:
    @pytest.fixture
    def told(self, tmp_path: Path) -> BrokerHarness:
        harness = BrokerHarness(tmp_path, use_server_side_reset_offset=False)
        for _ in range(3):
            harness.send("T", d=1)
        harness.broker.consumer_offsets.commit("g", "T", 0, 2)
        return harness

    def client(self, harness: BrokerHarness, **options: object) -> FakeConnection:
        connection = harness.connect()
        beat(harness, connection, messageModel="BROADCASTING")
        return connection

    @pytest.mark.parametrize(
        ("fields", "offset"),
        [
            ({"timestamp": 0}, 0),
            ({"timestamp": -1}, 3),
            ({"timestamp": -1, "isForce": False}, 2),
            ({"isForce": False}, 0),
        ],
    )
    def test_they_are_told(self, told: BrokerHarness, fields: dict[str, object], offset: int) -> None:
        first, second = self.client(told), self.client(told)
        answer = reset(told, **fields)
        table = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:%d}}' % offset
        assert (answer.code, answer.body) == (0, table)
        for connection in (first, second):
            (question,) = connection.requests
            assert (question.code, question.is_oneway, question.body) == (220, True, table)
            assert (question.ext["topic"], question.ext["group"]) == ("T", "g")
        assert committed(told) == 2

    def test_those_in_cpp_get_a_list(self, told: BrokerHarness) -> None:
        connection = self.client(told)
        reset(told, language="CPP")
        (question,) = connection.requests
        assert question.body == b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"T"}]}'

    def test_with_nobody_there(self, told: BrokerHarness) -> None:
        assert reset(told).code == 206

    def test_a_group_that_has_no_offset(self, told: BrokerHarness) -> None:
        answer = reset(told, group="other")
        assert (answer.code, answer.remark) == (1, "THe consumer group <other> not exist")

    def test_a_client_too_old(self, told: BrokerHarness) -> None:
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"BROADCASTING"}]}'
        told.ask(Command(code=RequestCode.HEART_BEAT, body=body, version=27))
        assert reset(told).code == 1
