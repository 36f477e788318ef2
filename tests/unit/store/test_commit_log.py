"""The commit log."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.formats.disk.message import BLANK_BYTES, BLANK_MAGIC, Host, Message, encode_record
from wheelmq.formats.kernels.scan import POSITION
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan
from wheelmq.system.disk import DiskFull
from wheelmq.testing.clock import START_MS, ManualClock
from wheelmq.testing.disk import SimulatedDisk

SIZE = 4096
HOST = Host(b"\x7f\0\0\1", 10911)


@pytest.fixture
def log(disk: SimulatedDisk, clock: ManualClock, tmp_path: Path) -> CommitLog:
    return CommitLog(MappedSequence(disk, tmp_path, SIZE), clock)


def append(log: CommitLog, size: int) -> LogPosition:
    """Append a record of `size` bytes."""
    message = Message("T", 0, bytes(size - 88 - 2 - 2), {})
    log.reserve(size)
    store_ms = log.store_ms()
    record = encode_record(
        message, b"", queue_offset=QueueOffset(0), position=log.end, store_ms=store_ms, store_host=HOST
    )
    assert len(record) == size
    return log.append(record, store_ms)


def test_records_are_stored_end_to_end(log: CommitLog) -> None:
    assert [append(log, 100), append(log, 92), append(log, 200)] == [0, 100, 192]
    assert log.end == 392
    for position in (0, 100, 192):
        record = log.record_at(LogPosition(position))
        assert record is not None and record.position == position


@pytest.mark.parametrize("free", [BLANK_BYTES, BLANK_BYTES + 1, 91 + BLANK_BYTES, 2000])
def test_a_blank_fills_the_rest_of_a_file(log: CommitLog, free: int) -> None:
    append(log, SIZE - free)
    size = free - BLANK_BYTES + 1 if free > 92 + BLANK_BYTES else 92
    assert append(log, size) == SIZE
    assert struct.unpack_from(">iI", log.files.file_at(0).view, SIZE - free) == (free, BLANK_MAGIC)
    assert log.end == SIZE + size


@pytest.mark.parametrize("left", range(1, BLANK_BYTES))
def test_a_file_without_room_for_a_blank_is_passed(log: CommitLog, disk: SimulatedDisk, left: int) -> None:
    """Older versions could leave one. The records after it are found again."""
    append(log, SIZE - 100 - BLANK_BYTES)
    with mock.patch("wheelmq.store.commit_log.BLANK_BYTES", 0):
        append(log, 100 + BLANK_BYTES - left)
    assert log.end == SIZE - left
    assert append(log, 92) == SIZE
    scan = LogScan(log.files, LogPosition(0))
    found = [int(row[POSITION]) for rows in scan.chunks() for row in rows]
    assert found == [0, SIZE - 100 - BLANK_BYTES, SIZE] and scan.end == log.end


def test_a_record_that_just_fits_needs_no_new_file(log: CommitLog) -> None:
    append(log, SIZE - 100 - BLANK_BYTES)
    append(log, 100)
    assert (log.end, log.files.end) == (SIZE - BLANK_BYTES, SIZE)


def test_a_record_larger_than_a_file_fails_an_assertion(log: CommitLog) -> None:
    with pytest.raises(AssertionError):
        log.reserve(SIZE - BLANK_BYTES + 1)


def test_a_full_disk_leaves_the_log_unchanged(log: CommitLog, disk: SimulatedDisk) -> None:
    append(log, SIZE - 200)
    before = bytes(log.files.file_at(0).view)
    disk.is_full = lambda path: True
    with pytest.raises(DiskFull):
        log.reserve(300)
    assert (log.end, log.files.end) == (SIZE - 200, SIZE)
    assert bytes(log.files.file_at(0).view) == before
    append(log, 150)  # a smaller record still fits
    disk.is_full = lambda path: False
    assert append(log, 300) == SIZE


def test_the_store_time_never_decreases(log: CommitLog, clock: ManualClock) -> None:
    times = []
    for step in (0, 5, -3, -10_000, 10_001, 1):
        clock.step(step)
        append(log, 100)
        times.append(log.last_store_ms)
    assert times == sorted(times)
    assert times == [START_MS, START_MS + 5, START_MS + 5, START_MS + 5, START_MS + 5, START_MS + 5]
    clock.step(100_000)
    assert log.store_ms() == clock.now_ms()
    assert log.last_store_ms == times[-1], "nothing was stored since"


def test_a_position_without_a_record_gives_none(log: CommitLog) -> None:
    append(log, 100)
    for position in (-100, -1, 1, 50, 99, 100, 4000, SIZE, 1 << 40):
        assert log.record_at(LogPosition(position)) is None


def test_bytes_that_name_another_position_are_no_record(log: CommitLog) -> None:
    append(log, 100)
    inner = bytes(log.read(LogPosition(0), 100))  # a record inside a record's body
    message = Message("T", 0, inner, {})
    log.reserve(300)
    store_ms = log.store_ms()
    log.append(
        encode_record(message, b"", queue_offset=QueueOffset(0), position=log.end, store_ms=store_ms, store_host=HOST),
        store_ms,
    )
    assert log.record_at(LogPosition(188)) is None
    assert log.record_at(LogPosition(100)) is not None


def test_the_synced_position_advances_only_after_the_sync(log: CommitLog) -> None:
    append(log, 100)
    upto, job = log.sync_job()
    append(log, 100)
    assert (upto, log.synced) == (100, 0)
    with pytest.raises(AssertionError):
        log.note_synced(upto)  # the disk does not agree
    job()
    log.note_synced(upto)
    assert log.synced == 100
    log.note_synced(LogPosition(50))
    assert log.synced == 100
