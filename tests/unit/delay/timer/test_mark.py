"""The durable mark in its two slots, and Apache's timercheck."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.delay.timer.mark import Mark, MarkFile, TimerCheck, check_is_apaches, load_check, save_check
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_MARK, TIMER_MARK_SLOT_BYTES
from wheelmq.testing.disk import SimulatedDisk


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths(tmp_path)


def marks(disk: SimulatedDisk, paths: StorePaths) -> MarkFile:
    return MarkFile(disk, paths)


def test_a_new_store_has_no_mark(disk: SimulatedDisk, paths: StorePaths) -> None:
    assert marks(disk, paths).load() is None


def test_the_last_mark_counts(disk: SimulatedDisk, paths: StorePaths) -> None:
    file = marks(disk, paths)
    for i in range(1, 6):
        file.write(Mark(i, 52 * i, 7, i, -1))
        assert marks(disk, paths).load() == Mark(i, 52 * i, 7, i, -1)


def test_a_mark_is_on_disk_when_write_returns(disk: SimulatedDisk, paths: StorePaths) -> None:
    marks(disk, paths).write(Mark(1))
    assert disk.syncs == [paths.timer_mark]


def test_sequences_continue_after_a_restart(disk: SimulatedDisk, paths: StorePaths) -> None:
    for i in range(1, 5):
        file = marks(disk, paths)
        file.load()
        file.write(Mark(i))
        assert marks(disk, paths).load() == Mark(i)


@pytest.mark.parametrize("last", [3, 4])
def test_a_torn_slot_leaves_the_mark_before_it(disk: SimulatedDisk, paths: StorePaths, last: int) -> None:
    file = marks(disk, paths)
    for i in range(1, last + 1):
        file.write(Mark(i, 52 * i))
    at = last % 2 * TIMER_MARK_SLOT_BYTES
    whole = paths.timer_mark.read_bytes()
    for byte in range(TIMER_MARK.size):
        torn = bytearray(whole)
        torn[at + byte] ^= 0xFF
        paths.timer_mark.write_bytes(torn)
        assert marks(disk, paths).load() == Mark(last - 1, 52 * (last - 1)), byte
    for cut in range(TIMER_MARK.size):
        torn = bytearray(whole)
        torn[at + cut : at + TIMER_MARK.size] = bytes(TIMER_MARK.size - cut)
        paths.timer_mark.write_bytes(torn)
        assert marks(disk, paths).load() in (Mark(last - 1, 52 * (last - 1)), Mark(last, 52 * last)), cut


def test_after_a_torn_slot_the_next_mark_counts(disk: SimulatedDisk, paths: StorePaths) -> None:
    file = marks(disk, paths)
    for i in range(1, 4):
        file.write(Mark(i))
    raw = bytearray(paths.timer_mark.read_bytes())
    raw[TIMER_MARK_SLOT_BYTES + 20] ^= 1  # the slot of sequence 3
    paths.timer_mark.write_bytes(raw)
    again = marks(disk, paths)
    assert again.load() == Mark(2)
    again.write(Mark(9))
    assert marks(disk, paths).load() == Mark(9)


def test_two_torn_slots_give_no_mark(disk: SimulatedDisk, paths: StorePaths) -> None:
    file = marks(disk, paths)
    file.write(Mark(1))
    file.write(Mark(2))
    paths.timer_mark.write_bytes(b"\xff" * 2 * TIMER_MARK_SLOT_BYTES)
    assert marks(disk, paths).load() is None


def test_timercheck_has_the_layout_of_apache(disk: SimulatedDisk, paths: StorePaths) -> None:
    assert load_check(disk, paths) is None
    check = TimerCheck(1_800_000_000_000, 520, 10, 10, 1, 2, 3)
    save_check(disk, paths, check)
    raw = paths.config_file("timercheck").read_bytes()
    assert len(raw) == 4096 and raw[:56] == check.pack() and len(check.pack()) == 56
    assert load_check(disk, paths) == check


def test_the_writer_of_timercheck_is_recognized(disk: SimulatedDisk, paths: StorePaths) -> None:
    assert not check_is_apaches(disk, paths)
    path = paths.config_file("timercheck")
    disk.replace(path, TimerCheck(7, 8, 9).pack().ljust(4096, b"\0"))
    assert check_is_apaches(disk, paths)
    save_check(disk, paths, TimerCheck(10, 11, 12))
    assert not check_is_apaches(disk, paths)
    with path.open("r+b") as file:
        file.write(TimerCheck(13, 11, 12).pack())
    assert check_is_apaches(disk, paths)


@pytest.mark.parametrize("raw", [b"", b"short"])
def test_an_unreadable_timercheck_is_ignored(disk: SimulatedDisk, paths: StorePaths, raw: bytes) -> None:
    disk.replace(paths.config_file("timercheck"), raw)
    assert not check_is_apaches(disk, paths)
    assert load_check(disk, paths) is None
