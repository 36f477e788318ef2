"""SEND_REPLY_MESSAGE: the broker pushes a reply to the waiting client, and stores it in its topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from tests.unit.broker.test_relay import answer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.connection import FakeConnection
from wheelmq.testing.harness import Ask, BrokerHarness

TOPIC = "DefaultCluster_REPLY_TOPIC"


def producer(harness: BrokerHarness, client: str = "asker", *groups: str) -> FakeConnection:
    connection = harness.connect()
    send_heartbeat(harness, connection, client, group="other", producers=groups or ("p",), messageModel="BROADCASTING")
    return connection


def reply(harness: BrokerHarness, client: str | None = "asker", **letters: object) -> Ask:
    named = {} if client is None else {"REPLY_TO_CLIENT": client}
    command = harness.send_command(TOPIC, b"reply", properties={"CORRELATION_ID": "7", **named}, **letters)
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    asked = harness.submit(command)
    harness.tick()
    return asked


def test_a_reply_is_passed_on_and_stored(harness: BrokerHarness) -> None:
    connection = producer(harness)
    asked = reply(harness, h=5, f=1)
    assert asked.answer is None
    (push,) = connection.requests
    assert (push.code, push.is_oneway, push.body) == (326, False, b"reply")
    found = props.parse(push.ext.pop("properties"))
    assert found["CORRELATION_ID"] == "7" and int(found["PUSH_REPLY_TIME"]) == harness.now_ms
    assert push.ext == {
        "producerGroup": "producers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "bornTimestamp": str(harness.now_ms),
        "flag": "5",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "10.0.0.1:40001" if harness.client.peer.port == 40001 else f"10.0.0.1:{harness.client.peer.port}",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(harness.now_ms),
    }
    answer(harness, connection)
    assert asked.answer is not None and asked.answer.code == 0
    assert (asked.answer.ext["queueId"], asked.answer.ext["queueOffset"]) == ("0", "0")
    (stored,) = harness.read_queue(TOPIC)
    assert (stored.message.body, stored.message.flag, stored.message.sys_flag) == (b"reply", 5, 1)
    assert stored.message.properties["CORRELATION_ID"] == "7" and "PUSH_REPLY_TIME" not in stored.message.properties
    assert asked.answer.ext["msgId"].endswith(f"{stored.position:016X}")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_reply_that_the_client_does_not_accept_is_stored(harness: BrokerHarness, is_there: bool) -> None:
    connection = producer(harness) if is_there else None
    asked = reply(harness)
    if connection is not None:
        answer(harness, connection, code=1)
    assert asked.answer is not None and asked.answer.code == 1
    why = "push reply message to askerfail." if is_there else "push reply message fail, channel of <asker> not found."
    assert asked.answer.remark == why
    assert harness.bodies(TOPIC) == [b"reply"]


def test_a_reply_that_names_no_client_is_rejected(harness: BrokerHarness) -> None:
    asked = reply(harness, None)
    assert asked.answer is not None
    assert (asked.answer.code, asked.answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")


def test_a_reply_to_a_silent_or_lost_client_is_stored(harness: BrokerHarness) -> None:
    connection = producer(harness)
    first = reply(harness)
    harness.advance(10_000)
    second = reply(harness)
    harness.lose(connection)
    harness.tick()
    assert [one.answer and one.answer.code for one in (first, second)] == [1, 1]
    assert len(harness.bodies(TOPIC)) == 2


def test_a_reply_with_long_field_names_is_passed_on(harness: BrokerHarness) -> None:
    connection = producer(harness)
    header = {
        "producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": -1,
        "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "REPLY_TO_CLIENT\x01asker\x02",
    }  # fmt: skip
    ext = {name: str(value) for name, value in header.items()}
    from wheelmq.formats.wire.frame import Command

    asked = harness.submit(Command(code=RequestCode.SEND_REPLY_MESSAGE, ext=ext, body=b"r"))
    harness.tick()
    assert connection.requests[0].ext["queueId"] == "-1"
    answer(harness, connection)
    assert asked.answer is not None and asked.answer.ext["queueId"] == "0"


def test_a_oneway_reply_is_passed_on(harness: BrokerHarness) -> None:
    connection = producer(harness)
    command = harness.send_command(TOPIC, b"reply", properties={"REPLY_TO_CLIENT": "asker"})
    command.code = RequestCode.SEND_REPLY_MESSAGE_V2
    asked = harness.submit(command, oneway=True)
    harness.tick()
    answer(harness, connection)
    assert asked.answer is None and harness.bodies(TOPIC) == [b"reply"]


@pytest.mark.parametrize(("letters", "code"), [({"b": "SCHEDULE_TOPIC_XXXX"}, 16), ({"b": "a b"}, 29), ({"e": 9}, 29)])
def test_an_invalid_reply_is_rejected(harness: BrokerHarness, letters: dict[str, object], code: int) -> None:
    connection = producer(harness)
    asked = reply(harness, **letters)
    assert asked.answer is not None and asked.answer.code == code and connection.requests == []


def test_a_reply_is_passed_on_when_storing_is_off(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, store_reply_message_enable=False) as harness:
        connection = producer(harness)
        asked = reply(harness)
        answer(harness, connection)
        assert asked.answer is not None and asked.answer.code == 0
        assert (asked.answer.ext["msgId"], asked.answer.ext["queueOffset"]) == ("0", "0")
        assert harness.bodies(TOPIC) == []


def test_a_reply_is_passed_on_while_the_store_rejects_messages(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    connection = producer(harness)
    asked = reply(harness)
    harness.broker.parts.admission.stop()
    answer(harness, connection)
    assert asked.answer is not None and (asked.answer.code, asked.answer.ext["msgId"]) == (0, "0")
    (line,) = [text for text in caplog.messages if "could not store a reply" in text]
    assert "service not available now" in line and line.endswith("(the broker is stopping)")
    assert harness.broker.parts.stats.failed_puts == 1


def test_the_answer_to_a_reply_waits_for_the_disk(tmp_path: Path) -> None:
    from wheelmq.testing.workers import HeldWorker

    with BrokerHarness(tmp_path, flush_mode="SYNC_FLUSH", worker=HeldWorker()) as harness:
        connection = producer(harness)
        asked = reply(harness)
        answer(harness, connection)
        assert asked.answer is None
        harness.run_jobs()
        assert asked.answer is not None and asked.answer.code == 0


class TestWaitingClient:
    def find(self, harness: BrokerHarness, client: str = "asker") -> object:
        return harness.broker.parts.clients.find_producer(client)

    def test_the_last_connection_of_a_client_gets_replies(self, harness: BrokerHarness) -> None:
        first, second = producer(harness), producer(harness)
        assert self.find(harness) is second
        harness.lose(second)
        assert self.find(harness) is first
        harness.lose(first)
        assert self.find(harness) is None and harness.broker.parts.clients._groups_produced_for == {}

    def test_a_client_gets_replies_while_it_has_a_producer_group(self, harness: BrokerHarness) -> None:
        connection = producer(harness, "asker", "p", "q")
        for group, is_left in (("p", True), ("unheardOf", True), ("q", False)):
            code = RequestCode.UNREGISTER_CLIENT
            harness.ask_code(code, connection=connection, clientID="asker", producerGroup=group)
            assert (self.find(harness) is connection) == is_left
