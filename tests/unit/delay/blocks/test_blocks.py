"""Blocks: the block of a message, recovery at a start, and removal."""

from __future__ import annotations

import errno
import itertools
import logging
import shutil
from collections.abc import Callable
from random import Random
from unittest import mock

import numpy as np
import pytest

from tests.unit.delay.blocks.conftest import HOUR_MS, NEXT_HOUR_MS, SIZES, BlockBench
from wheelmq.delay.blocks import blocks as module
from wheelmq.delay.blocks.block import LOG_STEP_BYTES
from wheelmq.delay.blocks.blocks import BlockGoing
from wheelmq.delay.blocks.numbers import NUMBER_MAX
from wheelmq.delay.settings import BlockSettings
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.store.recovery import LogDamaged
from wheelmq.store.store import PropertiesTooLong, RecordTooLong
from wheelmq.system.disk import DiskFull
from wheelmq.system.failpoint import reach
from wheelmq.testing.disk import Call


def names(bench: BlockBench) -> list[str]:
    return bench.disk.list(bench.paths.blocks)


def test_a_message_goes_to_the_block_of_its_due_hour(bench: BlockBench) -> None:
    first = bench.put(NEXT_HOUR_MS)
    last = bench.put(NEXT_HOUR_MS + HOUR_MS - 1)
    later = bench.put(NEXT_HOUR_MS + HOUR_MS)
    again = bench.put(NEXT_HOUR_MS + 17)
    assert [(one.number, one.index) for one in (first, last, later, again)] == [(1, 0), (1, 1), (2, 0), (1, 2)]
    assert names(bench) == ["2027011509", "2027011510"]
    assert [(block.start_ms, block.end_ms) for block in bench.blocks] == [
        (NEXT_HOUR_MS, NEXT_HOUR_MS + HOUR_MS),
        (NEXT_HOUR_MS + HOUR_MS, NEXT_HOUR_MS + 2 * HOUR_MS),
    ]
    assert first.store_ms <= last.store_ms <= later.store_ms <= again.store_ms


def test_a_block_of_a_day_has_the_name_of_the_seed(bench: BlockBench) -> None:
    bench.blocks.settings = BlockSettings(length_seconds=24 * 3600, **SIZES)
    bench.put(NEXT_HOUR_MS)
    assert names(bench) == ["20270115"]
    assert bench.disk.list(bench.paths.blocks / "20270115") == ["checkpoint", "log", "queue"]


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


def test_the_lock_of_the_store_rejects_a_second_broker(bench: BlockBench) -> None:
    with pytest.raises(OSError, match="another broker runs on this store"):
        bench.open()


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


def test_a_failed_checkpoint_does_not_delay_other_blocks(bench: BlockBench) -> None:
    for i in range(3):
        bench.put(NEXT_HOUR_MS + i * HOUR_MS)
    bench.flush()
    bench.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.SYNC})
    with pytest.raises(OSError, match="gone"):
        bench.checkpoint()
    assert [(block.has_failed, block.queue.is_changed) for block in bench.blocks] == [
        (True, True), (False, False), (False, False)
    ]  # fmt: skip


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


def test_block_numbers_are_not_reused_while_the_log_names_them(bench: BlockBench) -> None:
    assert bench.put(NEXT_HOUR_MS).number == 1
    bench.settle(41)
    bench.kill()
    assert bench.put(NEXT_HOUR_MS + HOUR_MS).number == 42
    bench.kill()
    assert bench.put(NEXT_HOUR_MS + 2 * HOUR_MS).number == 43
    bench.blocks.numbers.note_used(NUMBER_MAX - 1)
    numbers = [bench.put(NEXT_HOUR_MS + i * HOUR_MS).number for i in range(3, 6)]
    assert numbers == [NUMBER_MAX, 2, 3]  # 1 is in use


