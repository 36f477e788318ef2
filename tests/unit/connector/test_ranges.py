"""Ranges of a batch, losses and tasks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.offsets import OffsetSpan, Queue
from pyspark_rocketmq.ranges import PACKED_ROWS, OffsetRange, Survey, settled, shares, tasks

A, B, C = (Queue("T", broker, 0) for broker in ("a", "b", "c"))
COUNTS = st.dictionaries(st.integers(0, 20).map(lambda i: Queue("T", "a", i)), st.integers(0, 1000), max_size=8)


class TestSettled:
    def test_offsets_within_a_queue_stay(self) -> None:
        assert settled({A: 5}, Survey({A: OffsetSpan(0, 9)})) == ({A: 5}, [])

    def test_a_new_queue_begins_at_its_first_message(self) -> None:
        assert settled({}, Survey({A: OffsetSpan(3, 9)})) == ({A: 3}, [])

    def test_expired_messages_are_lost_and_counted(self) -> None:
        found, (loss,) = settled({A: 2}, Survey({A: OffsetSpan(5, 9)}))
        assert found == {A: 5} and loss.rows == 3 and "[2, 5) has expired" in loss.text

    def test_a_queue_that_became_shorter_continues_at_its_end(self) -> None:
        found, (loss,) = settled({A: 12}, Survey({A: OffsetSpan(0, 9)}))
        assert found == {A: 9} and "ends at 9" in loss.text

    def test_a_queue_of_a_silent_broker_waits(self) -> None:
        assert settled({A: 2, B: 1}, Survey({B: OffsetSpan(0, 1)}, frozenset("a"))) == ({A: 2, B: 1}, [])

    def test_a_vanished_queue_is_lost(self) -> None:
        found, (loss,) = settled({A: 2}, Survey({B: OffsetSpan(0, 0)}))
        assert found == {B: 0} and "T/a/0 no longer exists" in loss.text


class TestShares:
    @given(COUNTS, st.integers(1, 3000))
    def test_a_share_is_within_its_queue_and_the_total(self, sizes: dict[Queue, int], total_max: int) -> None:
        found = shares(sizes, total_max)
        assert all(0 < count <= sizes[queue] for queue, count in found.items())
        assert sum(found.values()) == min(total_max, sum(sizes.values()))

    @given(COUNTS)
    def test_each_queue_advances_if_the_total_permits(self, sizes: dict[Queue, int]) -> None:
        filled = {queue for queue, size in sizes.items() if size}
        assert set(shares(sizes, max(1, len(filled)))) == filled

    def test_shares_are_in_proportion(self) -> None:
        assert shares({A: 900, B: 100}, 100) == {A: 90, B: 10}


class TestTasks:
    def test_small_ranges_of_a_broker_share_a_task(self) -> None:
        more = Queue("T", "a", 1)
        ranges = [OffsetRange(A, 0, 5), OffsetRange(more, 0, 5), OffsetRange(B, 0, 5), OffsetRange(C, 4, 4)]
        assert tasks(ranges, count_min=None, rows_max=None) == [(ranges[0], ranges[1]), (ranges[2],)]

    def test_large_ranges_have_tasks_of_their_own(self) -> None:
        ranges = [OffsetRange(A, 0, PACKED_ROWS), OffsetRange(Queue("T", "a", 1), 0, 1)]
        assert tasks(ranges, count_min=None, rows_max=None) == [(ranges[0],), (ranges[1],)]

    @pytest.mark.parametrize("count_min", [1, 2, 3, 7])
    def test_large_ranges_are_split_for_more_tasks(self, count_min: int) -> None:
        found = tasks([OffsetRange(A, 0, 60), OffsetRange(B, 10, 40)], count_min=count_min, rows_max=None)
        assert len(found) >= count_min
        assert [offset for (one,) in found for offset in range(one.first, one.end)] == [*range(60), *range(10, 40)]

    def test_no_task_has_more_rows_than_allowed(self) -> None:
        found = tasks([OffsetRange(A, 0, 25), OffsetRange(B, 0, 3)], count_min=None, rows_max=10)
        assert [sum(one.rows for one in task) for task in found] == [8, 8, 9, 3]

    def test_more_tasks_than_messages_are_not_planned(self) -> None:
        assert len(tasks([OffsetRange(A, 0, 3)], count_min=9, rows_max=None)) == 3
