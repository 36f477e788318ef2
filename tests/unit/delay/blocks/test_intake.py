"""The intake of blocks: messages become pending by a put, by a copy of a master's block, or at a start."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, LEAD_MS, T0, PartsBench, origin_at
from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.block import Put
from wheelmq.delay.blocks.blocks import BlockBeingDeleted
from wheelmq.delay.blocks.numbers import NoNumberLeft
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.blocks.recover import pending_of
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of
from wheelmq.formats.disk.parked import delete_key, key_hash
from wheelmq.store.store import RecordTooLong
from wheelmq.system.disk import DiskFull

S0 = T0 + LEAD_MS
FAR_MS = T0 + 3 * BLOCK_MS


def found_by_key(parts: PartsBench, unique_key: str) -> list[Origin]:
    return parts.pending.keys.find(key_hash(delete_key("T", unique_key)))


def pending_in_t(parts: PartsBench) -> int:
    """Return the number of pending messages of queue 3 of topic T."""
    return int(parts.pending.counts.grown_table()[parts.store.queues.row("T", 3), 0])


class TestPut:
    def test_a_message_becomes_pending_in_the_block_of_its_due_time(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS + 17, b"text", UNIQ_KEY="K")
        record = parts.blocks.record_of(origin_at(put))
        assert record is not None and record.message.body == b"text" and record.queue_offset == put.index
        assert record.message.queue_id == put.number and parts.block_of(put).start_ms == FAR_MS
        assert parts.in_blocks.total == pending_in_t(parts) == 1 and not parts.is_done(put)
        assert found_by_key(parts, "K") == [origin_at(put)]

    def test_a_message_without_a_unique_key_has_no_delete_key(self, parts: PartsBench) -> None:
        parts.put(FAR_MS)
        assert parts.pending.keys.count == 0 and parts.in_blocks.total == 1

    def test_only_a_message_up_to_s_is_armed_at_once(self, parts: PartsBench) -> None:
        puts = [parts.put(due_ms) for due_ms in (T0 + 300, S0, S0 + 1)]
        assert parts.are_armed(puts) == [True, True, False]
        assert parts.pending.armed_by["block_lane"] == 2
        (first, second) = np.concatenate(parts.pending.armed.firing(0, S0))
        for row, put, due_ms in ((first, puts[0], T0 + 300), (second, puts[1], S0)):
            assert row[[ref.FIRE_MS, ref.POSITION, ref.SIZE]].tolist() == [due_ms, put.position, put.size]
            assert row[ref.ENQUEUE_MS] == ref.NO_ENQUEUE_MS

    def test_a_message_within_the_running_plan_is_armed_at_once(self, parts: PartsBench) -> None:
        parts.put_on_disk(S0 + 500)
        parts.clock.advance(4000)
        plan = parts.next_plan()
        assert plan is not None and plan.blocks is not None
        puts = [parts.put(due_ms) for due_ms in (plan.blocks.through_ms, plan.blocks.through_ms + 1)]
        assert parts.are_armed(puts) == [True, False]

    def test_the_first_message_of_a_number_begins_its_stream(self, parts: PartsBench) -> None:
        """An earlier block had the number, and its stream has ended."""
        first = parts.put_on_disk(T0 + 300)
        parts.settle_on_disk(first)
        parts.remove(first)
        parts.pending.end_stream(block_stream(first.number))
        parts.blocks.numbers.note_found(first.number)
        parts.blocks.numbers.note_used(0)
        second, third = parts.put(T0 + 400), parts.put(T0 + 500)
        assert second.number == third.number == first.number
        assert parts.are_armed([second, third]) == [True, True]
        parts.settle(second)
        parts.put(T0 + 600)
        assert parts.is_done(second), "a later message does not begin the stream again"

    @pytest.mark.parametrize("why", [DiskFull, RecordTooLong, BlockBeingDeleted, NoNumberLeft])
    def test_a_rejected_message_is_not_pending(
        self, parts: PartsBench, monkeypatch: pytest.MonkeyPatch, why: type[Exception]
    ) -> None:
        due_ms, body = T0 + 300, b"body"
        if why is DiskFull:
            parts.disk.is_full = lambda path: True
        elif why is RecordTooLong:
            body = bytes(5000)
        elif why is BlockBeingDeleted:
            parts.settle_on_disk(parts.put_on_disk(due_ms))
            parts.blocks.expire(lambda block: True, lambda block: True)
        else:
            monkeypatch.setattr("wheelmq.delay.blocks.numbers.NUMBER_MAX", 1)
            parts.put(FAR_MS)
        total, armed = parts.in_blocks.total, parts.pending.armed.count
        with pytest.raises(why):
            parts.put(due_ms, body, UNIQ_KEY="K")
        assert parts.in_blocks.total == pending_in_t(parts) == total
        assert parts.pending.armed.count == armed and found_by_key(parts, "K") == []

    def test_an_unreadable_real_queue_leaves_no_message_behind(self, parts: PartsBench) -> None:
        """Its sender gets an error, so the message must not be delivered."""
        folder = parts.paths.consume_queue("T", 3)
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.write_bytes(b"a file in place of the folder")
        with pytest.raises(NotADirectoryError):
            parts.put(FAR_MS)
        assert [block.queue.end for block in parts.blocks] in ([], [0])
        folder.parent.unlink()
        assert parts.put(FAR_MS).index == 0 and parts.in_blocks.total == 1


class TestCopied:
    def take(self, parts: PartsBench, *dues_ms: int) -> list[Put]:
        """Append messages to a block as a copy does, and take them."""
        parts.role.follow()
        block = parts.blocks.block_for_copy(9, T0, T0 + BLOCK_MS)
        assert block is not None
        puts = []
        for due_ms in dues_ms:
            message = parts.parked(due_ms, UNIQ_KEY=f"K{due_ms - T0}")
            message.queue_id = block.number
            puts.append(parts.blocks.put(block, message, due_ms))
        indices, units = np.arange(len(puts)), block.queue.read(0, len(puts))
        records = UnitRecords(block.log.files, block.number)
        parts.intake.take_copied(block, indices, units, records.read(indices, units), records.names)
        return puts

    def test_copied_messages_become_pending_with_their_keys(self, parts: PartsBench) -> None:
        puts = self.take(parts, T0 + 7000, T0 + 8000)
        assert parts.in_blocks.total == pending_in_t(parts) == 2
        assert [found_by_key(parts, key) for key in ("K7000", "K8000")] == [[origin_at(put)] for put in puts]

    def test_only_copied_messages_up_to_s_are_armed(self, parts: PartsBench) -> None:
        puts = self.take(parts, S0 + 1, S0, T0 + 300)
        assert parts.are_armed(puts) == [False, True, True]
        assert parts.pending.armed.next_fire_ms() == T0 + 300

    def test_copied_messages_within_the_running_plan_are_armed(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + BLOCK_MS + 500)
        parts.clock.advance(6500)
        plan = parts.next_plan()
        assert plan is not None and plan.blocks is not None and plan.blocks.through_ms > T0 + 9000 > S0
        puts = self.take(parts, T0 + 9000)
        assert parts.are_armed(puts) == [True]


class TestRecover:
    def test_a_start_finds_pending_messages_and_no_settled_ones(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(FAR_MS + i, UNIQ_KEY=f"K{i}") for i in range(3)]
        parts.settle_on_disk(puts[1])
        parts.kill()
        assert [parts.is_done(put) for put in puts] == [False, True, False]
        assert parts.in_blocks.total == pending_in_t(parts) == 2
        assert [found_by_key(parts, f"K{i}") for i in range(3)] == [[origin_at(puts[0])], [], [origin_at(puts[2])]]

    def test_a_start_flags_the_messages_that_the_log_settles(self, parts: PartsBench) -> None:
        put, _ = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        assert parts.flagged(put) == []
        parts.kill()
        assert parts.flagged(put) == [0]

    def test_a_start_settles_the_messages_that_are_flagged(self, parts: PartsBench) -> None:
        """The log may not have the settling record any more."""
        put = parts.put_on_disk(T0 + 1000)
        parts.block_of(put).queue.flag_done(np.array([put.index]))
        parts.kill()
        assert parts.is_done(put) and parts.in_blocks.total == 0 and not parts.is_armed(put)

    def test_a_start_arms_the_messages_within_the_lead(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(due_ms) for due_ms in (T0 - 5000, T0 + 300, S0, S0 + 1, FAR_MS)]
        parts.kill()
        assert parts.walk.walked_ms == S0
        assert parts.are_armed(puts) == [True, True, True, False, False]
        assert parts.pending.armed_by["recovery"] == 3

    def test_a_later_start_arms_messages_that_are_overdue(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(due_ms) for due_ms in (S0 + 1, T0 + BLOCK_MS, FAR_MS)]
        parts.clock.advance(4 * BLOCK_MS)
        parts.kill()
        assert parts.are_armed(puts) == [True, True, True]

    def damage(self, parts: PartsBench, put: Put) -> None:
        """Write a checkpoint that covers a message, and change its body."""
        job = parts.blocks.checkpoint_job()
        assert job is not None
        job()
        parts.block_of(put).log.files.file_at(0).array[put.position + 100] ^= 0xFF

    def test_a_start_sets_a_damaged_message_aside(self, parts: PartsBench, caplog: pytest.LogCaptureFixture) -> None:
        damaged, good = parts.put_on_disk(T0 + 1000, bytes(50)), parts.put_on_disk(T0 + 1000)
        self.damage(parts, damaged)
        parts.kill()
        assert "the message at index 0 is set aside: its record is damaged" in caplog.text
        assert parts.block_of(good).set_aside == {0}
        assert parts.are_armed([damaged, good]) == [False, True] and parts.in_blocks.total == 1

    def test_a_damaged_message_is_not_found_as_pending(self, parts: PartsBench) -> None:
        damaged, good = parts.put_on_disk(T0 + 1000, bytes(50)), parts.put_on_disk(T0 + 1000)
        self.damage(parts, damaged)
        parts.disk.release_locks()
        parts.scan()
        block = parts.block_of(good)
        (found,) = pending_of(parts.store, block, parts.in_blocks, parts.pending.done)
        assert found.indices.tolist() == [good.index] and found.units["position"].tolist() == [good.position]

    def test_the_stream_of_a_gone_block_ends_at_the_start(self, parts: PartsBench) -> None:
        """The log still names the block, so its number is not used again."""
        put = parts.put_on_disk(T0 + 300)
        parts.settle_on_disk(put)
        parts.remove(put)
        parts.kill()
        assert parts.blocks.gone() == {put.number: parts.store.log.end}
        assert origin_of(block_stream(put.number), 5) in parts.pending.done
        assert parts.put(T0 + 300).number == put.number + 1

    def test_gone_blocks_of_the_snapshot_keep_their_numbers(self, parts: PartsBench) -> None:
        parts.settle_on_disk(parts.put(FAR_MS))
        end = parts.store.log.end
        parts.disk.release_locks()
        parts.scan()
        parts.intake.recover({40: end, 41: parts.store.log.start})
        assert parts.blocks.gone() == {40: end}
        parts.role.take_over(1)
        assert parts.put(T0 + 300).number == 42
