"""Settled messages of blocks, until their units are flagged: the order of flags, and the messages of other brokers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, T0, PartsBench, origin_at
from wheelmq.delay.blocks.block import Put
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import Origin, block_stream, level_origin, origin_of, timer_origin
from wheelmq.formats.units import LogPosition

FAR_MS = T0 + 3 * BLOCK_MS
"""Due time in a block that is not near."""
NOTHING = LogPosition(0)


def origins(*values: Origin) -> np.ndarray:
    return np.array(values, np.int64)


def unflagged(parts: PartsBench, after: LogPosition = NOTHING) -> set[int]:
    return parts.settlement.unflagged(parts.store.journal.rows(), after)


class TestFlags:
    def test_a_unit_is_flagged_once_the_settling_record_is_on_disk(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(FAR_MS)
        (released,) = parts.settle(put)
        parts.dispatch()
        assert parts.settlement.flag(parts.store.log.synced) <= released.position
        assert parts.flagged(put) == []
        parts.store.flush()
        assert parts.settlement.flag(parts.store.log.synced) == parts.store.log.end
        assert parts.flagged(put) == [0]

    def test_a_half_synced_tick_flags_none_of_its_units(self, parts: PartsBench) -> None:
        first, second = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS)
        _, last = parts.settle(first, second)
        parts.dispatch()
        assert parts.settlement.flag(last.position) == NOTHING
        assert parts.flagged(first) == []

    def test_a_message_that_is_not_on_disk_gets_no_flag(self, parts: PartsBench) -> None:
        put = parts.put(FAR_MS)
        parts.settle_on_disk(put)
        assert parts.settlement.flag(parts.store.log.synced) == NOTHING
        assert parts.flagged(put) == []
        parts.blocks.flush()
        assert parts.settlement.flag(parts.store.log.synced) == parts.store.log.end
        assert parts.flagged(put) == [0]

    def test_flags_follow_the_order_of_the_log(self, parts: PartsBench) -> None:
        """A flag of a later record does not pass a message that waits for its block's flush."""
        on_disk, late = parts.put_on_disk(FAR_MS), parts.put(FAR_MS + BLOCK_MS)
        parts.settle_on_disk(late)
        waits_from = parts.store.log.end
        parts.settle_on_disk(on_disk)
        assert parts.settlement.flag(parts.store.log.synced) < waits_from
        assert parts.flagged(on_disk) == []
        parts.blocks.flush()
        assert parts.settlement.flag(parts.store.log.synced) == parts.store.log.end
        assert parts.flagged(on_disk) == parts.flagged(late) == [0]

    def test_the_first_ticks_are_flagged_before_one_that_waits(self, parts: PartsBench) -> None:
        first, second, late = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS), parts.put(FAR_MS)
        parts.settle_on_disk(first)
        waits_from = parts.store.log.end
        parts.settle_on_disk(second, late)
        assert parts.settlement.flag(parts.store.log.synced) == waits_from
        assert parts.flagged(first) == [0]
        parts.blocks.flush()
        parts.settlement.flag(parts.store.log.synced)
        assert parts.flagged(first) == [0, 1, 2]

    def test_messages_of_several_blocks_are_flagged_together(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(FAR_MS + i % 3 * BLOCK_MS) for i in range(7)]
        parts.settle_on_disk(*puts[1:])
        parts.settlement.flag(parts.store.log.synced)
        assert [parts.flagged(put) for put in puts[:3]] == [[1, 2], [0, 1], [0, 1]]

    def test_without_settled_messages_all_of_the_synced_log_is_flagged(self, parts: PartsBench) -> None:
        assert parts.settlement.flag(LogPosition(17)) == 17

    def test_a_removed_block_delays_no_flag(self, parts: PartsBench) -> None:
        gone, stays = parts.put_on_disk(FAR_MS), parts.put_on_disk(FAR_MS + BLOCK_MS)
        parts.settle_on_disk(gone)
        parts.settle_on_disk(stays)
        parts.remove(gone)
        assert parts.settlement.flag(parts.store.log.synced) == parts.store.log.end
        assert parts.flagged(stays) == [0]


