"""The rows of the sink: schemas, values and unique keys."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options import sink_options
from pyspark_rocketmq.rows import KINDS, Row, RowForm, UniqueKeys
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import Millis

NOW_MS = Millis(1_800_000_000_000)
BASE = {"namesrvAddr": "127.0.0.1:9876", "topic": "T"}
TYPES = {
    "body": pa.binary(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "deliverTime": pa.timestamp("us", tz="UTC"),
    "delayMs": pa.int64(),
    "delayLevel": pa.int32(),
}


def schema(**kinds: str) -> StructType:
    """Return a schema without a session, which the DDL parser would need."""
    fields = [
        {"name": name, "type": JSON_TYPES.get(kind, kind), "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


JSON_TYPES: dict[str, Any] = {
    "bigint": "long",
    "int": "integer",
    "array<string>": {"type": "array", "elementType": "string", "containsNull": True},
    "map<string,string>": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
}


def form(*columns: str, **options: str) -> RowForm:
    chosen = {name: KINDS[name][0] for name in ("body", *columns)}
    return RowForm.of(schema(**chosen), sink_options({**BASE, **options}))


def rows(chosen: RowForm, *values: tuple[Any, ...]) -> list[Row]:
    columns = [
        pa.array(list(column), TYPES.get(name, pa.string()))
        for name, column in zip(chosen.columns, zip(*values, strict=True), strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=list(chosen.columns))
    return list(chosen.rows(batch, UniqueKeys("job", 0), NOW_MS))


def at(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp((NOW_MS + ms) / 1000, datetime.UTC)


class TestSchema:
    def test_all_kinds_are_accepted(self) -> None:
        for name, kinds in KINDS.items():
            for kind in kinds:
                RowForm.of(schema(**{"body": "binary", name: kind}), sink_options(BASE))

    @pytest.mark.parametrize(
        ("kinds", "text"),
        [
            ({"topic": "string"}, "column body is missing"),
            ({"body": "binary", "price": "double"}, "column price has no use in a message: drop it"),
            ({"body": "int"}, "column body is int: cast it to binary or string"),
            ({"body": "binary", "deliverTime": "timestamp_ntz"}, "cast it to timestamp"),
        ],
    )
    def test_a_schema_that_does_not_fit(self, kinds: dict[str, str], text: str) -> None:
        with pytest.raises(OptionError, match=text):
            RowForm.of(schema(**kinds), sink_options(BASE))

    def test_a_topic_is_needed(self) -> None:
        with pytest.raises(OptionError, match="set option topic, or select a column topic"):
            RowForm.of(schema(body="binary"), sink_options({"namesrvAddr": "a:1"}))


class TestRows:
    def test_each_column_becomes_a_part_of_the_message(self) -> None:
        chosen = form("topic", "tags", "keys", "properties", "shardingKey", "msgId")
        (row,) = rows(chosen, (b"x", "U", "tag", "k1 k2", [("a", "b"), ("KEYS", "no"), ("c", None)], "s", "id"))
        assert row.topic == "U" and row.message.body == b"x" and row.message.tags == "tag"
        assert row.message.keys == "k1 k2" and row.message.order_key == "s"
        assert row.message.properties == {"a": "b", props.UNIQ_KEY: "id", props.SHARDING_KEY: "s"}

    def test_nulls_are_left_out(self) -> None:
        chosen = form(
            "topic", "tags", "keys", "properties", "shardingKey", "deliverTime", "delayMs", "delayLevel", "msgId"
        )
        (row,) = rows(chosen, (b"x", *[None] * 9))
        assert row.topic == "T" and not row.is_delayed and row.message.order_key is None
        assert list(row.message.properties or ()) == [props.UNIQ_KEY]

    def test_a_row_is_delayed_by_one_of_three_columns(self) -> None:
        chosen = form("deliverTime", "delayMs", "delayLevel")
        found = rows(
            chosen, (b"", at(5000), None, None), (b"", None, 7, None), (b"", None, None, 3), (b"", None, 0, None)
        )
        delays = [(row.message.deliver_at_ms, row.message.delay_ms, row.message.delay_level) for row in found]
        assert delays == [(NOW_MS + 5000, None, None), (None, 7, None), (None, None, 3), (None, None, None)]
        assert [row.is_delayed for row in found] == [True, True, True, False]

    def test_a_time_is_rounded_up_because_no_message_is_early(self) -> None:
        moment = at(5000) + datetime.timedelta(microseconds=1)
        (row,) = rows(form("deliverTime"), (b"", moment))
        assert row.message.deliver_at_ms == NOW_MS + 5001

    @pytest.mark.parametrize(
        ("columns", "values", "text"),
        [
            ((), (None,), r"column body is null: filter such rows out, or replace null with coalesce"),
            (("topic",), (b"", "a b"), "column topic is 'a b'"),
            (("deliverTime",), (b"", at(-60_000)), r"60 s in the past: .* set option pastDeliverTime to deliver"),
            (("delayMs",), (b"", -5), "column delayMs is -5"),
            (("delayLevel",), (b"", 19), "column delayLevel is 19"),
            (("delayMs", "delayLevel"), (b"", 1, 1), "columns delayMs and delayLevel exclude each other"),
        ],
    )
    def test_a_bad_row(self, columns: tuple[str, ...], values: tuple[Any, ...], text: str) -> None:
        good = (b"x", *[None] * len(columns))
        with pytest.raises(OptionError, match=f"row 1 of the partition: .*{text}"):
            rows(form(*columns), good, values)

    def test_a_null_in_an_array_of_keys(self) -> None:
        keys = pa.array([["k1", "k2"], ["k", None]], pa.list_(pa.string()))
        batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"]), keys], names=["body", "keys"])
        found = form("keys").rows(batch, UniqueKeys("job", 0), NOW_MS)
        assert next(found).message.keys == ["k1", "k2"]
        with pytest.raises(OptionError, match=r"row 1 of the partition: column keys has a null in its array"):
            next(found)

    def test_a_body_that_is_too_large(self) -> None:
        with pytest.raises(OptionError, match=r"5 bytes, and option maxBodyBytes is 4: .*maxMessageSize"):
            rows(form(maxBodyBytes="4"), (b"12345",))

    def test_past_rows_may_be_sent_at_once(self) -> None:
        (row,) = rows(form("deliverTime", pastDeliverTime="deliver"), (b"", at(-60_000)))
        assert not row.is_delayed


class TestUniqueKeys:
    def test_the_same_attempt_gives_the_same_keys(self) -> None:
        first, again = UniqueKeys("job", 1), UniqueKeys("job", 1)
        keys = [first.next() for _ in range(3)]
        assert keys == [again.next() for _ in range(3)]
        others = {UniqueKeys("job", 2).next(), UniqueKeys("other", 1).next()}
        assert len({*keys, *others}) == 5

    def test_a_key_has_the_form_of_apaches(self) -> None:
        keys = UniqueKeys("job", 1)
        keys.count = 0x1234_5678
        found = keys.next()
        assert len(bytes.fromhex(found)) == 16 and found == found.upper()
        assert found[16:] == "1234000000005678"
