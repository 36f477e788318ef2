"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.broker.handlers.send import split_batch
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.disk.origin import timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.clock import START_MS
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


def spelled_out(command: Command) -> Command:
    """Return the same send as SEND_MESSAGE, with the full names of its fields."""
    ext = {LONG_NAMES[letter]: value for letter, value in command.ext.items() if letter in LONG_NAMES}
    return Command(code=RequestCode.SEND_MESSAGE, ext=ext, body=command.body)


class TestAnswer:
    def test_the_answer_has_the_id_and_the_queue_offset(self, harness: BrokerHarness) -> None:
        harness.send("T", b"first")
        answer = harness.send("T", b"second", properties={props.UNIQ_KEY: "K"})
        host, position = parse_offset_message_id(answer.ext.pop("msgId"))
        assert host == Host(b"\x7f\0\0\1", 10911)
        record = harness.broker.parts.store.log.record_at(position)
        assert record is not None and record.message.body == b"second"
        assert (answer.code, answer.is_response, answer.remark) == (0, True, None)
        assert answer.ext == {
            "queueId": "0",
            "queueOffset": "1",
            "transactionId": "K",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }

    def test_the_answer_of_a_delayed_message_names_the_parked_record(self, harness: BrokerHarness) -> None:
        """Id and offset are those of the parked record. The queue id is that of the request."""
        answer = harness.send("T", queue_id=3, delay_ms=5000)
        _, position = parse_offset_message_id(answer.ext["msgId"])
        record = harness.broker.parts.store.log.record_at(position)
        assert record is not None and record.message.topic == TIMER_TOPIC
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
        assert answer.ext["recallHandle"]

    @pytest.mark.kernels
    @pytest.mark.parametrize("key", ["\3K", 'a"b', "a\\b"])
    @pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
    def test_a_unique_key_with_escaped_characters_is_returned(
        self, harness: BrokerHarness, key: str, binary: bool
    ) -> None:
        command = harness.send_command("T", delay_ms=5000, properties={"UNIQ_KEY": key})
        assert harness.ask(command, binary=binary).ext["transactionId"] == key

    @pytest.mark.parametrize("level", ["0", "-1"])
    def test_a_level_below_1_keeps_the_recall_handle(self, harness: BrokerHarness, level: str) -> None:
        assert harness.send("T", delay_ms=5000, properties={"UNIQ_KEY": "K", "DELAY": level}).ext["recallHandle"]
        assert "recallHandle" not in harness.send("T", properties={"UNIQ_KEY": "K", "DELAY": "1"}).ext

    @pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
    @pytest.mark.parametrize("spell", [lambda command: command, spelled_out], ids=["letters", "names"])
    def test_each_encoding_of_a_send_is_accepted(self, harness: BrokerHarness, spell: Any, binary: bool) -> None:
        command = harness.send_command("T", b"x", queue_id=2, properties={"TAGS": "a"}, h=5, j=1)
        assert harness.ask(spell(command), binary=binary).code == 0
        (record,) = harness.read_queue("T", 2)
        assert (record.message.flag, record.message.reconsume_times) == (5, 1)

    def test_a_oneway_send_is_stored_without_an_answer(self, harness: BrokerHarness) -> None:
        asked = harness.submit(harness.send_command("T", b"quiet"), oneway=True)
        harness.advance(100)
        assert asked.answer is None and harness.bodies("T") == [b"quiet"]

    def test_a_send_of_a_lost_client_is_stored(self, harness: BrokerHarness) -> None:
        connection = harness.connect()
        harness.submit(harness.send_command("T", b"stored"), connection)
        harness.lose(connection)
        harness.tick()
        assert connection.answers == {} and harness.bodies("T") == [b"stored"]


