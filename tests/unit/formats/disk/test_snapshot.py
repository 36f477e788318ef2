"""The bytes of the snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.formats.disk.done_bits import DONE_STREAM, StreamBits
from wheelmq.formats.disk.index import IndexMark
from wheelmq.formats.disk.origin import TIMER_STREAM, level_stream
from wheelmq.formats.disk.snapshot import (
    SNAPSHOT,
    SNAPSHOT_BLOCK,
    SNAPSHOT_QUEUE,
    SNAPSHOT_TIMER_FILE,
    IndexedTimers,
    Snapshot,
    SnapshotDamaged,
)
from wheelmq.formats.units import LogPosition, Millis, QueueOffset

positions = st.integers(0, (1 << 63) - 1).map(LogPosition)
queues = st.tuples(st.text(st.characters(codec="utf-8"), max_size=20), st.integers(0, (1 << 31) - 1))


@st.composite
def done_bits(draw: st.DrawFn) -> StreamBits:
    bits, first = draw(st.binary(max_size=20)), draw(st.integers(0, 1 << 40))
    stream = draw(st.sampled_from([TIMER_STREAM, level_stream(1), level_stream(18)]))
    return StreamBits(stream, first, first + max(0, 8 * len(bits) - draw(st.integers(0, 7))), bits)


index_marks = st.builds(IndexMark, st.integers(1, 10**17 - 1).map("{:017d}".format), st.integers(0, 1 << 31), positions)


ends = st.integers(1, (1 << 63) - 1)
sums = st.dictionaries(positions, st.integers(0, (1 << 32) - 1), min_size=1, max_size=3)
indexed_timers = st.builds(IndexedTimers, positions.map(QueueOffset), positions, sums)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    return Snapshot(
        position=draw(positions),
        record_position=draw(positions),
        record_crc=draw(st.integers(0, (1 << 32) - 1)),
        store_ms=Millis(draw(positions)),
        damaged=tuple(draw(st.lists(positions, max_size=3))),
        queue_ends=draw(st.dictionaries(queues, ends.map(QueueOffset), max_size=4)),
        done=tuple(draw(st.lists(done_bits(), max_size=3))),
        message_index=draw(st.none() | index_marks),
        waiting=draw(st.dictionaries(queues, ends, max_size=4)),
        timers=draw(st.none() | indexed_timers),
        blocks_gone=draw(st.dictionaries(st.integers(1, (1 << 20) - 1), positions.map(LogPosition), max_size=3)),
    )


@given(snapshots())
@settings(deadline=None)
def test_a_snapshot_decodes_as_it_was_encoded(snapshot: Snapshot) -> None:
    assert Snapshot.decode(snapshot.encode()) == snapshot


@given(snapshots(), st.data())
@settings(deadline=None)
def test_a_damaged_snapshot_is_rejected(snapshot: Snapshot, data: st.DataObject) -> None:
    raw = snapshot.encode()
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    for damaged in (flipped, raw[:at]):
        with pytest.raises(SnapshotDamaged):
            Snapshot.decode(damaged)


def test_each_field_is_at_its_documented_position() -> None:
    ends = {("topic", 3): QueueOffset(0x0102)}
    raw = Snapshot(
        LogPosition(9),
        LogPosition(7),
        5,
        Millis(6),
        (LogPosition(4),),
        ends,
        (StreamBits(TIMER_STREAM, 16, 27, b"\x01\x02"),),
        waiting={("topic", 3): 7},
        timers=IndexedTimers(QueueOffset(1), 104, {52: 9}),
        blocks_gone={11: LogPosition(3)},
    )
    encoded = raw.encode()
    at = SNAPSHOT.size
    assert DONE_STREAM.unpack(encoded, at) == {"stream": TIMER_STREAM, "first_index": 16, "end_index": 27}
    at += DONE_STREAM.size
    assert encoded[at : at + 2] == b"\x01\x02"
    assert encoded[at + 2 : at + 10] == (4).to_bytes(8, "big")
    assert SNAPSHOT_QUEUE.unpack(encoded, at + 10) == {
        "end_queue_offset": 0x0102, "waiting": 7, "queue_id": 3, "topic_bytes": 5,
    }  # fmt: skip
    assert encoded[at + 34 : at + 39] == b"topic"
    assert SNAPSHOT_TIMER_FILE.unpack(encoded, at + 39) == {"start": 52, "crc": 9}
    assert SNAPSHOT_BLOCK.unpack(encoded, at + 51) == {"number": 11, "log_position": 3}
    assert len(encoded) == at + 51 + SNAPSHOT_BLOCK.size
