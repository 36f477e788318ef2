"""The numbers and delete keys of pending messages of blocks, as parts of those of all generations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import PartsBench
from wheelmq.delay import intake
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of
from wheelmq.formats.kernels.journal import NOT_COPIED

NO_QUEUE = -1
"""The row of a message whose properties name no real queue."""


def origin(index: int) -> Origin:
    return origin_of(block_stream(4), index)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def rows(parts: PartsBench) -> tuple[int, int]:
    """The rows of two real queues."""
    return parts.store.queues.row("T", 0), parts.store.queues.row("U", 1)


@pytest.fixture
def in_blocks(parts: PartsBench) -> PendingInBlocks:
    return parts.in_blocks


class TestNumbers:
    def test_puts_copies_and_found_messages_count_as_pending(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park(origin(0), 11, rows[0])
        in_blocks.park_copies(integers(origin(1), origin(2)), integers(12, 13), integers(rows[0], rows[1]))
        in_blocks.add_found(integers(origin(3)), integers(14), integers(rows[1]))
        assert in_blocks.total == 4
        assert parts.pending.counts.by_queue[list(rows)].tolist() == [2, 2]

    def test_messages_that_a_start_found_were_not_parked_since_the_start(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.add_found(integers(origin(0)), integers(11), integers(rows[0]))
        parked = parts.pending.counts.table[:, intake.PARKED]
        assert parked[rows[0]] == 0
        in_blocks.park(origin(1), 12, rows[0])
        in_blocks.park_copies(integers(origin(2)), integers(13), integers(rows[0]))
        assert parts.pending.counts.table[rows[0], intake.PARKED] == 2

    def test_settled_messages_leave_the_total(self, in_blocks: PendingInBlocks, rows: tuple[int, int]) -> None:
        in_blocks.park_copies(integers(origin(0), origin(1)), integers(11, 12), integers(*rows))
        in_blocks.settle(integers(rows[1]))
        assert in_blocks.total == 1
        in_blocks.settle(integers())
        assert in_blocks.total == 1

    def test_a_message_that_was_not_copied_is_not_subtracted(
        self, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park(origin(0), 11, rows[0])
        in_blocks.settle(integers(NOT_COPIED, NOT_COPIED))
        assert in_blocks.total == 1

    def test_a_message_without_a_real_queue_counts_in_the_total_alone(
        self, parts: PartsBench, in_blocks: PendingInBlocks
    ) -> None:
        in_blocks.park(origin(0), 0, NO_QUEUE)
        in_blocks.add_found(integers(origin(1)), integers(0), integers(NO_QUEUE))
        assert in_blocks.total == 2 and not parts.pending.counts.by_queue.any()
        assert not in_blocks.outside_blocks().any()
        in_blocks.settle(integers(NO_QUEUE, NO_QUEUE))
        assert in_blocks.total == 0

    def test_numbers_outside_blocks_leave_out_each_message_of_a_block(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        parts.pending.counts.add_numbers(integers(*[5] * (max(rows) + 1)))
        in_blocks.park(origin(0), 11, rows[0])
        in_blocks.park_copies(integers(origin(1), origin(2)), integers(12, 13), integers(rows[1], rows[1]))
        assert in_blocks.outside_blocks()[list(rows)].tolist() == [5, 5]
        assert parts.pending.counts.by_queue[list(rows)].tolist() == [6, 7]


class TestKeys:
    def test_the_delete_key_of_each_pending_message_is_found(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park(origin(0), 11, rows[0])
        in_blocks.park_copies(integers(origin(1)), integers(12), integers(rows[0]))
        in_blocks.add_found(integers(origin(2)), integers(13), integers(rows[0]))
        assert [parts.pending.keys.find(key) for key in (11, 12, 13)] == [[origin(0)], [origin(1)], [origin(2)]]

    def test_a_hash_of_zero_is_no_key(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park(origin(0), 0, rows[0])
        assert parts.pending.keys.count == 0

    def test_the_last_settled_message_clears_the_keys(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park_copies(integers(origin(0), origin(1)), integers(11, 12), integers(rows[0], rows[0]))
        parts.pending.done.add(origin(0))
        in_blocks.settle(integers(rows[0]))
        assert parts.pending.keys.find(12) == [origin(1)], "the other message is still pending"
        parts.pending.done.add(origin(1))
        in_blocks.settle(integers(rows[0]))
        assert parts.pending.keys.count == 0

    def test_the_message_that_did_not_come_keeps_the_keys_of_others(
        self, parts: PartsBench, in_blocks: PendingInBlocks, rows: tuple[int, int]
    ) -> None:
        in_blocks.park(origin(0), 11, rows[0])
        in_blocks.settle(integers(NOT_COPIED))
        assert parts.pending.keys.find(11) == [origin(0)]
