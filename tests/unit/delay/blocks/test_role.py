"""The role of a broker for its blocks: which indices and numbers are used again, and when a block may end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, EPOCH, T0, PartsBench, origin_at
from wheelmq.delay.blocks.role import is_settled
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of
from wheelmq.formats.kernels.journal import NOT_COPIED
from wheelmq.formats.units import Millis
from wheelmq.system.disk import DiskFull

FAR_MS = T0 + 3 * BLOCK_MS


def settle_unknown(parts: PartsBench, origin: Origin) -> None:
    """Append a record of the master's log that settles a message which this replica has not got."""
    parts.store.append(Message("T", 3, b"", {}), settles=origin, real_queue=NOT_COPIED)
    parts.pending.done.add(origin)
    parts.dispatch()


class TestTakeOver:
    def test_no_index_that_the_log_settles_is_used_again(self, parts: PartsBench) -> None:
        kept, lost = parts.put_on_disk(FAR_MS), parts.put(FAR_MS, b"lost")
        parts.settle_on_disk(lost)
        parts.cut_power()
        block = parts.block_of(kept)
        assert block.queue.end == 2 and block.queue.read(1, 1)["size"][0] == 0
        assert parts.is_done(lost) and not parts.is_done(kept)
        assert parts.put(FAR_MS).index == 2

    def test_the_number_of_a_lost_block_is_not_used_again(self, parts: PartsBench) -> None:
        lost = parts.put(FAR_MS)
        parts.settle_on_disk(lost)
        parts.cut_power()
        assert len(parts.blocks) == 0 and parts.pending.done.has_ended(block_stream(lost.number))
        assert parts.put(FAR_MS).number == lost.number + 1

    def test_a_replica_takes_over_without_a_block_that_never_came(self, parts: PartsBench) -> None:
        parts.role.follow()
        settle_unknown(parts, origin_of(block_stream(5), 2))
        parts.role.take_over(EPOCH + 1)
        assert parts.pending.done.has_ended(block_stream(5))
        assert parts.blocks.gone() == {5: parts.store.log.end}
        assert parts.put(FAR_MS).number == 6

    def test_a_replica_takes_over_without_messages_that_never_came(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS)
        parts.role.follow()
        stream = block_stream(put.number)
        settle_unknown(parts, origin_of(stream, 3))
        parts.role.take_over(EPOCH + 1)
        assert parts.pending.done.of(stream).between(0, 5).tolist() == [False, True, True, True, False]
        assert parts.put(FAR_MS).index == 4

    def test_each_message_has_the_epoch_of_its_master(self, parts: PartsBench) -> None:
        puts = [parts.put(FAR_MS)]
        parts.role.follow()
        parts.role.take_over(EPOCH + 1)
        puts.append(parts.put(FAR_MS))
        records = [parts.blocks.record_of(origin_at(put)) for put in puts]
        assert [record.message.prepared_position for record in records if record] == [EPOCH, EPOCH + 1]

    def test_a_full_disk_does_not_change_the_role(self, parts: PartsBench) -> None:
        for _ in range(8):  # they fill a file of the queue
            put = parts.put(FAR_MS)
        parts.role.follow()
        settle_unknown(parts, origin_of(block_stream(put.number), 8))
        parts.disk.is_full = lambda path: True
        with pytest.raises(DiskFull):
            parts.role.take_over(EPOCH + 1)
        assert parts.role.is_copy and parts.blocks.epoch == EPOCH
        parts.disk.heal()
        parts.role.take_over(EPOCH + 1)
        assert not parts.role.is_copy and parts.put(FAR_MS).index == 9


class TestEndOfABlock:
    def test_the_block_of_a_master_may_end_after_its_period(self, parts: PartsBench) -> None:
        block = parts.block_of(parts.put(FAR_MS))
        assert not parts.role.is_past(block, Millis(block.end_ms - 1))
        assert parts.role.is_past(block, block.end_ms)

    def test_a_copy_may_end_only_after_the_block_of_its_master(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS)
        block = parts.block_of(put)
        parts.role.follow()
        parts.settle(put)
        assert not parts.role.is_past(block, Millis(block.end_ms + 1))
        assert parts.role.note_gone_at_master(block)
        assert parts.role.is_past(block, Millis(block.start_ms))

    def test_a_copy_with_a_pending_message_may_not_end(self, parts: PartsBench) -> None:
        first, second = parts.put(FAR_MS), parts.put(FAR_MS)
        block = parts.block_of(first)
        parts.role.follow()
        parts.settle(second)
        assert not parts.role.note_gone_at_master(block)
        assert not parts.role.is_past(block, block.end_ms)

    @pytest.mark.parametrize("event", ["removed", "master"])
    def test_a_number_that_ended_at_a_master_can_be_another_block(self, parts: PartsBench, event: str) -> None:
        put = parts.put(FAR_MS)
        block = parts.block_of(put)
        parts.role.follow()
        parts.settle(put)
        parts.role.note_gone_at_master(block)
        if event == "removed":
            parts.role.note_removed(put.number)
        else:
            parts.role.take_over(EPOCH + 1)
            parts.role.follow()
        assert not parts.role.is_past(block, block.end_ms)

    def test_a_block_is_settled_with_its_last_message(self, parts: PartsBench) -> None:
        puts = [parts.put(FAR_MS) for _ in range(3)]
        block = parts.block_of(puts[0])
        parts.settle(puts[0], puts[2])
        assert not is_settled(block, parts.pending.done)
        parts.settle(puts[1])
        assert is_settled(block, parts.pending.done)


class TestFollow:
    def test_the_blocks_of_a_new_replica_may_differ_from_its_masters(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS)
        parts.role.follow()
        assert parts.role.is_copy
        assert parts.settlement.may_differ(np.array([origin_at(put)])).all()


class TestEnds:
    def test_a_master_saves_the_end_of_each_block(self, parts: PartsBench) -> None:
        first, later = parts.put(FAR_MS), parts.put(FAR_MS + BLOCK_MS)
        parts.put(FAR_MS)
        assert parts.role.ends() == {block_stream(first.number): 2, block_stream(later.number): 1}

    def test_the_last_number_is_saved_when_its_block_is_gone(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(T0 + 900)
        parts.settle(put)
        parts.remove(put)
        assert parts.role.ends() == {block_stream(put.number): 0}

    def test_a_replica_saves_settled_messages_that_have_not_come(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS)
        stream, unknown = block_stream(put.number), block_stream(put.number + 4)
        settle_unknown(parts, origin_of(stream, 6))
        settle_unknown(parts, origin_of(unknown, 1))
        assert parts.role.ends() == {stream: 1}
        parts.role.follow()
        assert parts.role.ends() == {stream: 7, unknown: 2}

    def test_a_new_store_has_no_ends_of_blocks(self, parts: PartsBench) -> None:
        assert parts.role.ends() == {}
