"""What an administrator asks clients by way of the broker: GET_CONSUMER_RUNNING_INFO and its like."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.broker.test_handlers import beat
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
    """A client of group `g` that broadcasts, so that it is told of nobody."""
    connection = harness.connect()
    beat(harness, connection, client, messageModel="BROADCASTING")
    return connection


def ask(harness: BrokerHarness, code: RequestCode, **fields: object) -> Ask:
    """A question of an administrator, on a connection of its own."""
    ext = {name: str(value) for name, value in fields.items()}
    asked = harness.submit(Command(code=code, ext=ext), harness.connect())
    harness.tick()
    return asked


def ask_info(harness: BrokerHarness, **fields: object) -> Ask:
    return ask(harness, RequestCode.GET_CONSUMER_RUNNING_INFO, **{"consumerGroup": "g", "clientId": "c", **fields})


def answer(harness: BrokerHarness, client: FakeConnection, body: bytes = b"", *, which: int = 0, **header: Any) -> None:
    """The client answers the broker's question."""
    opaque = client.requests.pop(which).opaque
    command = Command(**{"code": 0, "opaque": opaque, "flag": FLAG_RESPONSE, "body": body, **header})
    harness.feed(frame.encode(command), client)
    harness.tick()


class TestRunningInfo:
    def test_is_passed_on_and_back(self, harness: BrokerHarness) -> None:
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
        assert len(harness.broker.calls) == 0

    def test_each_gets_the_answer_to_its_own(self, harness: BrokerHarness) -> None:
        client = member(harness)
        first, second = ask_info(harness), ask_info(harness)
        answer(harness, client, b"2", which=1)
        answer(harness, client, b"1")
        assert [one.answer and one.answer.body for one in (first, second)] == [b"1", b"2"]

    def test_no_answer_in_time(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.advance(9_999)
        assert asked.answer is None
        harness.advance(1)
        assert asked.answer is not None and asked.answer.code == 207
        assert asked.answer.remark == "consumer <g> <c> Timeout: no answer in 10000 ms"
        answer(harness, client)
        assert harness.broker.calls.counts == {"late": 1, "unknown": 1}

    def test_the_client_goes_meanwhile(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.lose(client)
        harness.tick()
        assert asked.answer is not None and asked.answer.code == 1
        assert asked.answer.remark == "invoke consumer <g> <c> Exception: its connection is closed"

    def test_who_asked_goes_meanwhile(self, harness: BrokerHarness) -> None:
        client = member(harness)
        asked = ask_info(harness)
        harness.lose(asked.connection)
        answer(harness, client, b"{}")
        assert asked.answer is None and harness.broker.calls.counts == {}

    def test_a_client_that_does_not_read(self, harness: BrokerHarness) -> None:
        member(harness).is_full = True
        asked = ask_info(harness)
        assert asked.answer is not None and asked.answer.code == 2

    @pytest.mark.parametrize("who", [{"consumerGroup": "nobody"}, {"clientId": "x"}])
    def test_of_nobody(self, harness: BrokerHarness, who: dict[str, str]) -> None:
        member(harness)
        asked = ask_info(harness, **who)
        assert asked.answer is not None and asked.answer.code == 1
        assert asked.answer.remark is not None and asked.answer.remark.endswith("not online")

    def test_a_client_too_old(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"BROADCASTING"}]}'
        harness.ask(Command(code=RequestCode.HEART_BEAT, body=body, version=61), connection)
        asked = ask_info(harness)
        assert asked.answer is not None and asked.answer.code == 1 and connection.requests == []

    def test_of_a_client_on_two_connections_the_last_is_asked(self, harness: BrokerHarness) -> None:
        first, second = member(harness), member(harness)
        ask_info(harness)
        assert (len(first.requests), len(second.requests)) == (0, 1)
        harness.lose(second)
        ask_info(harness)
        assert len(first.requests) == 1

    def test_asked_oneway(self, harness: BrokerHarness) -> None:
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
        harness.broker.groups.get("g").group_sys_flag = 3  # type: ignore[union-attr]
        asked = self.ask(harness, sent.ext["msgId"])
        (question,) = client.requests
        assert question.body == harness.pull("T").answer.body
        told = {name: question.ext[name] for name in ("brokerName", "topicSysFlag", "groupSysFlag")}
        assert told == {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "3"}
        answer(harness, client, b'{"consumeResult":"CR_SUCCESS"}')
        assert asked.answer is not None and asked.answer.body == b'{"consumeResult":"CR_SUCCESS"}'

    @pytest.mark.parametrize("msg_id", [None, "", "xyz", "00" * 16, "7F00000100002A9F00000000FFFFFFFF"])
    def test_no_message(self, harness: BrokerHarness, msg_id: str | None) -> None:
        client = member(harness)
        asked = self.ask(harness, msg_id)
        assert asked.answer is not None and asked.answer.code == 1 and asked.answer.remark
        assert client.requests == []


class TestStatus:
    def ask(self, harness: BrokerHarness, **fields: object) -> Ask:
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        return ask(harness, code, **{"topic": "T", "group": "g", **fields})

    def test_of_all_clients(self, harness: BrokerHarness) -> None:
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

    def test_of_one(self, harness: BrokerHarness) -> None:
        first, second = member(harness, "a"), member(harness, "b")
        asked = self.ask(harness, clientAddr="b")
        answer(harness, second, TABLE)
        assert asked.answer is not None and b'{"b":' in asked.answer.body and first.requests == []

    def test_those_that_do_not_answer_are_left_out(self, harness: BrokerHarness) -> None:
        clients = [member(harness, name) for name in "abcd"]
        asked = self.ask(harness)
        answer(harness, clients[0], TABLE)
        answer(harness, clients[1], code=1)
        answer(harness, clients[2], b'{"messageQueueTable":{{]}}')
        assert asked.answer is None
        harness.advance(10_000)
        assert asked.answer is not None and list(msgspec_keys(asked.answer.body)) == ["a"]

    def test_of_no_client(self, harness: BrokerHarness) -> None:
        assert self.ask(harness).answer.code == 1  # type: ignore[union-attr]
        member(harness)
        nobody = self.ask(harness, clientAddr="x").answer
        assert nobody is not None and nobody.body == b'{"consumerTable":{}}'


def msgspec_keys(body: bytes) -> list[str]:
    """The clients in a table of offsets by client."""
    return [part.rsplit(b'"', 2)[-2].decode() for part in body.split(b":{{")[:-1]]


@pytest.mark.parametrize(
    "raw", [b'{"messageQueueTable"', b'{"messageQueueTable":5}', b'{"messageQueueTable":{5:6}}', TABLE[:60], TABLE[:-2]]
)
def test_a_client_that_tells_no_offsets(raw: bytes) -> None:
    with pytest.raises(BodyError):
        queue_tables.by_queue(bodies.read(raw, ConsumerStatus).message_queue_table)
