"""Rows with only a body: the arrays give the same bytes as the rows one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq.layouts import SinkLayout
from pyspark_rocketmq.plain_rows import PlainRows, plain_rows
from pyspark_rocketmq.rows import RowForm, UniqueKeys
from pyspark_rocketmq.sending import batch_entries
from pyspark_rocketmq.uploads import SinkBatch, Uploader
from tests.unit.connector.test_rows import NOW_MS
from wheelmq.client.outgoing import encode_batch
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import BatchId, UploadedRow, rows_of
from wheelmq.system.clock import SystemClock

BODIES = [b"", b"x", bytes(300), "é".encode(), *(b"%d" % i for i in range(600))]
FORM = RowForm(columns=("body",), topic="T", body_bytes_max=300, delivers_past=False)


def batch(bodies: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    whole = pa.RecordBatch.from_arrays([pa.array([b"first", *bodies], kind or pa.binary())], names=["body"])
    return whole.slice(1)  # the first body of its buffer is not of this batch


def plain(bodies: list[bytes], kind: pa.DataType | None = None) -> PlainRows:
    found = plain_rows(FORM, batch(bodies, kind), UniqueKeys("job", 0))
    assert found is not None
    return found


def test_keys_are_the_same_as_one_by_one() -> None:
    one, other = UniqueKeys("job", 3), UniqueKeys("job", 3)
    one.count = other.count = (1 << 16) - 5
    found = [row.tobytes().decode() for count in (3, 10) for row in one.take(count)]
    assert found == [other.next() for _ in range(13)] and one.count == other.count


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_batch_has_the_same_bytes_as_that_of_a_producer(kind: pa.DataType) -> None:
    rows, keys = plain(BODIES, kind), UniqueKeys("job", 0)
    entries = batch_entries(rows)
    expected = encode_batch([(body, {props.UNIQ_KEY: keys.next()}) for body in BODIES])
    assert entries.raw(0, len(entries)) == expected
    assert b"".join(entries.raw(*chunk) for chunk in entries.chunks(7, 1000)) == expected
    assert rows.key(1) == rows.properties()[1].tobytes()[9:-1].decode()


def test_a_text_becomes_bytes() -> None:
    found = plain_rows(FORM, batch(["é", "x"], pa.string()), UniqueKeys("job", 0))
    assert found is not None and found.bodies.to_pylist() == ["é".encode(), b"x"] and found.sizes.tolist() == [2, 1]


def test_chunks_have_limits() -> None:
    entries = batch_entries(plain([bytes(50)] * 300))
    size = len(entries.raw(0, 1))
    assert list(entries.chunks(256, 1 << 20)) == [(0, 256), (256, 300)]
    assert list(entries.chunks(256, 100 * size)) == [(0, 100), (100, 200), (200, 300)]
    assert list(entries.chunks(256, size - 1)) == [(i, i + 1) for i in range(300)]


@pytest.mark.parametrize("bodies", [[], [b"x", None], [b"x", bytes(301)]])
def test_other_rows_are_handled_one_by_one(bodies: list[bytes | None]) -> None:
    keys = UniqueKeys("job", 0)
    assert plain_rows(FORM, batch(bodies), keys) is None and keys.count == 0


def test_other_columns_and_topics_are_handled_row_by_row() -> None:
    for columns, topic in ((("body", "tags"), "T"), (("body",), "a b"), (("body",), None)):
        form = RowForm(columns=columns, topic=topic, body_bytes_max=300, delivers_past=False)
        assert plain_rows(form, batch([b"x"]), UniqueKeys("job", 0)) is None
    assert plain_rows(FORM, batch([b"x", b""]), UniqueKeys("job", 0), body_bytes_min=1) is None


def test_uploads_have_the_same_rows_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[UploadedRow]] = {}
    monkeypatch.setattr(
        Uploader, "_send", lambda self, stream: found.setdefault(stream.broker, []).extend(rows_of(stream.take()[1]))
    )
    bodies = [body for body in BODIES if body]

    def uploader() -> Uploader:
        layout = SinkLayout(None, {"T": {"a": 2, "b": 3}})  # type: ignore[arg-type]
        work = SinkBatch(BatchId("job", 0), False)
        return Uploader(None, work, (0, 1), layout, SystemClock())  # type: ignore[arg-type]

    one = uploader()
    for row in FORM.rows(batch(bodies), UniqueKeys("job", 0), NOW_MS):
        one.add(row)
    expected_parts = one.finish().parts
    expected, found = found, {}
    other = uploader()
    other.add_plain(plain(bodies))
    assert other.finish().parts.keys() == expected_parts.keys()
    assert found == expected and set(found) == {"a", "b"}
    assert {row.queue_id for row in found["b"]} == {0, 1, 2}
