"""A record as a consumer sees it."""

from __future__ import annotations

import zlib

import pytest

from wheelmq.client.message import MessageError, read_records, received
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host, Message, Record, decode_record, encode_record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import LogPosition, Millis, QueueOffset

HOST = Host(b"\x7f\0\0\1", 10911)
NOW = Millis(1_800_000_000_123)


def raw_record(body: bytes = b"x", *, sys_flag: int = 0, topic: str = "T", **properties: str) -> bytes:
    message = Message(topic, 3, body, dict(properties), sys_flag=sys_flag, born_ms=Millis(NOW - 5000), born_host=HOST)
    return encode_record(
        message,
        props.encode(properties),
        queue_offset=QueueOffset(7),
        position=LogPosition(4096),
        store_ms=Millis(NOW - 10),
        store_host=HOST,
    )


def record(body: bytes = b"x", *, sys_flag: int = 0, topic: str = "T", **properties: str) -> Record:
    return decode_record(raw_record(body, sys_flag=sys_flag, topic=topic, **properties))


def test_a_received_message_has_the_fields_of_its_record() -> None:
    message = received(record(b"body", KEYS="a  b", TAGS="blue", UNIQ_KEY="U"), "broker-a", NOW)
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("T", 3, 7, b"body")
    assert (message.keys, message.tags, message.unique_key) == (["a", "b"], "blue", "U")
    assert message.message_id == offset_message_id(HOST, LogPosition(4096))
    assert (message.due_ms, message.lateness_ms) == (None, None)


def test_records_are_read_from_one_buffer() -> None:
    raw = raw_record(b"1") + raw_record(b"22", TAGS="t") + raw_record(b"")
    assert [one.message.body for one in read_records(raw)] == [b"1", b"22", b""]
    assert read_records(b"") == []


@pytest.mark.parametrize("sys_flag", [0x1, 0x301])
def test_a_zlib_body_is_inflated(sys_flag: int) -> None:
    body = b"many words " * 1000
    assert received(record(zlib.compress(body), sys_flag=sys_flag), "b", NOW).body == body


@pytest.mark.parametrize(
    ("body", "sys_flag", "told"), [(b"no zlib", 0x1, "inflate"), (b"x", 0x101, "LZ4"), (b"x", 0x201, "Zstandard")]
)
def test_a_body_that_cannot_be_inflated_raises_an_error(body: bytes, sys_flag: int, told: str) -> None:
    with pytest.raises(MessageError, match=told):
        received(record(body, sys_flag=sys_flag), "b", NOW)


def test_a_wrong_checksum_raises_an_error() -> None:
    found = record(b"body")
    found.body_crc ^= 1
    with pytest.raises(MessageError, match="checksum"):
        received(found, "b", NOW)


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"__WMQ_DUE": "1800000000100", "TIMER_DELIVER_MS": "1"}, 1_800_000_000_100),
        ({"TIMER_DELIVER_MS": "1800000000200"}, 1_800_000_000_200),
        ({"TIMER_DELAY_SEC": "4"}, NOW - 1000),
        ({"TIMER_DELAY_MS": "4500"}, NOW - 500),
        ({"TIMER_DELAY_MS": "soon"}, None),
        ({"DELAY": "3"}, None),
    ],
)
def test_the_due_time_comes_from_the_properties(properties: dict[str, str], due_ms: int | None) -> None:
    message = received(record(b"x", sys_flag=0, topic="T", **properties), "b", NOW)
    assert message.due_ms == due_ms
    assert message.lateness_ms == (None if due_ms is None else NOW - due_ms)


def test_a_retried_message_has_the_topic_it_was_sent_to() -> None:
    message = received(record(topic="%RETRY%g", RETRY_TOPIC="T"), "b", NOW)
    assert (message.topic, message.queue_topic) == ("T", "%RETRY%g")
    assert received(record(topic="%DLQ%g", RETRY_TOPIC="T"), "b", NOW).topic == "%DLQ%g"