class TestStoredRecord:
    def test_the_record_has_the_fields_of_the_send(self, harness: BrokerHarness) -> None:
        sent = {"KEYS": "k", props.UNIQ_KEY: "K", props.WAIT: "true", props.POP_CK: "x"}
        harness.send("T", b"body", queue_id=1, properties=sent, g=77, h=-3, f=0x301)
        (record,) = harness.read_queue("T", 1)
        message = record.message
        assert message.properties == {
            "KEYS": "k",
            "UNIQ_KEY": "K",
            "WAIT": "true",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert (message.body, message.flag, message.sys_flag, message.born_ms) == (b"body", -3, 0x301, 77)
        assert (message.born_host, record.store_host) == (harness.client.peer, Host(b"\x7f\0\0\1", 10911))
        assert (record.store_ms, record.queue_offset, record.body_is_intact) == (START_MS, 0, True)

    def test_a_send_without_a_unique_key_gets_one(self, harness: BrokerHarness) -> None:
        keys = {harness.send("T").ext["transactionId"] for _ in range(50)}
        assert len(keys) == 50
        assert {record.message.properties[props.UNIQ_KEY] for record in harness.read_queue("T")} == keys

    def test_the_record_has_the_ipv6_address_of_the_client(self, harness: BrokerHarness) -> None:
        connection = harness.connect(bytes(range(16)))
        harness.send("T", connection=connection)
        (record,) = harness.read_queue("T")
        assert record.message.born_host == connection.peer and record.message.sys_flag == 0x10

    @pytest.mark.parametrize("name", [props.WMQ_ORIGIN, props.WMQ_DUE])
    @pytest.mark.parametrize("delay_ms", [None, 1000])
    def test_forged_properties_of_the_broker_are_removed(
        self, harness: BrokerHarness, name: str, delay_ms: int | None
    ) -> None:
        harness.send("T", b"parked", delay_ms=60_000)
        forged = {"a": "b", name: "3000000000000000" if name == props.WMQ_ORIGIN else "1800000000251"}
        harness.send("T", b"forged", delay_ms=delay_ms, properties=forged)
        harness.advance(1000)
        (record,) = harness.read_queue("T")
        assert record.message.body == b"forged"
        assert record.message.properties.get(name) != forged[name]
        assert timer_origin(0) not in harness.broker.parts.timer.pending.done
        harness.restart(clean=False)
        assert timer_origin(0) not in harness.broker.parts.timer.pending.done

    @pytest.mark.parametrize("name", [props.TIMER_OUT_MS, props.REAL_TOPIC, props.REAL_QID])
    def test_forged_redirections_are_ignored(self, harness: BrokerHarness, name: str) -> None:
        harness.send("T", properties={name: "7", props.TIMER_DELAY_MS: "1000"})
        harness.advance(1000)
        assert harness.bodies("T") == [b"body"]

    def test_a_message_with_a_past_delivery_time_is_stored_at_once(self, harness: BrokerHarness) -> None:
        harness.send("T", deliver_ms=5)
        (record,) = harness.read_queue("T")
        assert record.message.properties[props.TIMER_DELIVER_MS] == "5"

    def test_an_empty_delay_is_ignored(self, harness: BrokerHarness) -> None:
        harness.ask(harness.send_command("T", b"x", i=f"{props.TIMER_DELAY_SEC}\x01\x02"))
        assert harness.bodies("T") == [b"x"]


class TestQueues:
    def test_the_broker_chooses_a_queue_if_the_client_does_not(self, harness: BrokerHarness) -> None:
        picked = {harness.send("T", queue_id=-1).ext["queueId"] for _ in range(60)}
        assert picked == {"0", "1", "2", "3"}

    @pytest.mark.parametrize("queue_id", [4, 5, (1 << 31) - 1])
    def test_a_queue_id_beyond_the_topic_is_rejected(self, harness: BrokerHarness, queue_id: int) -> None:
        harness.send("T")
        assert harness.send("T", queue_id=queue_id).code == ResponseCode.INVALID_PARAMETER

    def test_a_new_topic_inherits_from_the_default_topic(self, harness: BrokerHarness) -> None:
        harness.broker.parts.topics.note_registration()
        assert harness.send("NEW", d=3).code == 0
        config = harness.broker.parts.topics.get("NEW")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
        assert harness.broker.parts.topics.changed  # the broker registers the topic
        assert harness.send("WIDE", d=99).code == 0
        wide = harness.broker.parts.topics.get("WIDE")
        assert wide is not None and wide.write_queue_nums == 8

    def test_a_new_topic_needs_a_default_topic_with_the_permission(self, harness: BrokerHarness) -> None:
        assert harness.send("NEW", c="nowhere").code == ResponseCode.TOPIC_NOT_EXIST
        assert harness.send("T").code == 0
        assert harness.send("NEW", c="T").code == ResponseCode.TOPIC_NOT_EXIST  # T allows no inheritance
        harness.restart(auto_create_topic=False)
        assert harness.send("NEW").code == ResponseCode.TOPIC_NOT_EXIST
        assert harness.send("T").code == 0

    def test_a_retry_topic_is_always_created(self, harness: BrokerHarness) -> None:
        harness.restart(auto_create_topic=False)
        assert harness.send("%RETRY%g").code == 0
        config = harness.broker.parts.topics.get("%RETRY%g")
        assert config is not None and (config.write_queue_nums, config.perm) == (1, 6)


class TestRejections:
    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            ("", 29),
            ("a b", 29),
            ("x" * 128, 29),
            ("SCHEDULE_TOPIC_XXXX", 16),
            ("RMQ_SYS_TRANS_HALF_TOPIC", 16),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 16),
            ("TRANS_CHECK_MAX_TIME_TOPIC", 16),
            ("SELF_TEST_TOPIC", 16),
            ("OFFSET_MOVED_EVENT", 16),
        ],
    )
    def test_invalid_and_reserved_topics_are_rejected(self, harness: BrokerHarness, topic: str, code: int) -> None:
        answer = harness.send(topic)
        assert answer.code == code
        assert answer.ext["MSG_REGION"] == "DefaultRegion"  # the Java client wants these in every answer
        assert harness.broker.parts.store.log.end == 0

    def test_a_topic_without_write_permission_is_rejected(self, harness: BrokerHarness) -> None:
        harness.ask_code(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", readQueueNums=1, writeQueueNums=1, perm=4)
        assert harness.send("T").code == ResponseCode.NO_PERMISSION

    @pytest.mark.parametrize(("size", "code"), [(4 << 20, 0), ((4 << 20) + 1, 13), (0, 1)])
    def test_empty_and_oversized_bodies_are_rejected(self, harness: BrokerHarness, size: int, code: int) -> None:
        harness.restart(log_file_bytes=8 << 20)
        assert harness.send("T", bytes(size)).code == code

    def test_properties_beyond_the_limit_are_rejected(self, harness: BrokerHarness) -> None:
        harness.send("T", properties={"k": "x", props.UNIQ_KEY: "K"})
        (record,) = harness.read_queue("T")
        used = len(props.encode(record.message.properties)) - 1
        assert harness.send("T", properties={"k": "x" * (32_767 - used), props.UNIQ_KEY: "K"}).code == 0
        assert harness.send("T", properties={"k": "x" * (32_768 - used), props.UNIQ_KEY: "K"}).code == 13
        assert len(harness.read_queue("T")) == 2

    @pytest.mark.parametrize(
        ("properties", "code"),
        [
            ({props.TIMER_DELAY_SEC: "abc"}, 13),
            ({props.TIMER_DELAY_SEC: "1.5"}, 13),
            ({props.TIMER_DELAY_SEC: "259201"}, 13),
            ({props.TIMER_DELAY_SEC: "259200"}, 0),
            ({props.DELAY: "x"}, 1),
            ({props.TRAN_MSG: "true"}, 0),
            ({props.TRAN_MSG: "false"}, 0),
            ({props.INNER_NUM: "2"}, 13),
            ({props.TIMER_DEL_UNIQKEY: "T+K", props.TIMER_DELIVER_MS: "5"}, 13),
        ],
    )
    def test_invalid_properties_are_rejected(
        self, harness: BrokerHarness, properties: dict[str, str], code: int
    ) -> None:
        assert harness.send("T", properties=properties).code == code

    def test_timers_are_rejected_when_the_wheel_is_off(self, harness: BrokerHarness) -> None:
        harness.restart(timer_wheel_enable=False)
        assert harness.send("T", delay_ms=1000).code == ResponseCode.SYSTEM_ERROR
        assert harness.send("T").code == 0

    @pytest.mark.parametrize("letter", "bcdefgh")
    def test_a_send_without_a_required_field_is_rejected(self, harness: BrokerHarness, letter: str) -> None:
        assert harness.send("T", **{letter: None}).code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize("letter", "fghj")
    @pytest.mark.parametrize("value", [1 << 31, 1 << 63, -(1 << 63) - 1])
    def test_a_number_that_no_record_can_hold_is_rejected(
        self, harness: BrokerHarness, letter: str, value: int
    ) -> None:
        harness.send("T", b"before")
        answer = harness.send("T", b"hostile", delay_ms=500, **{letter: value})
        plain = harness.send("T", b"hostile", **{letter: value})
        if letter == "g" and value == 1 << 31:
            assert (answer.code, plain.code) == (0, 0)
            return
        assert (answer.code, plain.code) == (1, 1)
        harness.send("T", b"parked", delay_ms=500)
        harness.send("T", b"after")
        harness.advance(500)
        assert harness.bodies("T") == [b"before", b"after", b"parked"]


class TestTimerTopic:
    """Sends that name rmq_sys_wheel_timer itself must not affect other messages."""

    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {props.REAL_TOPIC: "SELF_TEST_TOPIC", props.REAL_QID: "0"},
            {props.REAL_TOPIC: "T", props.REAL_QID: "0", props.TIMER_OUT_MS: "0", props.TIMER_DELIVER_MS: str(1 << 60)},
        ],
    )
    def test_a_send_to_the_timer_topic_is_rejected(self, harness: BrokerHarness, properties: dict[str, str]) -> None:
        assert harness.send(TIMER_TOPIC, properties=properties).code == ResponseCode.NO_PERMISSION

    def test_a_cancel_in_the_timer_topic_has_no_effect_after_a_start(self, harness: BrokerHarness) -> None:
        harness.send("T", delay_ms=5000, properties={props.UNIQ_KEY: "K"})
        harness.send(TIMER_TOPIC, properties={props.TIMER_DEL_UNIQKEY: "T+K"})
        harness.restart()
        harness.advance(5000)
        assert harness.bodies("T") == [b"body"]


