"""Requests of administrators that the broker passes on to clients, such as GET_CONSUMER_RUNNING_INFO."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from wheelmq.formats.wire import bodies, frame, queue_tables
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.client_calls import ConsumerStatus
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import FLAG_RESPONSE, Command
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, BrokerHarness

TABLE = (
    b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":1,"topic":"T"}:7}}'
)


def member(harness: BrokerHarness, client: str = "c") -> FakeConnection:
    """Connect a client of group `g`. It broadcasts, so it gets no notifications."""
    connection = harness.connect()
    send_heartbeat(harness, connection, client, messageModel="BROADCASTING")
    return connection


def ask(harness: BrokerHarness, code: RequestCode, **fields: object) -> Ask:
    """Submit a request of an administrator on a new connection."""
    ext = {name: str(value) for name, value in fields.items()}
    asked = harness.submit(Command(code=code, ext=ext), harness.connect())
    harness.tick()
    return asked


def ask_info(harness: BrokerHarness, **fields: object) -> Ask:
    return ask(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, **{"consumerGroup": "g", "clientId": "c", **fields})


def answer(harness: BrokerHarness, client: FakeConnection, body: bytes = b"", *, which: int = 0, **header: Any) -> None:
    """Let the client answer a request of the broker."""
    opaque = client.requests.pop(which).opaque
    command = Command(**{"code": 0, "opaque": opaque, "flag": FLAG_RESPONSE, "body": body, **header})
    harness.feed(frame.encode(command), client)
    harness.tick()


class TestRunningInfo:
    def test_a_request_and_its_answer_are_passed_on(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness, jstackEnable=True)
        assert asked.answer is None
        (question,) = client.requests
        assert (question.code, question.is_oneway, question.ext["jstackEnable"]) == (307, False, "True")
        answer(harness, client, b"{}", remark="r", ext={"a": "b"})
        assert asked.answer is not None
        assert (asked.answer.code, asked.answer.remark, asked.answer.ext, asked.answer.body) == (
            0,
            "r",
            {"a": "b"},
            b"{}",
        )
        assert len(harness.broker.parts.calls) == 0

    def test_each_request_gets_its_own_answer(self, harness: BrokerHarness) -> None:
        client = member(harness)
        first, second = ask_info(harness), ask_info(harness)
        answer(harness, client, b"2", which=1)
        answer(harness, client, b"1")
        assert [one.answer and one.answer.body for one in (first, second)] == [b"1", b"2"]

    def test_a_request_without_an_answer_times_out(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.advance(9_999)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None and asked.answer.code == 207
        assert asked.answer.remark == "consumer <g> <c> Timeout: no answer in 10000 ms"
        answer(harness, client)
        assert harness.broker.parts.calls.counts == {"late": 1, "unknown": 1}

    def test_a_request_to_a_client_that_is_lost_fails(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.lose(client)
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 1
        assert asked.answer.remark == "invoke consumer <g> <c> Exception: its connection is closed"

    def test_an_answer_for_a_lost_administrator_is_dropped(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.lose(asked.connection)
        answer(harness, client, b"{}")
        assert asked.answer is None and harness.broker.parts.calls.counts == {}

    def test_a_request_to_a_client_that_does_not_read_is_rejected(self, harness: BrokerHarness) -> None:
        member(harness).is_full = True
        asked = ask_info(harness)
        assert asked.answer is not None and asked.answer.code == 2

    @pytest.mark.parametrize("names", [{"consumerGroup": "nobody"}, {"clientId": "x"}])
    def test_a_request_to_an_unknown_client_is_rejected(self, harness: BrokerHarness, names: dict[str, str]) -> None:
        member(harness)
        asked = ask_info(harness, **names)
        assert asked.answer is not None and asked.answer.code == 1
        assert asked.answer.remark is not None and asked.answer.remark.endswith("not online")

    def test_a_request_to_a_client_that_is_too_old_is_rejected(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"BROADCASTING"}]}'
        harness.ask(Command(code=RequestCode.HEART_BEAT, body=body, version=61), connection)
        asked = ask_info(harness)
        assert asked.answer is not None and asked.answer.code == 1 and connection.requests == []

    def test_the_last_connection_of_a_client_gets_the_request(self, harness: BrokerHarness) -> None:
        first, second = member(harness), member(harness)
        ask_info(harness)
        assert (len(first.requests), len(second.requests)) == (0, 1)
        harness.lose(second)
        ask_info(harness)
        assert len(first.requests) == 1

    def test_a_oneway_request_gets_no_answer(self, harness: BrokerHarness) -> None:
        client = member(harness)
        ext = {"consumerGroup": "g", "clientId": "c"}
        asked = harness.submit(Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, ext=ext), oneway=True)
        harness.tick()
        answer(harness, client, b"{}")
        assert asked.answer is None


class TestConsumeDirectly:
    def ask(self, harness: BrokerHarness, msg_id: str | None, **fields: object) -> Ask:
        named = {} if msg_id is None else {"msgId": msg_id}
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return ask(harness, code, **{"consumerGroup": "g", "clientId": "c", "topic": "T", **named, **fields})

    def test_the_client_gets_the_record(self, harness: BrokerHarness) -> None:
        sent = harness.send("T", b"x")
        client = member(harness)
        harness.broker.parts.groups.get("g").group_sys_flag = 3  # type: ignore[union-attr]
        asked = self.ask(harness, sent.ext["msgId"])
        (question,) = client.requests
        assert question.body == harness.pull("T").answer.body
        named = {name: question.ext[name] for name in ("brokerName", "topicSysFlag", "groupSysFlag")}
        assert named == {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "3"}
        answer(harness, client, b'{"consumeResult":"CR_SUCCESS"}')
        assert asked.answer is not None and asked.answer.body == b'{"consumeResult":"CR_SUCCESS"}'

    @pytest.mark.parametrize("msg_id", [None, "", "xyz", "00" * 16, "7F00000100002A9F00000000FFFFFFFF"])
    def test_an_invalid_message_id_is_rejected(self, harness: BrokerHarness, msg_id: str | None) -> None:
        client = member(harness)
        asked = self.ask(harness, msg_id)
        assert asked.answer is not None and asked.answer.code == 1 and asked.answer.remark
        assert client.requests == []


class TestStatus:
    def ask(self, harness: BrokerHarness, **fields: object) -> Ask:
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        return ask(harness, code, **{"topic": "T", "group": "g", **fields})

    def test_the_answer_has_the_status_of_all_clients(self, harness: BrokerHarness) -> None:
        first, second = member(harness, "a"), member(harness, "b")
        asked = self.ask(harness)
        assert [one.code for one in first.requests] == [RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT]
        answer(harness, second, TABLE)
        assert asked.answer is None
        answer(harness, first, b'{"messageQueueTable":{}}')
        assert asked.answer is not None
        assert asked.answer.body == (
            b'{"consumerTable":{"b":{{"brokerName":"b","queueId":0,"topic":"T"}:5,'
            b'{"brokerName":"b","queueId":1,"topic":"T"}:7},"a":{}}}'
        )

    def test_the_status_of_one_client_can_be_requested(self, harness: BrokerHarness) -> None:
        first, second = member(harness, "a"), member(harness, "b")
        asked = self.ask(harness, clientAddr="b")
        answer(harness, second, TABLE)
        assert asked.answer is not None and b'{"b":' in asked.answer.body and first.requests == []

    def test_clients_without_a_valid_answer_are_left_out(self, harness: BrokerHarness) -> None:
        clients = [member(harness, name) for name in "abcd"]
        asked = self.ask(harness)
        answer(harness, clients[0], TABLE)
        answer(harness, clients[1], code=1)
        answer(harness, clients[2], b'{"messageQueueTable":{{]}}')
        assert asked.answer is None
        harness.advance(10_000)
        assert asked.answer is not None and list(msgspec_keys(asked.answer.body)) == ["a"]

    def test_a_status_request_may_find_no_client(self, harness: BrokerHarness) -> None:
        assert self.ask(harness).answer.code == 1  # type: ignore[union-attr]
        member(harness)
        unknown = self.ask(harness, clientAddr="x").answer
        assert unknown is not None and unknown.body == b'{"consumerTable":{}}'


def msgspec_keys(body: bytes) -> list[str]:
    """Return the clients in a table of offsets by client."""
    return [part.rsplit(b'"', 2)[-2].decode() for part in body.split(b":{{")[:-1]]


@pytest.mark.parametrize(
    "raw", [b'{"messageQueueTable"', b'{"messageQueueTable":5}', b'{"messageQueueTable":{5:6}}', TABLE[:60], TABLE[:-2]]
)
def test_an_invalid_table_of_offsets_is_rejected(raw: bytes) -> None:
    with pytest.raises(BodyError):
        queue_tables.by_queue(bodies.read(raw, ConsumerStatus).message_queue_table)
