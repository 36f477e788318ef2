"""Blocks: the block of a message, the removal of past blocks, and full disks."""

from __future__ import annotations

import errno
import itertools

import numpy as np
import pytest

from tests.unit.delay.blocks.conftest import HOUR_MS, NEXT_HOUR_MS, SIZES, BlockBench
from wheelmq.delay.blocks.block import LOG_STEP_BYTES
from wheelmq.delay.blocks.blocks import BlockBeingDeleted
from wheelmq.delay.blocks.numbers import NUMBER_MAX
from wheelmq.delay.settings import BlockSettings
from wheelmq.store.store import PropertiesTooLong, RecordTooLong
from wheelmq.system.disk import DiskFull
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


def test_the_lock_of_the_store_rejects_a_second_broker(bench: BlockBench) -> None:
    with pytest.raises(OSError, match="another broker runs on this store"):
        bench.open()


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
    assert bench.blocks.expire(lambda block: block is past, lambda block: True) == []
    bench.flush()
    assert bench.blocks.expire(lambda block: False, lambda block: True) == []
    assert bench.blocks.expire(lambda block: block is past, lambda block: block is not past) == []
    [removal] = bench.blocks.expire(lambda block: block is past, lambda block: True)
    with pytest.raises(BlockBeingDeleted):
        bench.put(NEXT_HOUR_MS)  # the clock was set back
    assert bench.blocks.expire(lambda block: block is past, lambda block: True) == []
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
        for removal in bench.blocks.expire(lambda one: True, lambda one: True):
            try:
                removal.job()
                assert removal.take_result(None)
            except OSError as error:
                assert not removal.take_result(error)
        if len(bench.blocks):
            with pytest.raises(BlockBeingDeleted):
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
    bench.disk.fail_call(nth, OSError(errno.EIO, "stop here"), {Call.SYNC, Call.REMOVE, Call.SYNC_FOLDER})
    [removal] = bench.blocks.expire(lambda one: True, lambda one: True)
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
