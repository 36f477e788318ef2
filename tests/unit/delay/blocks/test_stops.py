"""Blocks after a stop: clean stops, kills, power cuts, and damaged or missing files."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from random import Random
from unittest import mock

import numpy as np
import pytest

from tests.unit.delay.blocks.conftest import HOUR_MS, NEXT_HOUR_MS, BlockBench
from wheelmq.delay.blocks import blocks as module
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.store.recovery import LogDamaged
from wheelmq.system.failpoint import reach
from wheelmq.testing.disk import Call


def test_a_start_recovers_all_messages(bench: BlockBench) -> None:
    for i in range(40):
        bench.put(NEXT_HOUR_MS + i * 1000 + HOUR_MS * (i % 3), b"%d" % i * 40)
    before = bench.found()
    assert len(before) == 40
    bench.kill()
    assert bench.found() == before
    assert bench.put(NEXT_HOUR_MS, b"more").index == 14
    bench.close()
    bench.open()
    assert len(bench.found()) == 41


@pytest.mark.parametrize("clean", [True, False])
def test_abort_scheduled_marks_a_clean_stop(bench: BlockBench, caplog: pytest.LogCaptureFixture, clean: bool) -> None:
    assert bench.blocks.last_stop_was_clean is None  # there was no earlier stop
    bench.put(NEXT_HOUR_MS)
    assert not bench.paths.abort_scheduled.exists()
    with caplog.at_level(logging.INFO, module.__name__):
        if clean:
            bench.close()
            assert bench.paths.abort_scheduled.exists()
            bench.open()
        else:
            bench.kill()
    assert bench.blocks.last_stop_was_clean is clean
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "blocks: the last stop was clean")
        if clean
        else ("WARNING", "blocks: the last stop was not clean: abort.scheduled does not exist")
    ]
    assert not bench.paths.abort_scheduled.exists()
    assert len(bench.found()) == 1


def test_a_start_after_a_clean_stop_syncs_no_block(bench: BlockBench) -> None:
    for i in range(20):
        bench.put(NEXT_HOUR_MS + i * HOUR_MS // 4, bytes(700))
    bench.close()
    bench.disk.syncs.clear()
    bench.open()
    assert [path for path in bench.disk.syncs if bench.paths.blocks in path.parents] == []
    bench.put(NEXT_HOUR_MS, b"more")
    bench.flush()
    second = list(bench.blocks)[1]
    second.queue.flag_done(np.array([1]))  # flags of a block without new messages are written too
    bench.checkpoint()
    bench.cut_power(1, keep=0)
    assert len(bench.found()) == 21
    assert [block.queue.done().tolist() for block in bench.blocks][:2] == [[], [1]]


def test_the_mark_of_a_clean_stop_is_removed_from_disk_before_any_write(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.close()
    bench.open()
    bench.cut_power(1, keep=0)
    assert bench.blocks.last_stop_was_clean is False


def test_a_false_abort_scheduled_loses_no_message(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.flush()
    bench.checkpoint()
    bench.put(NEXT_HOUR_MS)
    bench.paths.abort_scheduled.touch()
    bench.kill()
    assert bench.blocks.last_stop_was_clean is True and len(bench.found()) == 2


def test_a_stop_with_unsynced_units_is_not_clean(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.flush()
    bench.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
    with pytest.raises(OSError, match="gone"):
        bench.checkpoint()
    bench.put(NEXT_HOUR_MS)
    bench.close()
    assert not bench.paths.abort_scheduled.exists()
    bench.open()
    assert len(bench.found()) == 2


def test_a_start_checks_loads_maps_and_recovers_in_that_order(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.put(NEXT_HOUR_MS + HOUR_MS)
    passed: list[str] = []

    def note(name: str) -> None:
        passed.append(name)
        reach(name)

    with (
        mock.patch("wheelmq.delay.blocks.blocks.reach", note),
        mock.patch("wheelmq.delay.blocks.block.reach", note),
    ):
        bench.kill()
    wanted = ["blocks.checked", "blocks.loaded", "block.recovered", "block.recovered", "blocks.recovered"]
    assert [name for name in passed if name in wanted] == wanted


@pytest.mark.parametrize("seed", range(6))
def test_flushed_messages_survive_a_power_cut(make_bench: Callable[[str], BlockBench], seed: int) -> None:
    bench = make_bench(str(seed))
    randomness = Random(seed)
    kept: list[tuple[int, int, int, bytes]] = []
    put: set[tuple[int, int, int, bytes]] = set()
    for i in range(60):
        due_ms = NEXT_HOUR_MS + HOUR_MS * randomness.randrange(3) + randomness.randrange(HOUR_MS)
        body = randomness.randbytes(randomness.randrange(1, 400))
        one = bench.put(due_ms, body)
        put.add((one.number, one.index, due_ms, body))
        match randomness.randrange(12):
            case 0:
                bench.flush()
                kept = bench.found()
            case 1:
                bench.checkpoint()
            case 2:
                bench.disk.write_back(randomness)
            case 3:
                bench.cut_power(seed * 100 + i)
                found = bench.found()
                assert set(kept) <= set(found) <= put
                kept, put = found, set(found)


def test_a_log_torn_at_any_byte_keeps_its_complete_records(bench: BlockBench) -> None:
    bodies = [b"first", b"second"]
    puts = [bench.put(NEXT_HOUR_MS + i, body) for i, body in enumerate(bodies)]
    bench.flush()
    folder = bench.paths.blocks / "2027011509"
    kept = bench.paths.root / "kept"
    shutil.copytree(folder, kept)
    log_name = "log/00000000000000000000"
    whole = (kept / log_name).read_bytes()
    ends = [one.position + one.size for one in puts]
    for torn_at in range(ends[0], ends[1] + 1):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        (folder / log_name).write_bytes(whole[:torn_at].ljust(len(whole), b"\0"))
        for name in ("queue/00000000000000000000", "checkpoint"):  # neither was on disk
            path = folder / name
            path.write_bytes(bytes(path.stat().st_size)) if torn_at % 2 else path.unlink()
        bench.open_blocks()
        count = sum(end <= torn_at for end in ends)
        assert [row[3] for row in bench.found()] == bodies[:count], torn_at
        assert bench.put(NEXT_HOUR_MS, b"next").index == count


@pytest.mark.parametrize("files", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("at_once", [3, 1 << 13])
def test_a_start_checks_only_the_last_three_queue_files(
    bench: BlockBench, files: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid unit is repaired in the checked files, and ignored in the files before them."""
    monkeypatch.setattr("wheelmq.delay.blocks.queue.LOOKED_AT_ONCE", at_once)
    count = 8 * (files - 1) + 5
    for i in range(count):
        bench.put(NEXT_HOUR_MS + i)
    bench.close()
    for number in range(files):
        [folder] = bench.paths.blocks.iterdir()
        path = folder / "queue" / f"{number * 8 * 24:020d}"
        raw = path.read_bytes()
        path.write_bytes(bytes([raw[0] ^ 0x40]) + raw[1:])  # the unit's record would lie beyond the log
        bench.open()
        unit = next(iter(bench.blocks)).queue.read(number * 8, 1)[0]
        is_mended = unit["position"] < 1 << 40
        assert bool(is_mended) is (files - number <= 3), (files, number)
        assert next(iter(bench.blocks)).queue.end == count
        path.write_bytes(raw)
        bench.disk.release_locks()


