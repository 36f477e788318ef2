"""The store: append, dispatch, flush, close."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.checkpoint import CHECKPOINT
from wheelmq.formats.disk.message import Host, Message
from wheelmq.formats.disk.origin import origin_text, timer_origin
from wheelmq.formats.units import QueueOffset
from wheelmq.store.settings import StoreSettings
from wheelmq.store.store import DiskFull, PropertiesTooLong, Store
from wheelmq.system.disk import StoreLocked
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk

HOST = Host(b"\x7f\0\0\1", 10911)


def open_store(disk: SimulatedDisk, clock: ManualClock, folder: Path) -> Store:
    store = Store(StoreSettings(path=folder, log_file_bytes=1 << 16, queue_file_bytes=10 * 20), disk, clock, host=HOST)
    store.recover(lambda rows, names: None)
    return store


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock, tmp_path: Path) -> Store:
    return open_store(disk, clock, tmp_path)


def message(topic: str = "T", queue_id: int = 0, body: bytes = b"body", **fields: int) -> Message:
    return Message(topic, queue_id, body, {"TAGS": "TagA"}, **fields)


def test_a_dispatch_writes_the_units_of_appended_records(store: Store) -> None:
    first, second = store.append(message()), store.append(message(body=b"more"))
    assert (first.position, first.queue_offset, first.store_ms) == (0, 0, START_MS)
    assert (second.position, second.queue_offset) == (first.size, 1)
    queue = store.queues.find("T", 0)
    assert queue is not None and queue.end == 0  # the unit follows with dispatch
    rows, grown = store.dispatch()
    assert len(rows) == 2 and grown == {store.queues.row("T", 0): first.size + second.size}
    unit = queue.read(QueueOffset(1), 1)[0]
    assert (unit["position"], unit["size"], unit["tag_code"]) == (second.position, second.size, 2598919)
    assert store.dispatch()[1] == {}


@pytest.mark.parametrize(("sys_flag", "dispatched"), [(0, True), (4, False), (8, True), (12, False), (0x301, True)])
def test_half_messages_and_rollbacks_have_no_unit(store: Store, sys_flag: int, dispatched: bool) -> None:
    store.append(message(sys_flag=sys_flag))
    appended = store.append(message(sys_flag=sys_flag))
    assert appended.queue_offset == (1 if dispatched else 0)
    store.dispatch()
    queue = store.queues.find("T", 0)
    assert queue is not None and queue.end == (2 if dispatched else 0)


def test_the_origin_is_the_last_property(store: Store) -> None:
    appended = store.append(message(), settles=timer_origin(5))
    raw = bytes(store.log.read(appended.position, appended.size))
    assert raw.endswith(f"__WMQ_ORIGIN\x01{origin_text(timer_origin(5))}\x02".encode())


def test_a_message_with_an_origin_fails_an_assertion(store: Store) -> None:
    forged = message()
    forged.properties[props.WMQ_ORIGIN] = origin_text(timer_origin(5))
    with pytest.raises(AssertionError):
        store.append(forged)


def test_properties_that_are_too_long_are_rejected(store: Store) -> None:
    long = message()
    long.properties["k"] = "x" * (props.PROPERTIES_BYTES_MAX - len(props.encode(long.properties)) - 3)
    assert store.append(long).queue_offset == 0
    long.properties["k"] += "x"
    with pytest.raises(PropertiesTooLong):
        store.append(long)
    assert store.append(message()).queue_offset == 1


@pytest.mark.parametrize("field", ["flag", "sys_flag", "reconsume_times", "born_ms"])
def test_a_number_out_of_range_uses_no_queue_offset(store: Store, field: str) -> None:
    store.append(message())
    end = store.log.end
    with pytest.raises(struct.error):
        store.append(message(**{field: 1 << 63}))
    assert store.log.end == end
    assert store.append(message()).queue_offset == 1


def test_a_full_log_uses_no_queue_offset(store: Store, disk: SimulatedDisk) -> None:
    store.append(message(body=bytes(60_000)))
    disk.is_full = lambda path: "commitlog" in str(path)
    with pytest.raises(DiskFull):
        store.append(message(body=bytes(60_000)))
    disk.is_full = lambda path: False
    assert store.append(message(body=bytes(60_000))).queue_offset == 1


def test_full_queues_keep_the_journal_for_the_next_try(store: Store, disk: SimulatedDisk) -> None:
    for _ in range(12):
        store.append(message())
    disk.is_full = lambda path: "consumequeue" in str(path)
    with pytest.raises(DiskFull):
        store.dispatch()
    assert store.journal.count == 12
    store.append(message())
    disk.is_full = lambda path: False
    rows, _ = store.dispatch()
    assert len(rows) == 13 and store.journal.count == 0
    queue = store.queues.find("T", 0)
    assert queue is not None and queue.end == 13


def test_a_flush_syncs_the_records_before_it(store: Store, disk: SimulatedDisk, clock: ManualClock) -> None:
    store.append(message())
    store.dispatch()
    disk.syncs.clear()
    upto, job = store.flush_job()
    clock.advance(1000)
    store.append(message())  # the flush does not cover later records
    job()
    assert [path.parent.name for path in disk.syncs] == ["commitlog"]
    store.note_flushed(upto)
    assert store.log.synced == upto < store.log.end


def test_a_checkpoint_is_written_after_the_sync_of_the_queues(
    store: Store, disk: SimulatedDisk, clock: ManualClock
) -> None:
    assert store.checkpoint_job() is None  # nothing has changed
    store.append(message())
    store.dispatch()
    upto, flush = store.flush_job()
    flush()
    store.note_flushed(upto)
    clock.advance(1000)
    store.append(message("U", 3))
    store.dispatch()
    disk.syncs.clear()
    job = store.checkpoint_job()
    assert job is not None
    job()
    assert [path.parent.name for path in disk.syncs] == ["0", "3"]
    checkpoint = CHECKPOINT.unpack(disk.read(store.paths.checkpoint) or b"")
    assert checkpoint["log_ms"] == START_MS  # no more of the log was flushed
    assert store.checkpoint_job() is None


def test_a_failed_sync_writes_no_checkpoint(store: Store, disk: SimulatedDisk) -> None:
    store.append(message())
    store.dispatch()
    disk.sync_error = OSError(5, "Input/output error")
    for job in (store.flush_job()[1], store.checkpoint_job()):
        assert job is not None
        with pytest.raises(OSError, match="Input/output"):
            job()
    assert disk.read(store.paths.checkpoint) is None
    assert store.checkpoint_job() is not None


def test_the_abort_file_exists_while_a_broker_runs(disk: SimulatedDisk, clock: ManualClock, tmp_path: Path) -> None:
    store = open_store(disk, clock, tmp_path)
    assert store.last_stop_was_clean
    assert (tmp_path / "abort").read_text() == "4242\n1"
    store.close()
    assert not (tmp_path / "abort").exists()
    store = open_store(disk, clock, tmp_path)
    assert store.last_stop_was_clean
    disk.release_locks()
    assert not open_store(disk, clock, tmp_path).last_stop_was_clean


def test_a_store_has_only_one_broker_at_a_time(
    disk: SimulatedDisk, clock: ManualClock, tmp_path: Path, store: Store
) -> None:
    with pytest.raises(StoreLocked):
        open_store(disk, clock, tmp_path)
    store.close()
    open_store(disk, clock, tmp_path)


@pytest.mark.parametrize(
    ("topic", "queue_id", "known"),
    [
        ("T", "3", True),
        ("", "0", False),
        ("a/b", "0", False),
        ("..", "0", False),
        ("T", "-1", False),
        ("T", "x", False),
        ("T", str(1 << 31), False),
        ("T", None, False),
        (None, "0", False),
    ],
)
def test_the_queue_that_a_parked_message_names_is_found(
    store: Store, topic: str | None, queue_id: str | None, known: bool, tmp_path: Path
) -> None:
    pairs = {props.REAL_TOPIC: topic, props.REAL_QID: queue_id}
    row = store.real_queue({name: value for name, value in pairs.items() if value is not None})
    assert (row >= 0) is known
    if known:
        assert store.queues.key(row) == ("T", 3)
