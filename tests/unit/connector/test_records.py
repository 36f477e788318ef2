"""Records become the same columns as the plain decoder finds."""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_rocketmq.columns import COLUMNS
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.properties import PropertyColumns
from pyspark_rocketmq.ranges import OffsetRange
from pyspark_rocketmq.reading import to_batch
from pyspark_rocketmq.records import Records
from wheelmq.client.message import read_records, received
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host, Message, RecordError, encode_record
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.formats.wire.bodies import Subscription

QUEUE = Queue("T", "broker-a", 3)
LOCAL = Host(b"\x7f\0\0\1", 10911)
HOSTS = st.sampled_from([LOCAL, Host(bytes(15) + b"\1", 10911)])
NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "a", "größe"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8) | st.sampled_from(
    ["17", "-1"]
)
BLOCKS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
ODD_BLOCKS = st.text(st.sampled_from("ab\x01\x02ü"), max_size=12)


def record(
    body: bytes,
    block: str,
    i: int,
    *,
    born: Host = LOCAL,
    store: Host = LOCAL,
    **more: Any,
) -> bytes:
    message = Message(topic="T", queue_id=3, body=body, properties={}, born_ms=Millis(1000 + i), born_host=born, **more)
    return encode_record(
        message,
        block.encode(),
        queue_offset=QueueOffset(i),
        position=LogPosition(1000 * i),
        store_ms=Millis(2000 + i),
        store_host=store,
    )


def rows(
    raw: bytes, *, tags: str = "*", columns: tuple[str, ...] = tuple(COLUMNS), end: int = 1 << 40
) -> list[dict[str, Any]]:
    batch = to_batch(Records(raw), columns, OffsetRange(QUEUE, 0, end), Subscription.of_tags("T", tags))
    batch.validate(full=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@given(st.lists(st.tuples(st.binary(max_size=20), BLOCKS | ODD_BLOCKS, HOSTS, HOSTS), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_columns_agree_with_the_plain_decoder(parts: list[tuple[bytes, str, Host, Host]]) -> None:
    raw = b"".join(record(body, block, i, born=born, store=store) for i, (body, block, born, store) in enumerate(parts))
    for row, plain in zip(rows(raw), read_records(raw), strict=True):
        expected = received(plain, "broker-a", Millis(0))
        assert dict(row["properties"]) == expected.properties
        assert row["body"] == expected.body
        assert (row["topic"], row["broker"], row["queueId"]) == QUEUE
        assert row["queueOffset"] == expected.queue_offset
        assert row["tags"] == expected.tags
        assert row["keys"] == expected.properties.get(props.KEYS)
        assert row["msgId"] == (expected.unique_key or expected.message_id)
        times = [row[name] for name in ("bornTimestamp", "storeTimestamp", "deliverTime")]
        times_ms = [None if time is None else round(time.timestamp() * 1000) for time in times]
        assert times_ms == [expected.born_ms, expected.stored_ms, expected.due_ms]


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (zlib.compress(b"x" * 100), 0x1),
        (zlib.compress(b"x" * 100), 0x301),
        (pa.compress(b"x" * 100, "zstd", asbytes=True), 0x201),
    ],
)
def test_compressed_bodies_are_expanded(body: bytes, sys_flag: int) -> None:
    raw = record(b"first", "", 0) + record(body, "", 1, sys_flag=sys_flag) + record(b"last", "", 2)
    assert [row["body"] for row in rows(raw, columns=("body",))] == [b"first", b"x" * 100, b"last"]


def test_a_damaged_compressed_body_is_an_error() -> None:
    with pytest.raises(RecordError, match="does not expand"):
        rows(record(b"no zlib", "", 0, sys_flag=0x1))


def test_rows_outside_the_range_or_with_another_tag_are_left_out() -> None:
    raw = b"".join(record(b"%d" % i, f"TAGS\x01{tag}\x02", i) for i, tag in enumerate("abca"))
    assert [row["body"] for row in rows(raw, tags="a || c", columns=("body",))] == [b"0", b"2", b"3"]
    assert [row["body"] for row in rows(raw, columns=("body",), end=2)] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("TIMER_DELAY_SEC", (1 << 63) - 1, None),
        ("TIMER_DELAY_SEC", (1 << 63) // 1000, None),
        ("TIMER_DELAY_MS", (1 << 63) - 1, None),
        ("TIMER_DELAY_MS", -(1 << 63), None),
        ("TIMER_DELIVER_MS", (1 << 63) - 1, None),
        ("TIMER_DELIVER_MS", -62_135_596_800_001, None),
        ("TIMER_DELIVER_MS", 253_402_300_800_000, None),
        ("TIMER_DELIVER_MS", 253_402_300_799_999, 253_402_300_799_999),
        ("TIMER_DELAY_SEC", 5, 1000 + 5000),
    ],
)
def test_a_due_time_beyond_the_range_of_timestamps_is_null(name: str, value: int, due_ms: int | None) -> None:
    found = Records(record(b"x", f"{name}\x01{value}\x02", 0))
    assert found.due_times_ms(found.properties()).to_pylist() == [due_ms]
    assert (rows(record(b"x", f"{name}\x01{value}\x02", 0))[0]["deliverTime"] is None) is (due_ms is None)


@pytest.mark.parametrize("cut", [1, 40, 90])
def test_bytes_that_are_no_records_are_an_error(cut: int) -> None:
    raw = record(b"abc", "a\x01b\x02", 0)
    with pytest.raises(RecordError):
        Records(raw[:-cut])
    with pytest.raises(RecordError):
        Records(raw[:4] + b"\0\0\0\0" + raw[8:])


def test_no_blocks_have_no_properties() -> None:
    empty = PropertyColumns(pa.array([], pa.binary()))
    assert empty.maps().to_pylist() == []
    assert PropertyColumns(pa.array([b"", b""])).maps().to_pylist() == [[], []]
