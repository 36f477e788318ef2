"""Effects of a send that its answer does not show: flags, queues, topics, dead letters."""

from __future__ import annotations

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_COMPRESSED, SYS_MULTI_TAGS, SYS_TRANSACTION
from wheelmq.formats.wire.bodies import TOPIC_UNIT, TOPIC_UNIT_SUB
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness


def sys_flag_of(harness: BrokerHarness, topic: str) -> int:
    found = harness.broker.parts.topics.get(topic)
    assert found is not None
    return found.topic_sys_flag


class TestUnitMode:
    def test_a_topic_created_in_unit_mode_has_the_unit_flag(self, harness: BrokerHarness) -> None:
        assert harness.send("T", k=True).code == 0
        assert sys_flag_of(harness, "T") == TOPIC_UNIT

    def test_a_retry_topic_created_in_unit_mode_has_the_sub_flag(self, harness: BrokerHarness) -> None:
        assert harness.send("%RETRY%g", c="NoSuch", k=True).code == 0
        assert sys_flag_of(harness, "%RETRY%g") == TOPIC_UNIT_SUB

    def test_a_message_sent_back_in_unit_mode_creates_a_topic_with_the_flag(self, harness: BrokerHarness) -> None:
        harness.send("T")
        ext = {"offset": "0", "group": "g", "delayLevel": "3", "unitMode": "true"}
        assert harness.ask(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=479)).code == 0
        assert sys_flag_of(harness, "%RETRY%g") == TOPIC_UNIT_SUB

    def test_an_existing_topic_keeps_its_flag(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.send("T", k=True)
        assert sys_flag_of(harness, "T") == 0


class TestSystemFlag:
    def test_messages_of_a_multi_tag_topic_have_the_flag(self, harness: BrokerHarness) -> None:
        numbers = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0, "order": False}
        fields = {"topic": "T", "defaultTopic": "TBW102", "topicFilterType": "MULTI_TAG"}
        assert harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, **numbers, **fields).code == 0
        harness.send("T", f=SYS_COMPRESSED)
        batch = harness.send_command("T", inner(b"x"), m=True)
        assert harness.ask(batch).code == 0
        flags = [record.message.sys_flag for record in harness.read_queue("T")]
        assert flags == [SYS_COMPRESSED | SYS_MULTI_TAGS, SYS_MULTI_TAGS]

    def test_a_compressed_body_is_stored_unchanged(self, harness: BrokerHarness) -> None:
        harness.send("T", b"\x78\x9c no such thing", f=0x301)
        (record,) = harness.read_queue("T")
        assert (record.message.body, record.message.sys_flag) == (b"\x78\x9c no such thing", 0x301)


@pytest.mark.parametrize("key", ["", None])
def test_a_send_without_a_unique_key_gets_one(harness: BrokerHarness, key: str | None) -> None:
    answer = harness.send("T", properties={} if key is None else {props.UNIQ_KEY: key})
    (record,) = harness.read_queue("T")
    assert len(answer.ext["transactionId"]) == 32
    assert record.message.properties[props.UNIQ_KEY] == answer.ext["transactionId"]


@pytest.mark.parametrize(("version", "is_dead"), [(120, False), (121, True)])
def test_the_retry_limit_of_an_old_client_is_ignored(harness: BrokerHarness, version: int, is_dead: bool) -> None:
    command = harness.send_command("%RETRY%g", j=4, l=3)
    command.version = version
    assert harness.ask(command).code == 0
    assert (harness.broker.parts.topics.get("%DLQ%g") is not None) == is_dead


def inner(body: bytes) -> bytes:
    """Return a message in the format of a batch."""
    return b"".join(n.to_bytes(4, "big") for n in (22 + len(body), 0, 0, 0, len(body))) + body + b"\0\0"


class TestBatch:
    @pytest.mark.parametrize(
        ("letters", "code"),
        [
            ({"f": SYS_TRANSACTION & 4}, ResponseCode.MESSAGE_ILLEGAL),
            ({"i": "DELAY\x011\x02"}, ResponseCode.MESSAGE_ILLEGAL),
            ({"i": "DELAY\x01x\x02"}, ResponseCode.SYSTEM_ERROR),
            ({"i": "DELAY\x010\x02"}, ResponseCode.SUCCESS),
        ],
    )
    def test_a_delayed_or_transactional_batch_is_rejected(
        self, harness: BrokerHarness, letters: dict[str, object], code: ResponseCode
    ) -> None:
        harness.send("T")
        assert harness.ask(harness.send_command("T", inner(b"x"), m=True, **letters)).code == code
        assert len(harness.bodies("T")) == 1 + (code == ResponseCode.SUCCESS)

    @pytest.mark.parametrize(("has_flag", "bodies"), [(True, [b"x"]), (False, [inner(b"x")])])
    def test_the_flag_makes_a_batch_and_not_the_code(
        self, harness: BrokerHarness, has_flag: bool, bodies: list[bytes]
    ) -> None:
        command = harness.send_command("T", inner(b"x"), m=has_flag)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        assert harness.ask(command).code == 0
        assert harness.bodies("T") == bodies
