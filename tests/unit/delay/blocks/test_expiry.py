"""The removal of past blocks: only after their messages are settled for good, and with their parts of the tables."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, T0, PartsBench, origin_at
from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.copies import BlockCopies
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_BLANK
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.kernels.journal import NOT_COPIED
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.block_replication import BlockPart, PartKind
from wheelmq.system.disk import DiskFull
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.disk import Call

NEAR_MS = T0 + 4000
"""Due time in the block of the present time, within the lead."""
PAST_MS = Millis(T0 + BLOCK_MS)
"""The end of that block."""

Job = tuple[Callable[[], None], Callable[[object], None]]


def jobs(parts: PartsBench, now_ms: int = PAST_MS) -> list[Job]:
    return list(parts.expiry.jobs(Millis(now_ms)))


def flag(parts: PartsBench) -> None:
    parts.settlement.flag(parts.store.log.synced)


def run(job: Job) -> None:
    """Run a job as a worker does."""
    work, done = job
    try:
        work()
    except OSError as error:
        done(error)
    else:
        done(None)


class TestWhen:
    def test_a_past_block_with_a_pending_message_stays(self, parts: PartsBench) -> None:
        first, _ = parts.put_on_disk(NEAR_MS), parts.put_on_disk(NEAR_MS)
        parts.settle_on_disk(first)
        flag(parts)
        assert jobs(parts) == []

    def test_a_settled_block_stays_until_its_period_is_over(self, parts: PartsBench) -> None:
        parts.settle_on_disk(parts.put_on_disk(NEAR_MS))
        flag(parts)
        assert jobs(parts, PAST_MS - 1) == []
        assert len(jobs(parts)) == 1

    def test_a_block_stays_until_its_messages_are_flagged(self, parts: PartsBench) -> None:
        """Before that, a power cut can take back the records that settle them."""
        put = parts.put_on_disk(NEAR_MS)
        parts.settle(put)
        assert parts.is_done(put) and jobs(parts) == [], "the journal has the record"
        parts.dispatch()
        assert jobs(parts) == [], "the record is not on disk"
        parts.store.flush()
        flag(parts)
        assert len(jobs(parts)) == 1

    def test_a_copy_waits_for_the_settling_records_alone(self, parts: PartsBench) -> None:
        """The log settles a message that has not come. It never gets a flag, because the master has no block."""
        put = parts.put_on_disk(NEAR_MS)
        block = parts.block_of(put)
        parts.role.follow()
        parts.settle(put)
        lacking = origin_of(block_stream(put.number), put.index + 1)
        parts.store.append(Message("T", 3, b"", {}), settles=lacking, real_queue=NOT_COPIED)
        parts.pending.done.add(lacking)
        assert parts.role.note_gone_at_master(block) and jobs(parts) == [], "the journal has the records"
        parts.dispatch()
        flag(parts)
        assert jobs(parts) == [], "the records are not on disk"
        parts.store.flush()
        flag(parts)
        assert parts.flagged(put) == [] and len(jobs(parts)) == 1

    def test_a_block_that_waits_for_a_flush_stays(self, parts: PartsBench) -> None:
        """The flush would fail without the files, and stop the broker."""
        put = parts.put(NEAR_MS)
        parts.role.follow()
        parts.settle_on_disk(put)
        assert parts.role.note_gone_at_master(parts.block_of(put)) and jobs(parts) == []
        upto, flush = parts.blocks.flush_job()
        assert jobs(parts) == [], "the flush may run on another thread"
        parts.blocks.note_flushed(upto, flush())
        assert len(jobs(parts)) == 1

    def test_a_copied_part_without_a_message_asks_for_a_flush(self, parts: PartsBench) -> None:
        """Otherwise its block would stay until another message comes."""
        parts.role.follow()
        units = np.zeros(1, BLOCK_UNIT.dtype)
        units["flags"] = FLAG_BLANK
        copies = BlockCopies(
            parts.store, parts.blocks, parts.wheel, parts.intake, parts.pending, InlineWorker(), lambda: None
        )
        copies.add(BlockPart(PartKind.UNITS, 9, T0, PAST_MS, 0, units), parts.store.log.end)
        copies.poll(math.inf)
        assert copies.failure is None and len(copies) == 0
        (block,) = parts.blocks
        assert block.is_behind and parts.blocks.synced < parts.blocks.end
        parts.blocks.flush()
        assert parts.role.note_gone_at_master(block) and len(jobs(parts)) == 1

    def test_a_copy_stays_until_its_master_has_removed_the_block(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(NEAR_MS)
        parts.role.follow()
        parts.settle_on_disk(put)
        flag(parts)
        assert jobs(parts, PAST_MS + 10 * BLOCK_MS) == []


class TestRemoval:
    def test_a_removed_block_leaves_no_table(self, parts: PartsBench) -> None:
        put, other = parts.put_on_disk(NEAR_MS), parts.put_on_disk(NEAR_MS + BLOCK_MS)
        folder = parts.block_of(put).paths.folder
        (stale,) = parts.pending.armed.firing(0, NEAR_MS)
        stale = stale.copy()
        parts.walk.tick(parts.clock.now_ms())
        parts.settle_on_disk(put)
        flag(parts)
        (job,) = jobs(parts)
        assert folder.exists() and put.number in parts.wheel
        run(job)
        assert not folder.exists() and [block.number for block in parts.blocks] == [other.number]
        assert put.number not in parts.wheel
        assert parts.pending.done.has_ended(block_stream(put.number))
        armed = parts.pending.armed.count
        parts.pending.arm(stale, enqueue_ms=ref.NO_ENQUEUE_MS, by="pipeline")
        assert parts.pending.armed.count == armed, "a reference to a removed message is not armed again"

    def test_the_number_of_a_removed_copy_can_be_another_block(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(NEAR_MS)
        block = parts.block_of(put)
        parts.role.follow()
        parts.settle_on_disk(put)
        parts.role.note_gone_at_master(block)
        (job,) = jobs(parts)
        run(job)
        assert not parts.role.is_past(block, PAST_MS)

    def test_a_block_that_is_being_removed_has_no_second_job(self, parts: PartsBench) -> None:
        parts.settle_on_disk(parts.put_on_disk(NEAR_MS))
        flag(parts)
        assert len(jobs(parts)) == 1 and jobs(parts) == []

    def test_a_failed_removal_keeps_the_tables_until_the_next(
        self, parts: PartsBench, caplog: pytest.LogCaptureFixture
    ) -> None:
        put = parts.put_on_disk(NEAR_MS)
        parts.walk.tick(parts.clock.now_ms())
        parts.settle_on_disk(put)
        flag(parts)
        (job,) = jobs(parts)
        parts.disk.fail_call(1, OSError(errno.EIO, "gone"), {Call.REMOVE})
        run(job)
        assert "could not delete the past block" in caplog.text
        assert put.number in parts.wheel and not parts.pending.done.has_ended(block_stream(put.number))
        (job,) = jobs(parts)
        run(job)
        assert len(parts.blocks) == 0 and parts.pending.done.has_ended(block_stream(put.number))

    def test_a_full_disk_starts_no_removal(self, parts: PartsBench) -> None:
        parts.disk.is_full = lambda path: True
        with pytest.raises(DiskFull):
            parts.put(NEAR_MS)
        with pytest.raises(DiskFull):
            jobs(parts)
        parts.disk.heal()
        (job,) = jobs(parts)
        run(job)
        assert len(parts.blocks) == 0

    def test_an_armed_message_is_forgotten_with_its_block(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(NEAR_MS)
        assert parts.is_armed(put)
        parts.settle_on_disk(put)
        flag(parts)
        (job,) = jobs(parts)
        run(job)
        assert not parts.pending.armed.was_armed(np.array([origin_at(put)])).any()
