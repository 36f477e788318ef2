"""The record of the commit log."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    Host,
    Message,
    Record,
    RecordError,
    decode_record,
    encode_record,
    record_bytes,
    stored_properties,
)
from wheelmq.formats.units import LogPosition, Millis, QueueOffset

V4 = Host(b"\x7f\0\0\1", 10911)
V6 = Host(bytes(range(16)), 10911)


def encode(message: Message, store_host: Host = V4, *, position: int = 4096, queue_offset: int = 7) -> bytes:
    return encode_record(
        message,
        props.encode(message.properties),
        queue_offset=QueueOffset(queue_offset),
        position=LogPosition(position),
        store_ms=Millis(1_800_000_000_250),
        store_host=store_host,
    )


def a_message(topic: str = "T", born_host: Host = V4, body: bytes = b"body") -> Message:
    return Message(
        topic=topic,
        queue_id=3,
        body=body,
        properties={"KEYS": "k", "TAGS": "TagA"},
        flag=-2,
        sys_flag=0x301,
        born_ms=Millis(1_800_000_000_000),
        born_host=born_host,
        reconsume_times=5,
        prepared_position=LogPosition(99),
    )


SHAPES = {
    "v1": (a_message(), V4),
    "v1 at its longest topic": (a_message("x" * 127), V4),
    "v2": (a_message("%RETRY%" + "x" * 121), V4),
    "born over IPv6": (a_message(born_host=V6), V4),
    "stored over IPv6": (a_message(), V6),
    "both over IPv6": (a_message(born_host=V6), V6),
    "no body": (a_message(body=b""), V4),
    "no properties": (Message("T", 0, b"x", {}), V4),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> tuple[Message, Host]:
    return SHAPES[request.param]


def test_a_record_has_the_bytes_of_apache() -> None:
    raw = encode(a_message())
    properties = b"KEYS\x01k\x02TAGS\x01TagA\x02"
    assert raw == b"".join(
        (
            struct.pack(">iIiii", len(raw), 0xDAA320A7, zlib.crc32(b"body") & 0x7FFFFFFF, 3, -2),
            struct.pack(">qqiq", 7, 4096, 0x301, 1_800_000_000_000),
            b"\x7f\0\0\1" + struct.pack(">i", 10911),
            struct.pack(">q", 1_800_000_000_250),
            b"\x7f\0\0\1" + struct.pack(">i", 10911),
            struct.pack(">iq", 5, 99),
            struct.pack(">i", 4) + b"body",
            b"\x01T",
            struct.pack(">h", len(properties)) + properties,
        )
    )


def test_a_record_decodes_to_its_message(shape: tuple[Message, Host]) -> None:
    message, store_host = shape
    raw = encode(message, store_host)
    record = decode_record(b"\xff" * 11 + raw + b"\xff" * 5, 11)
    v6 = {16: SYS_BORN_HOST_V6}.get(len(message.born_host.address), 0) | {16: SYS_STORE_HOST_V6}.get(
        len(store_host.address), 0
    )
    assert record == Record(
        message=Message(
            **{**{f: getattr(message, f) for f in message.__struct_fields__}, "sys_flag": message.sys_flag | v6}
        ),
        size=len(raw),
        queue_offset=QueueOffset(7),
        position=LogPosition(4096),
        store_ms=Millis(1_800_000_000_250),
        store_host=store_host,
        body_crc=zlib.crc32(message.body) & 0x7FFFFFFF,
    )
    assert record.body_is_intact
    hosts_bytes = len(message.born_host.address) + len(store_host.address)
    properties = props.encode(message.properties)
    assert len(raw) == record_bytes(len(message.topic), len(message.body), len(properties), hosts_bytes=hosts_bytes)


def test_the_address_flags_follow_the_addresses() -> None:
    message = a_message()
    message.sys_flag = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6 | 1
    assert decode_record(encode(message)).message.sys_flag == 1


@pytest.mark.parametrize(("topic_bytes", "magic"), [(1, MAGIC_V1), (127, MAGIC_V1), (128, MAGIC_V2), (255, MAGIC_V2)])
def test_the_version_follows_the_topic_length(topic_bytes: int, magic: int) -> None:
    raw = encode(a_message("x" * topic_bytes))
    assert struct.unpack_from(">I", raw, 4) == (magic,)
    assert decode_record(raw).message.topic == "x" * topic_bytes


def test_a_record_cut_at_any_byte_is_rejected(shape: tuple[Message, Host]) -> None:
    raw = encode(*shape)
    for cut in range(len(raw)):
        for read in (decode_record, stored_properties):
            with pytest.raises(RecordError):
                read(raw[:cut])


def test_stored_properties_are_those_of_the_record(shape: tuple[Message, Host]) -> None:
    message, store_host = shape
    stored = stored_properties(b"\xff" * 11 + encode(message, store_host) + b"\xff" * 5, 11)
    assert [stored.get(name) for name in ("KEYS", "TAGS", "x")] == [
        message.properties.get(name) for name in ("KEYS", "TAGS", "x")
    ]


@pytest.mark.parametrize("size", [0, 1, 90, -1, 1 << 30, (1 << 31) - 1])
def test_a_wrong_size_is_rejected(size: int) -> None:
    raw = bytearray(encode(a_message()) + bytes(100))
    struct.pack_into(">i", raw, 0, size)
    with pytest.raises(RecordError):
        decode_record(raw)


@pytest.mark.parametrize("change", [-1, 1, -4])
def test_a_size_near_the_right_one_is_rejected(change: int) -> None:
    raw = bytearray(encode(a_message()) + bytes(100))
    size = struct.unpack_from(">i", raw)[0]
    struct.pack_into(">i", raw, 0, size + change)
    with pytest.raises(RecordError):
        decode_record(raw)


@pytest.mark.parametrize("magic", [0, 0xCBD43194, 0xDAA320A8, 0xFFFFFFFF])
def test_another_magic_is_rejected(magic: int) -> None:
    raw = bytearray(encode(a_message()))
    struct.pack_into(">I", raw, 4, magic)
    with pytest.raises(RecordError, match="magic"):
        decode_record(raw)


@pytest.mark.parametrize("body_bytes", [-1, -(1 << 31), 5, 1 << 20, (1 << 31) - 1])
def test_a_wrong_body_length_is_rejected(body_bytes: int) -> None:
    raw = bytearray(encode(a_message()))
    struct.pack_into(">i", raw, 84, body_bytes)
    with pytest.raises(RecordError):
        decode_record(raw)
    with pytest.raises(RecordError):
        stored_properties(raw)


def test_a_flipped_bit_in_the_body_is_detected() -> None:
    raw = bytearray(encode(a_message()))
    raw[88] ^= 0x10
    assert not decode_record(raw).body_is_intact


def test_zeros_are_not_a_record() -> None:
    with pytest.raises(RecordError):
        decode_record(bytes(4096))


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)
hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=100, deadline=None)
@given(
    message=st.builds(
        Message,
        topic=texts,
        queue_id=int32,
        body=st.binary(max_size=50),
        properties=st.dictionaries(texts, texts, max_size=4),
        flag=int32,
        sys_flag=st.integers(0, 15),
        born_ms=int64,
        born_host=hosts,
        reconsume_times=int32,
        prepared_position=int64,
    ),
    store_host=hosts,
    position=st.integers(0, (1 << 63) - 1),
    queue_offset=st.integers(0, (1 << 63) - 1),
)
def test_any_record_decodes_as_it_was_encoded(
    message: Message, store_host: Host, position: int, queue_offset: int
) -> None:
    raw = encode(message, store_host, position=position, queue_offset=queue_offset)
    record = decode_record(raw)
    record.message.sys_flag &= ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
    assert record.message == message
    assert (record.position, record.queue_offset, record.size) == (position, queue_offset, len(raw))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_bytes_are_decoded_or_rejected(data: st.DataObject) -> None:
    raw = bytearray(encode(a_message()))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for read in (decode_record, stored_properties):
        with contextlib.suppress(RecordError):
            read(raw)