def test_lost_units_are_rebuilt_from_the_log(bench: BlockBench) -> None:
    for i in range(30):
        bench.put(NEXT_HOUR_MS + i, b"%d" % i)
    before = bench.found()
    bench.close()
    shutil.rmtree(bench.paths.blocks / "2027011509" / "queue")
    bench.open()
    assert bench.found() == before


@pytest.mark.parametrize("field", ["size", "position"])
def test_a_unit_with_a_wrong_span_loses_no_message(bench: BlockBench, field: str) -> None:
    """The next record begins before the end that the unit names."""
    for i in range(5):
        bench.put(NEXT_HOUR_MS + i, b"%d" % i)
    before = bench.found()
    bench.close()
    path = bench.paths.blocks / "2027011509" / "queue" / "00000000000000000000"
    raw = bytearray(path.read_bytes())
    at = 2 * BLOCK_UNIT.size + BLOCK_UNIT.position_of(field) + (2 if field == "size" else 6)
    raw[at] ^= 4  # 1024 more
    path.write_bytes(raw)
    bench.open()
    assert bench.found() == before


def test_a_damaged_record_that_was_synced_fails_the_start(bench: BlockBench) -> None:
    puts = [bench.put(NEXT_HOUR_MS + i) for i in range(5)]
    bench.close()
    folder = bench.paths.blocks / "2027011509"
    path = folder / "log" / "00000000000000000000"
    raw = bytearray(path.read_bytes())
    raw[puts[2].position + 7] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(folder / "queue")
    with pytest.raises(LogDamaged, match="put a good copy in its place"):
        bench.open()
    assert path.read_bytes() == raw


def test_a_damaged_body_is_not_returned(bench: BlockBench) -> None:
    puts = [bench.put(NEXT_HOUR_MS + i, b"body of some length") for i in range(3)]
    bench.close()
    path = bench.paths.blocks / "2027011509" / "log" / "00000000000000000000"
    raw = bytearray(path.read_bytes())
    raw[puts[1].position + 90] ^= 1
    path.write_bytes(raw)
    bench.open()
    [block] = bench.blocks
    assert [block.record_at(one.position) is not None for one in puts] == [True, False, True]


def test_a_missing_log_is_logged(bench: BlockBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.close()
    shutil.rmtree(bench.paths.blocks / "2027011509" / "log")
    bench.open()
    assert bench.found() == [] and "was on disk up to" in caplog.text
    bench.settle(1, 0)
    bench.disk.release_locks()
    bench.open()
    assert bench.put(NEXT_HOUR_MS).index == 1


def test_the_index_of_a_lost_message_is_not_reused_if_the_log_settles_it(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.flush()
    for _ in range(3):
        bench.put(NEXT_HOUR_MS)
    bench.settle(1, 2)  # its release reached the disk before the message did
    bench.cut_power(1, keep=0)
    assert len(bench.found()) == 1
    assert bench.put(NEXT_HOUR_MS, b"new").index == 3
    bench.kill()
    assert [row[1] for row in bench.found()] == [0, 3]
    bench.flush()
    bench.checkpoint()
    bench.close()
    bench.open()
    assert [row[1] for row in bench.found()] == [0, 3]


def test_flags_outlast_the_records_that_settled_the_messages(bench: BlockBench) -> None:
    for i in range(20):
        bench.put(NEXT_HOUR_MS + i)
    bench.flush()
    bench.settle(1, 3, 4, 17)
    bench.kill()
    bench.checkpoint()
    bench.settled.clear()  # the settling records expired
    bench.cut_power(7, keep=0)
    [block] = bench.blocks
    assert block.queue.done().tolist() == [3, 4, 17]


def test_rebuilt_units_keep_their_flags(bench: BlockBench) -> None:
    for i in range(6):
        bench.put(NEXT_HOUR_MS + i)
    [block] = bench.blocks
    block.queue.flag_done(np.array([1, 4]))
    bench.kill()  # no checkpoint confirms that the units are on disk
    [block] = bench.blocks
    assert block.queue.done().tolist() == [1, 4]