class TestRetryTopics:
    def test_a_message_retried_too_often_becomes_a_dead_letter(self, harness: BrokerHarness) -> None:
        assert harness.send("%RETRY%g", b"again", j=16, l=16).code == 0
        assert harness.send("%RETRY%g", b"spent", j=17, l=16).code == 0
        assert harness.bodies("%RETRY%g") == [b"again"]
        assert harness.bodies("%DLQ%g") == [b"spent"]

    def test_a_dead_letter_is_not_delayed(self, harness: BrokerHarness) -> None:
        harness.send("%RETRY%g", b"spent", j=17, l=16, properties={props.DELAY: "3"})
        assert harness.bodies("%DLQ%g") == [b"spent"]

    def test_the_limit_of_the_group_applies_without_one_in_the_send(self, harness: BrokerHarness) -> None:
        harness.send("%RETRY%g", b"again", j=16, l=None)
        harness.send("%RETRY%g", b"spent", j=17, l=None)
        assert (harness.bodies("%RETRY%g"), harness.bodies("%DLQ%g")) == ([b"again"], [b"spent"])

    def test_a_retry_of_an_unknown_group_needs_auto_creation(self, harness: BrokerHarness) -> None:
        harness.restart(auto_create_group=False)
        assert harness.send("%RETRY%g").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestFullDisk:
    def test_a_full_disk_rejects_sends_until_it_has_room(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        harness.send("T", bytes(600_000))
        disk.is_full = lambda path: "commitlog" in str(path)
        answer = harness.send("T", bytes(600_000))
        assert (answer.code, "disk is full" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert harness.send("T", b"small").code == ResponseCode.SERVICE_NOT_AVAILABLE  # for a moment
        disk.is_full = lambda path: False
        harness.advance(200)
        assert harness.send("T", bytes(600_000)).code == 0
        assert len(harness.bodies("T")) == 2

    def test_pulls_are_served_on_a_full_disk(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        harness.send("T", bytes(600_000))
        harness.pull("T", 0, 1)  # a new group would need a write
        disk.is_full = lambda path: True
        harness.send("T", bytes(600_000))
        assert len(harness.pull("T").records) == 1


def inner(body: bytes, properties: bytes = b"", flag: int = 0, /, **lies: int) -> bytes:
    """Return a message of a batch. `lies` replace its true lengths."""
    body_size, properties_size = lies.get("body", len(body)), lies.get("properties", len(properties))
    size = lies.get("size", 22 + len(body) + len(properties))
    return struct.pack(">iiiii", size, 0, 0, flag, body_size) + body + struct.pack(">h", properties_size) + properties


class TestBatch:
    def send(
        self, harness: BrokerHarness, body: bytes, code: int = RequestCode.SEND_BATCH_MESSAGE, **letters: Any
    ) -> Command:
        command = harness.send_command(letters.pop("topic", "T"), body, **{"m": True, **letters})
        command.code = code
        return harness.ask(command)

    @pytest.mark.parametrize("fields", [{}, {"m": False}])
    def test_a_batch_code_without_the_flag_stores_one_message(
        self, harness: BrokerHarness, fields: dict[str, bool]
    ) -> None:
        body = inner(b"one") + inner(b"two")
        command = harness.send_command("T", body, **fields)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        assert harness.ask(command).code == 0
        assert [record.message.body for record in harness.read_queue("T", 0)] == [body]

    def test_each_message_of_a_batch_is_a_record(self, harness: BrokerHarness) -> None:
        body = inner(b"one", b"a\x01x\x02", 5) + inner(b"two", b"UNIQ_KEY\x01K2\x02", -1) + inner(b"three")
        answer = self.send(harness, body, queue_id=2, properties={props.UNIQ_KEY: "K"})
        assert answer.code == 0
        positions = [parse_offset_message_id(one)[1] for one in answer.ext["msgId"].split(",")]
        records = harness.read_queue("T", 2)
        assert [record.position for record in records] == positions
        assert [record.message.body for record in records] == [b"one", b"two", b"three"]
        assert [record.message.flag for record in records] == [5, -1, 0]
        assert [record.queue_offset for record in records] == [0, 1, 2]
        assert records[0].message.properties["a"] == "x"
        assert {record.message.properties[props.UNIQ_KEY] for record in records} == {
            "K"
        }  # the unique key of the batch wins
        assert (answer.ext["queueOffset"], answer.ext["transactionId"]) == ("0", "K")

    def test_the_flag_alone_makes_a_batch(self, harness: BrokerHarness) -> None:
        assert self.send(harness, inner(b"one"), RequestCode.SEND_MESSAGE_V2).code == 0
        assert harness.bodies("T") == [b"one"]

    def test_a_batch_is_never_delayed(self, harness: BrokerHarness) -> None:
        body = inner(b"one", b"DELAY\x013\x02") + inner(b"two", b"TIMER_DELAY_MS\x015000\x02")
        assert self.send(harness, body, properties={props.TIMER_DELAY_SEC: "5"}).code == 0
        assert harness.bodies("T") == [b"one", b"two"]

    def test_a_batch_for_a_retry_topic_is_rejected(self, harness: BrokerHarness) -> None:
        assert self.send(harness, inner(b"one"), topic="%RETRY%g").code == ResponseCode.MESSAGE_ILLEGAL

    @pytest.mark.parametrize(
        "body",
        [
            b"x",
            inner(b"one")[:-1],
            inner(b"one") + b"\0" * 5,
            inner(b"one", body=-1),
            inner(b"one", body=4),
            inner(b"one", body=1 << 30),
            inner(b"one", body=(1 << 31) - 1),
            inner(b"one", b"a\x01b\x02", properties=5),
            inner(b"one", properties=-1),
            inner(b"one", properties=32_767),
            inner(b"fine") + inner(b"one", body=-(1 << 31)),
        ],
    )
    def test_a_batch_with_wrong_sizes_is_rejected(self, harness: BrokerHarness, body: bytes) -> None:
        assert self.send(harness, body).code == ResponseCode.SYSTEM_ERROR
        assert harness.bodies("T") == []  # not even the complete messages before the wrong one
        assert harness.send("T", b"after").code == 0

    def test_a_batch_with_properties_beyond_the_limit_is_rejected(self, harness: BrokerHarness) -> None:
        block = b"k\x01" + b"x" * 32_000 + b"\x02"
        body = inner(b"fine") + inner(b"one", block)
        assert self.send(harness, body, properties={"l": "y" * 1000}).code == ResponseCode.MESSAGE_ILLEGAL
        assert harness.bodies("T") == []

    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=60), st.integers(0, 3))
    def test_any_body_is_split_or_rejected(self, noise: bytes, whole: int) -> None:
        try:
            parts = split_batch(inner(b"x", b"a\x01b\x02") * whole + noise)
        except ValueError:
            return
        assert [body for _, body, _ in parts[:whole]] == [b"x"] * whole

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.binary(max_size=20), st.integers(-(1 << 31), (1 << 31) - 1)), max_size=5))
    def test_a_packed_batch_is_split_into_its_messages(self, messages: list[tuple[bytes, int]]) -> None:
        raw = b"".join(inner(body, b"a\x01b\x02", flag) for body, flag in messages)
        assert split_batch(raw) == [(flag, body, {"a": "b"}) for body, flag in messages]


def test_extension_fields_may_be_numbers_and_booleans(harness: BrokerHarness) -> None:
    """The client ali-ons sends numbers and booleans in place of texts."""
    import json

    command = harness.send_command("T", b"x")
    ext: dict[str, Any] = dict(command.ext)
    for letter in "defgh":
        ext[letter] = int(ext[letter])
    del ext["m"], ext["n"]
    ext["k"] = False
    header = json.dumps(
        {"code": 310, "opaque": harness.client.next_opaque(), "extFields": ext, "version": 121}
    ).encode()
    harness.feed(struct.pack(">ii", 4 + len(header) + 1, len(header)) + header + b"x")
    harness.tick()
    (answer,) = harness.client.answers.values()
    assert answer.code == 0
    assert headers.texts(**answer.ext)["queueOffset"] == "0"
