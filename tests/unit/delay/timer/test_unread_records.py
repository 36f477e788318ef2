"""A start reads no record of an indexed message that is due later, unless a check fails."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.delay.timer import unread_records
from wheelmq.delay.timer.mark import MarkFile
from wheelmq.delay.timer.recovery.records import PendingRecords
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.snapshot import SHORT_SUMS_MAGIC, Snapshot
from wheelmq.formats.disk.timer import TIMER_UNIT
from wheelmq.store.snapshot import load_snapshot
from wheelmq.testing import invariants
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

COUNT = 30
FIRST_MS = 13_000
DELAYS_MS = [FIRST_MS + 151 * i for i in range(COUNT)]
"""Due later than the lead of 5 s, counted after the 4 s of indexing, and within the roll window."""


@dataclasses.dataclass
class Reads:
    """The number of records of waiting messages that starts have read."""

    count: int = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, read = Reads(), PendingRecords.read

    def counted(self: PendingRecords, units: object) -> object:
        found.count += len(units)  # type: ignore[arg-type]
        return read(self, units)  # type: ignore[arg-type]

    monkeypatch.setattr(PendingRecords, "read", counted)
    return found


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", snapshot_ms=500, checkpoint_ms=100) as harness:
        for delay_ms in DELAYS_MS:
            topic, unique = f"T{delay_ms % 2}", {props.UNIQ_KEY: str(delay_ms)}
            assert harness.send(topic, b"%d" % delay_ms, delay_ms=delay_ms, properties=unique).code == 0
        harness.advance(4000, PipelineModel(harness).work, 500)
        assert harness.broker.parts.timer.indexed_to == COUNT
        assert snapshot_of(harness).timers.queue_offset == COUNT  # type: ignore[union-attr]
        yield harness


def check(harness: BrokerHarness, cancelled: int = 0) -> None:
    """Check that all messages except the first `cancelled` are pending and leave in time."""
    invariants.check(harness.broker)
    assert harness.broker.parts.timer.pending.counts.by_queue.sum() == COUNT - cancelled
    pending = harness.broker.parts.timer_upkeep.metrics.table().timing_count
    for topic in ("T0", "T1"):
        expected = sum(1 for delay_ms in DELAYS_MS[cancelled:] if f"T{delay_ms % 2}" == topic)
        assert (pending[topic].count if topic in pending else 0) == expected
    harness.advance(FIRST_MS + 6000, PipelineModel(harness).work, 500)
    out = [record for topic in ("T0", "T1") for record in harness.read_queue(topic)]
    assert sorted(int(record.message.body) for record in out) == DELAYS_MS[cancelled:]
    for record in out:
        assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) == START_MS + int(record.message.body)
    assert harness.broker.parts.timer.pending.counts.by_queue.sum() == 0


def cancel(harness: BrokerHarness, delay_ms: int) -> str:
    properties = {props.TIMER_DEL_UNIQKEY: f"T{delay_ms % 2}+{delay_ms}"}
    return harness.send("T0", b"-", delay_ms=1000, properties=properties).ext["cancelResult"]


def snapshot_of(harness: BrokerHarness) -> Snapshot:
    found = load_snapshot(harness.disk, harness.broker.parts.paths)
    assert found is not None and found.timers is not None
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_start_reads_no_record_of_a_message_due_later(harness: BrokerHarness, reads: Reads, clean: bool) -> None:
    harness.restart(clean=clean)
    assert (reads.count, harness.broker.parts.timer.pending.keys.count) == (0, 0)
    check(harness)


def test_repeated_starts_read_no_record(harness: BrokerHarness, reads: Reads) -> None:
    for i in range(4):
        harness.restart(clean=i % 2 == 0)
        harness.advance(700)
    assert reads.count == 0
    check(harness)


def test_a_start_reads_records_of_messages_due_within_the_lead(harness: BrokerHarness, reads: Reads) -> None:
    harness.stop()
    harness.clock.advance(5000)
    harness.start()
    near = harness.broker.parts.timer.pending.armed_by["recovery"]
    assert 0 < near <= reads.count < COUNT
    check(harness)


def test_cancels_after_the_snapshot_reduce_the_counts(harness: BrokerHarness, reads: Reads) -> None:
    harness.advance(600)
    assert [cancel(harness, delay_ms) for delay_ms in DELAYS_MS[:3]] == ["cancelled"] * 3
    assert sum(snapshot_of(harness).waiting.values()) == COUNT - 1  # it was taken after the first cancel
    harness.restart(clean=False)
    assert reads.count == 2
    check(harness, cancelled=3)


@pytest.mark.parametrize("is_on", [True, False], ids=["index made anew", "no index"])
def test_a_start_without_a_message_index_reads_all_keys(harness: BrokerHarness, reads: Reads, is_on: bool) -> None:
    harness.stop()
    shutil.rmtree(harness._folder / "index") if is_on else None
    harness.start(message_index_enable=is_on)
    assert reads.count == COUNT
    assert cancel(harness, DELAYS_MS[0]) == "cancelled"
    check(harness, cancelled=1)


def test_a_start_with_slot_limits_reads_all_records(harness: BrokerHarness, reads: Reads) -> None:
    harness.restart(timer_congest_num_each_slot=1000)
    assert reads.count == COUNT
    assert harness.broker.parts.timer.congestion.waiting(START_MS + DELAYS_MS[0]) > 0
    check(harness)


def flip_timer_log(harness: BrokerHarness, folder: Path, at: int) -> None:
    [path] = (folder / "timerlog").iterdir()
    raw = bytearray(path.read_bytes())
    raw[7 * TIMER_UNIT.size + at] ^= 0x04
    path.write_bytes(raw)


def change(harness: BrokerHarness, folder: Path, snapshot: Snapshot) -> None:
    (folder / "config" / "snapshot").write_bytes(snapshot.encode())


@pytest.mark.parametrize("name", ["write_ms", "delay_ms", "record_position", "record_size", "topic_hash", "reserved"])
def test_a_flipped_bit_in_the_timer_log_makes_a_start_read_all_records(
    harness: BrokerHarness, reads: Reads, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.stop()
    flip_timer_log(harness, harness._folder, TIMER_UNIT.position_of(name) + 3)
    harness.start()
    assert reads.count == COUNT and "the timer log has changed" in caplog.text


def test_an_unreadable_unit_makes_a_start_read_all_records(harness: BrokerHarness, reads: Reads) -> None:
    """The checksum of its times is right, but its magic is invalid."""
    harness.stop()
    flip_timer_log(harness, harness._folder, TIMER_UNIT.position_of("magic"))
    harness.start()
    assert reads.count == COUNT
    check(harness)


@pytest.mark.parametrize("by", [-1, 1])
def test_wrong_counts_make_a_start_read_all_records(
    harness: BrokerHarness, reads: Reads, by: int, caplog: pytest.LogCaptureFixture
) -> None:
    found, folder = snapshot_of(harness), harness._folder
    harness.crash()
    waiting = {key: count + (by if key[0] == "T1" else 0) for key, count in found.waiting.items()}
    change(harness, folder, found._replace(waiting=waiting))
    harness.start()
    assert reads.count == COUNT and "pending messages, but there are" in caplog.text
    check(harness)


def test_a_mark_older_than_the_snapshot_makes_a_start_read_all_records(
    harness: BrokerHarness, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    paths = harness.broker.parts.paths
    harness.crash()
    marks = MarkFile(harness.disk, paths)
    mark = marks.load()
    assert mark is not None
    marks.write(mark._replace(queue_offset=COUNT - 5))
    harness.start()
    assert reads.count == COUNT and "mark is older" in caplog.text
    check(harness)


def test_a_snapshot_without_timers_makes_a_start_read_all_records(harness: BrokerHarness, reads: Reads) -> None:
    found, folder = snapshot_of(harness), harness._folder
    harness.crash()
    change(harness, folder, found._replace(timers=None))
    harness.start()
    assert reads.count == COUNT
    check(harness)


def strip_details(harness: BrokerHarness, every: int) -> None:
    """Make every `every`-th unit of the timer log one of an older WheelMQ: its reserved bytes are 0."""
    log = harness.broker.parts.timer.log
    for _, units in log.chunks(log.files.start, log.end):
        units["reserved"][::every] = 0


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """The number of records of which starts have read the first bytes."""
    found, begin = Reads(), unread_records._begin_records

    def counted(files: object, pending: object) -> object:
        found.count += len(pending)  # type: ignore[arg-type]
        return begin(files, pending)  # type: ignore[arg-type]

    monkeypatch.setattr(unread_records, "_begin_records", counted)
    return found


def test_no_byte_of_a_record_is_read_for_a_unit_with_a_detail(
    harness: BrokerHarness, reads: Reads, heads: Reads
) -> None:
    harness.restart(clean=False)
    assert (reads.count, heads.count) == (0, 0)
    check(harness)


@pytest.mark.parametrize("every", [1, 3])
def test_units_of_an_older_release_are_checked_by_their_records(
    harness: BrokerHarness, reads: Reads, heads: Reads, every: int
) -> None:
    strip_details(harness, every)
    found, folder = snapshot_of(harness), harness._folder
    assert found.timers is not None
    sums = harness.broker.parts.timer.log
    sums._sums.clear()
    changed = found.timers._replace(sums=sums.sums_job(found.timers.log_position)())
    harness.crash()
    change(harness, folder, found._replace(timers=changed))
    harness.start()
    assert (reads.count, heads.count) == (0, COUNT // every)
    check(harness)


def test_the_sums_of_an_older_release_are_not_compared(
    harness: BrokerHarness, reads: Reads, caplog: pytest.LogCaptureFixture
) -> None:
    found, folder = snapshot_of(harness), harness._folder
    harness.crash()
    old = SHORT_SUMS_MAGIC.to_bytes(4, "big") + found.encode()[4:]
    (folder / "config" / "snapshot").write_bytes(old)
    harness.start()
    assert reads.count == COUNT and not caplog.records
    check(harness)