class TestSettledMessages:
    def test_a_settled_message_is_not_pending_any_more(self, parts: PartsBench) -> None:
        put, other = parts.put(FAR_MS), parts.put(FAR_MS)
        parts.settle(put)
        assert parts.in_blocks.total == 2, "the tick has not ended"
        parts.dispatch()
        assert parts.in_blocks.total == 1 and not parts.is_done(other)

    def test_a_timer_that_is_settled_concerns_no_block(self, parts: PartsBench) -> None:
        parts.put(FAR_MS)
        row = parts.store.queues.row("T", 3)
        parts.store.append(Message("T", 3, b"", {}), settles=timer_origin(0), real_queue=row)
        assert unflagged(parts) == set()
        parts.dispatch()
        assert unflagged(parts) == set() and parts.in_blocks.total == 1

    def test_unflagged_blocks_include_those_of_the_running_tick(self, parts: PartsBench) -> None:
        earlier, now = parts.put(FAR_MS), parts.put(FAR_MS + BLOCK_MS)
        parts.put(FAR_MS + 2 * BLOCK_MS)
        parts.settle(earlier)
        parts.dispatch()
        parts.settle(now)
        assert unflagged(parts) == {earlier.number, now.number}

    def test_a_flagged_message_leaves_the_unflagged_blocks(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(FAR_MS)
        parts.settle_on_disk(put)
        assert unflagged(parts) == {put.number}
        parts.settlement.flag(parts.store.log.synced)
        assert unflagged(parts) == set()

    def test_records_up_to_a_position_do_not_count_as_unflagged(self, parts: PartsBench) -> None:
        first, second = parts.put(FAR_MS), parts.put(FAR_MS + BLOCK_MS)
        parts.settle(first)
        parts.dispatch()
        after = parts.store.log.end
        parts.settle(second)
        parts.dispatch()
        assert unflagged(parts, LogPosition(after - 1)) == {first.number, second.number}
        assert unflagged(parts, after) == {second.number}
        assert unflagged(parts, parts.store.log.end) == set()


class TestCopies:
    @pytest.fixture
    def put(self, parts: PartsBench) -> Put:
        return parts.put(FAR_MS)

    def test_a_replica_lacks_messages_after_the_end_of_a_block(self, parts: PartsBench, put: Put) -> None:
        stream = block_stream(put.number)
        found = parts.settlement.lacks(origins(origin_of(stream, 1), origin_at(put), origin_of(stream, 9)))
        assert found.tolist() == [True, False, True]

    def test_a_replica_lacks_each_message_of_an_unknown_block(self, parts: PartsBench, put: Put) -> None:
        unknown = origin_of(block_stream(put.number + 1), 0)
        assert parts.settlement.lacks(origins(unknown, origin_at(put), unknown)).tolist() == [True, False, True]

    def test_a_replica_lacks_no_message_of_the_log(self, parts: PartsBench) -> None:
        found = parts.settlement.lacks(origins(timer_origin(1 << 30), level_origin(3, 1 << 30), Origin(0)))
        assert not found.any()

    def test_a_replica_lacks_a_message_that_it_set_aside(self, parts: PartsBench, put: Put) -> None:
        """Its record is damaged here, so it was never counted. The master releases the message."""
        other = parts.put(FAR_MS)
        parts.block_of(put).set_aside.add(put.index)
        assert parts.settlement.lacks(origins(origin_at(put), origin_at(other))).tolist() == [True, False]

    def test_a_replica_lacks_a_message_whose_unit_is_blank(self, parts: PartsBench, put: Put) -> None:
        """Its master became the master without the message, but with the record that settles it."""
        parts.blocks.skip_lost(put.number, 3)
        stream = block_stream(put.number)
        found = parts.settlement.lacks(origins(*(origin_of(stream, index) for index in (put.index, 1, 2, 3))))
        assert found.tolist() == [False, True, True, True]

    def test_blocks_may_differ_until_they_are_checked(self, parts: PartsBench, put: Put) -> None:
        other = parts.put(FAR_MS + BLOCK_MS)
        both = origins(origin_at(put), origin_at(other), timer_origin(0))
        assert not parts.settlement.may_differ(both).any()
        parts.settlement.note_unchecked()
        assert parts.settlement.may_differ(both).tolist() == [True, True, False]
        parts.settlement.note_checked(put.number)
        assert parts.settlement.may_differ(both).tolist() == [False, True, False]

    def test_a_block_that_comes_later_is_that_of_the_master(self, parts: PartsBench, put: Put) -> None:
        parts.settlement.note_unchecked()
        later = parts.put(FAR_MS + BLOCK_MS)
        assert parts.settlement.may_differ(origins(origin_at(put), origin_at(later))).tolist() == [True, False]