def test_a_past_block_is_removed_once_all_its_messages_are_settled(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.put(NEXT_HOUR_MS + HOUR_MS)
    past, later = bench.blocks
    assert bench.blocks.expire(past.end_ms - 1, lambda block: True) == []
    assert bench.blocks.expire(past.end_ms, lambda block: block is not past) == []
    [removal] = bench.blocks.expire(past.end_ms, lambda block: True)
    with pytest.raises(BlockGoing):
        bench.put(NEXT_HOUR_MS)  # the clock was set back
    assert bench.blocks.expire(past.end_ms, lambda block: True) == []
    removal.job()
    assert removal.take_result(None) and removal.number == 1
    assert list(bench.blocks) == [later] and names(bench) == ["2027011510"]
    assert bench.put(NEXT_HOUR_MS).number == 3
    assert names(bench) == ["2027011509", "2027011510"]


@pytest.mark.parametrize("nth", range(1, 10))
def test_a_failed_removal_of_a_block_is_retried(bench: BlockBench, caplog: pytest.LogCaptureFixture, nth: int) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.flush()
    [block] = bench.blocks
    bench.disk.fail_call(nth, OSError(errno.EIO, "gone"))
    for _ in range(2):
        for removal in bench.blocks.expire(block.end_ms, lambda block: True):
            try:
                removal.job()
                assert removal.take_result(None)
            except OSError as error:
                assert not removal.take_result(error)
        if len(bench.blocks):
            with pytest.raises(BlockGoing):
                bench.put(NEXT_HOUR_MS)  # the clock was set back
            block.queue.flag_done(np.array([0]))
            assert bench.blocks.checkpoint_job() is None  # it would say that the block is there
    assert names(bench) == [] and "could not delete the past block" in caplog.text


@pytest.mark.parametrize("nth", range(1, 14))
@pytest.mark.parametrize("cut", [False, True])
def test_an_interrupted_removal_continues_at_the_next_start(bench: BlockBench, nth: int, cut: bool) -> None:
    for i in range(40):
        bench.put(NEXT_HOUR_MS + i, bytes(100))
    bench.flush()
    bench.checkpoint()
    [block] = bench.blocks
    bench.disk.fail_call(nth, OSError(errno.EIO, "stop here"), {Call.SYNC, Call.REMOVE, Call.SYNC_FOLDER})
    [removal] = bench.blocks.expire(block.end_ms, lambda block: True)
    with pytest.raises(OSError, match="stop here"):
        removal.job()
    bench.disk.heal()
    _ = bench.cut_power(nth) if cut else bench.kill()
    if nth == 1:  # the mark of the removal is not synced: a kill may keep it, a power cut does not
        assert len(bench.found()) in ((40,) if cut else (0, 40))
    else:
        assert bench.found() == [] and names(bench) == []


def test_a_full_disk_rejects_messages_and_changes_nothing(bench: BlockBench) -> None:
    for i in range(8):
        bench.put(NEXT_HOUR_MS + i)
    before = bench.found()
    bench.disk.is_full = lambda path: True
    for due_ms in (NEXT_HOUR_MS, NEXT_HOUR_MS + HOUR_MS):
        with pytest.raises(DiskFull):
            bench.put(due_ms)
    bench.disk.is_full = lambda path: "log" in path.parts
    with pytest.raises(DiskFull):
        bench.put(NEXT_HOUR_MS, bytes(3500))
    bench.disk.heal()
    assert bench.found() == before
    bench.flush()
    assert bench.put(NEXT_HOUR_MS, b"again").index == 8
    assert bench.put(NEXT_HOUR_MS + HOUR_MS, b"and").index == 0
    bench.kill()
    assert len(bench.found()) == 10


def test_disk_space_is_reserved_to_the_end_of_a_record(bench: BlockBench) -> None:
    """A write to a mapped page without disk space would end the process."""
    bench.blocks.settings = BlockSettings(**{**SIZES, "log_file_bytes": 4 * LOG_STEP_BYTES})
    bench.put(NEXT_HOUR_MS, bytes(LOG_STEP_BYTES - 1000))
    bench.disk.is_full = lambda path: True
    assert bench.put(NEXT_HOUR_MS, bytes(100)).index == 1
    with pytest.raises(DiskFull):
        bench.put(NEXT_HOUR_MS, bytes(1000))
    bench.disk.heal()
    assert bench.put(NEXT_HOUR_MS, bytes(1000)).index == 2


def test_messages_that_never_fit_are_rejected(bench: BlockBench) -> None:
    with pytest.raises(PropertiesTooLong):
        bench.put(NEXT_HOUR_MS, LONG="x" * 40_000)
    with pytest.raises(RecordTooLong):
        bench.put(NEXT_HOUR_MS, bytes(4096))
    assert bench.put(NEXT_HOUR_MS).index == 0


def test_a_failed_sync_confirms_no_message(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.disk.sync_error = OSError(errno.EIO, "gone")
    upto, job = bench.blocks.flush_job()
    with pytest.raises(OSError, match="gone"):
        job()
    assert (upto, bench.blocks.synced) == (1, 0)


def test_blocks_of_another_length_do_not_overlap_existing_blocks(bench: BlockBench) -> None:
    bench.put(NEXT_HOUR_MS)
    bench.blocks.settings = BlockSettings(length_seconds=2 * 3600, **SIZES)
    even = NEXT_HOUR_MS - NEXT_HOUR_MS % (2 * HOUR_MS)
    due = [even + i * HOUR_MS // 2 for i in range(8)]
    for due_ms in due:
        bench.put(due_ms)
    spans = [(block.start_ms - even, block.end_ms - even) for block in bench.blocks]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    bench.kill()
    assert sorted(row[2] for row in bench.found()) == sorted([NEXT_HOUR_MS, *due])


def test_store_times_do_not_decrease_when_the_clock_is_set_back(bench: BlockBench) -> None:
    first = bench.put(NEXT_HOUR_MS)
    bench.clock.step(-HOUR_MS)
    bench.kill()
    assert bench.put(NEXT_HOUR_MS).store_ms == first.store_ms
    assert bench.put(NEXT_HOUR_MS + HOUR_MS).store_ms == first.store_ms


def test_a_folder_that_is_no_block_is_kept(bench: BlockBench, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("2027", "20271301", "202701150960", "notes"):
        (bench.paths.blocks / name).mkdir(parents=True)
    bench.kill()
    assert len(bench.blocks) == 0 and len(names(bench)) == 4
    assert caplog.text.count("is not a block") == 4
