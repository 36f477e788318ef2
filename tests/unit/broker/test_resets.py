"""INVOKE_BROKER_TO_RESET_OFFSET: a group continues at another offset, with its clients online or offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture
def five(harness: BrokerHarness) -> BrokerHarness:
    """Topic T has four queues. Queue 0 has five messages, 10 ms apart. The group has committed all of them."""
    for _ in range(5):
        harness.send("T")
        harness.clock.advance(10)
    harness.broker.parts.groups.get("g")
    harness.broker.parts.consumer_offsets.commit("g", "T", 0, 5)
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
    def test_a_reset_to_a_time_sets_the_offsets_of_all_queues(
        self, five: BrokerHarness, at_ms: int | None, offset: int
    ) -> None:
        answer = reset(five, timestamp=-1 if at_ms is None else five.now_ms + at_ms)
        tables = b",".join(
            b'{"brokerName":"broker-a","queueId":%d,"topic":"T"}:%d' % (queue, offset if queue == 0 else 0)
            for queue in range(4)
        )
        assert answer.body == b'{"offsetTable":{%b}}' % tables
        assert committed(five) == offset

    def test_a_reset_of_one_queue_sets_its_offset(self, five: BrokerHarness) -> None:
        answer = reset(five, queueId=0, offset=2)
        assert answer.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
        assert committed(five) == 2
        assert reset(five, queueId=0, offset=-1, timestamp=five.now_ms).code == 0
        assert committed(five) == 5

    def test_the_next_pull_is_moved_to_the_new_offset_once(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        answer = pull(five, 5)
        assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")
        assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "5")
        assert pull(five, 2).remark == "FOUND"

    def test_a_reset_does_not_affect_other_groups_and_queues(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        assert five.pull("T", 0, 5).answer.remark == "OFFSET_OVERFLOW_ONE"
        assert five.pull("T", 1, 0, consumerGroup="g").answer.code == 19
        assert five.broker.parts.consumer_offsets.has_reset("g", "T", 0)

    def test_a_commit_before_the_pull_is_moved_is_ignored(self, five: BrokerHarness) -> None:
        reset(five, queueId=0, offset=2)
        answer = commit(five, 5)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        assert pull(five, 5, sysFlag=5, commitOffset=5).code == 21
        assert committed(five) == 2
        assert commit(five, 3).remark is None
        assert committed(five) == 3

    def test_a_held_pull_is_moved_at_once(self, five: BrokerHarness) -> None:
        other = five.submit(five.pull_command("T", 0, 5, hold_ms=10_000))
        held = five.submit(five.pull_command("T", 0, 5, hold_ms=10_000, consumerGroup="g"))
        five.tick()
        reset(five, queueId=0, offset=1)
        assert held.answer is not None and held.answer.ext["nextBeginOffset"] == "1"
        assert other.answer is None

    def test_a_reset_of_an_offline_group_survives_a_restart(self, five: BrokerHarness) -> None:
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
    def test_an_invalid_reset_is_rejected(self, five: BrokerHarness, fields: dict[str, object], code: int) -> None:
        assert reset(five, **fields).code == code
        assert committed(five) == 5 and not five.broker.parts.consumer_offsets.has_reset("g", "T", 0)

    def test_applied_resets_leave_no_state(self, five: BrokerHarness) -> None:
        reset(five)
        for queue in range(4):
            five.pull("T", queue, 0, consumerGroup="g")
        assert five.broker.parts.consumer_offsets._resets == {}


class TestOnTheClients:
    @pytest.fixture
    def client_side(self, tmp_path: Path) -> BrokerHarness:
        harness = BrokerHarness(tmp_path, use_server_side_reset_offset=False)
        for _ in range(3):
            harness.send("T", d=1)
        harness.broker.parts.consumer_offsets.commit("g", "T", 0, 2)
        return harness

    def client(self, harness: BrokerHarness, **options: object) -> FakeConnection:
        connection = harness.connect()
        send_heartbeat(harness, connection, messageModel="BROADCASTING")
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
    def test_clients_are_notified_of_a_reset(
        self, client_side: BrokerHarness, fields: dict[str, object], offset: int
    ) -> None:
        first, second = self.client(client_side), self.client(client_side)
        answer = reset(client_side, **fields)
        table = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:%d}}' % offset
        assert (answer.code, answer.body) == (0, table)
        for connection in (first, second):
            (question,) = connection.requests
            assert (question.code, question.is_oneway, question.body) == (220, True, table)
            assert (question.ext["topic"], question.ext["group"]) == ("T", "g")
        assert committed(client_side) == 2

    def test_clients_in_cpp_get_a_list_of_offsets(self, client_side: BrokerHarness) -> None:
        connection = self.client(client_side)
        reset(client_side, language="CPP")
        (question,) = connection.requests
        assert question.body == b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"T"}]}'

    def test_a_reset_without_connected_clients_is_rejected(self, client_side: BrokerHarness) -> None:
        assert reset(client_side).code == 206

    def test_a_reset_of_a_group_without_offsets_is_rejected(self, client_side: BrokerHarness) -> None:
        answer = reset(client_side, group="other")
        assert (answer.code, answer.remark) == (1, "THe consumer group <other> not exist")

    def test_a_reset_with_a_client_that_is_too_old_is_rejected(self, client_side: BrokerHarness) -> None:
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"BROADCASTING"}]}'
        client_side.ask(Command(code=RequestCode.HEART_BEAT, body=body, version=27))
        assert reset(client_side).code == 1
