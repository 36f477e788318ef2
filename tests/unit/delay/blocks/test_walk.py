"""The walk over blocks: S moves over empty seconds, and a tick arms the messages that no turn armed in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, LEAD_MS, T0, PartsBench
from wheelmq.delay.blocks.walk import NEAR_MS
from wheelmq.formats.units import Millis
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk

S0 = T0 + LEAD_MS
"""S of a new bench: the end of the lead."""


def tick_at(parts: PartsBench, after_ms: int) -> None:
    """Tick `after_ms` after T0."""
    parts.walk.tick(Millis(T0 + after_ms))


class TestS:
    def test_s_begins_at_the_end_of_the_lead(self, parts: PartsBench) -> None:
        assert parts.walk.walked_ms == S0 == parts.walk.lead_end_ms(Millis(T0 + 999))
        assert parts.walk.lead_end_ms(Millis(T0 + 1000)) == S0 + 1000

    def test_s_moves_over_empty_seconds_to_the_next_message(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(T0 + 7300)
        tick_at(parts, 4000)
        assert parts.walk.walked_ms == T0 + 7000 and not parts.is_armed(put)

    def test_without_messages_s_moves_to_the_end_of_the_lead(self, parts: PartsBench) -> None:
        tick_at(parts, 4000)
        assert parts.walk.walked_ms == T0 + 4000 + LEAD_MS

    @pytest.mark.parametrize(("due_ms", "s_ms"), [(7001, 7000), (8000, 7000), (8001, 8000)])
    def test_an_entry_contains_the_messages_after_its_start(self, parts: PartsBench, due_ms: int, s_ms: int) -> None:
        parts.put_on_disk(T0 + due_ms)
        tick_at(parts, 5000)
        assert parts.walk.walked_ms == T0 + s_ms

    def test_s_stays_while_a_plan_is_under_way(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + 7500)
        parts.clock.advance(3000)
        assert parts.next_plan() is not None
        tick_at(parts, 3900)
        assert parts.walk.walked_ms == S0
        parts.timer.turns.take_back()
        tick_at(parts, 3900)
        assert parts.walk.walked_ms == T0 + 7000

    def test_s_never_moves_back(self, parts: PartsBench) -> None:
        tick_at(parts, 4000)
        tick_at(parts, -60_000)
        assert parts.walk.walked_ms == T0 + 4000 + LEAD_MS
        parts.walk.walk_to(T0)
        assert parts.walk.walked_ms == T0 + 4000 + LEAD_MS

    def test_a_start_counts_the_block_of_s_alone(self, parts: PartsBench) -> None:
        now, later = parts.put_on_disk(T0 + 8000), parts.put_on_disk(T0 + 3 * BLOCK_MS)
        parts.kill()
        assert now.number in parts.wheel and later.number not in parts.wheel
        assert [counts.sum() for counts in parts.wheel.between(S0, S0 + BLOCK_MS).values()] == [1]


class TestNear:
    def test_a_tick_arms_a_message_that_no_turn_armed(self, parts: PartsBench) -> None:
        put = parts.put_on_disk(T0 + 7300)
        tick_at(parts, 4000)
        next_ms = parts.walk.next_ms()
        assert next_ms == T0 + 7000 - NEAR_MS
        tick_at(parts, next_ms - T0 - 1)
        assert not parts.is_armed(put)
        tick_at(parts, next_ms - T0)
        assert parts.is_armed(put) and parts.walk.walked_ms == T0 + 8000
        assert parts.pending.armed_by["block_lane"] == 1

    def test_a_tick_arms_its_messages_while_a_plan_is_under_way(self, parts: PartsBench) -> None:
        put, later = parts.put_on_disk(T0 + 5500), parts.put_on_disk(T0 + 7500)
        parts.clock.advance(3000)
        assert parts.next_plan() is not None
        tick_at(parts, 4000)
        assert parts.are_armed([put, later]) == [True, False]
        assert parts.walk.walked_ms == T0 + 6000

    def test_a_tick_arms_each_message_of_the_second_in_all_blocks(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(T0 + due_ms) for due_ms in (9600, 10_000, 9700, 10_500, 9700)]
        tick_at(parts, 8500)
        assert parts.are_armed(puts) == [True, True, True, False, True]

    def test_a_clock_that_jumps_leaves_no_message_behind(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(T0 + due_ms) for due_ms in (7000, 19_999, 20_000, 45_000, 90_000)]
        tick_at(parts, 50_000)
        assert parts.are_armed(puts) == [True, True, True, True, False]
        assert parts.walk.walked_ms == T0 + 52_000

    def test_armed_records_wait_for_the_prefetcher(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(T0 + 7300), parts.put_on_disk(T0 + 7400)]
        tick_at(parts, 6500)
        (records,) = parts.walked.take()
        assert records.positions.tolist() == [put.position for put in puts]
        assert records.sizes.tolist() == [put.size for put in puts]
        assert records.files.file_at(0).path.is_relative_to(parts.block_of(puts[0]).paths.log)

    def test_without_counted_messages_no_tick_is_needed(self, parts: PartsBench) -> None:
        assert parts.walk.next_ms() is None
        parts.put_on_disk(T0 + 7300)
        tick_at(parts, 300)
        assert parts.walk.next_ms() is not None


class TestNotOnDisk:
    def test_a_message_that_is_not_on_disk_is_armed_as_s_passes_it(self, parts: PartsBench) -> None:
        put, later = parts.put(T0 + 6500), parts.put(T0 + 9500)
        tick_at(parts, 1000)
        assert parts.walk.walked_ms == T0 + 6000 and parts.are_armed([put, later]) == [False, False]
        tick_at(parts, 2000)
        assert parts.walk.walked_ms == T0 + 7000 and parts.are_armed([put, later]) == [True, False]
        assert len(parts.walked) == 0, "its record is in memory"

    def test_only_messages_on_disk_are_counted(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + 6500)
        parts.put(T0 + 6600)
        parts.walk.count_near(S0)
        assert [counts.tolist() for counts in parts.wheel.between(S0, S0 + 2000).values()] == [[0, 1]]
        parts.blocks.flush()
        parts.walk.count_near(S0)
        assert [counts.tolist() for counts in parts.wheel.between(S0, S0 + 2000).values()] == [[0, 2]]

    def test_a_lost_index_is_never_armed(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + 8000)
        lost = parts.put(T0 + 8100)
        parts.settle_on_disk(lost)
        parts.cut_power()
        parts.walk.arm_uncounted(T0 + BLOCK_MS)
        assert parts.block_of(lost).is_behind and not parts.is_armed(lost)


class TestBlocks:
    def test_a_block_is_counted_when_it_comes_near(self, parts: PartsBench) -> None:
        now, soon = parts.put_on_disk(T0 + 9000), parts.put_on_disk(T0 + BLOCK_MS)
        far = parts.put_on_disk(T0 + 2 * BLOCK_MS)
        parts.walk.count_near(T0 + BLOCK_MS - 1001)
        assert now.number in parts.wheel and soon.number not in parts.wheel
        parts.walk.count_near(T0 + BLOCK_MS - 1000)
        assert soon.number in parts.wheel and far.number not in parts.wheel

    def test_a_block_leaves_the_wheel_when_s_has_passed_it(self, parts: PartsBench) -> None:
        put, later = parts.put_on_disk(T0 + 9000), parts.put_on_disk(T0 + 14_500)
        tick_at(parts, 8500)
        assert parts.is_armed(put) and parts.walk.walked_ms == T0 + BLOCK_MS
        assert put.number not in parts.wheel and later.number in parts.wheel
        parts.walk.count_near(T0 + 13_000)
        assert put.number not in parts.wheel, "a block before S is not counted again"

    def test_a_message_at_the_start_of_a_block_is_armed_with_a_short_lead(
        self, tmp_path: Path, disk: SimulatedDisk, clock: ManualClock
    ) -> None:
        """S moves up to two seconds ahead of the clock, also past the end of a shorter lead."""
        parts = PartsBench(tmp_path / "short", disk, clock, lead_ms=500)
        put = parts.put_on_disk(T0 + BLOCK_MS)
        for after_ms in range(7000, 10_000, 100):
            tick_at(parts, after_ms)
        assert parts.walk.walked_ms >= T0 + BLOCK_MS and parts.is_armed(put)


class TestLead:
    def test_s_falls_short_while_messages_wait_for_a_scan(self, parts: PartsBench) -> None:
        """S is short when it is less than two thirds of the lead ahead."""
        parts.put_on_disk(T0 + 5500)
        tick_at(parts, 300)
        assert not parts.walk.runs_short(Millis(S0 - LEAD_MS * 2 // 3))
        assert parts.walk.runs_short(Millis(S0 - LEAD_MS * 2 // 3 + 1))

    def test_an_empty_lead_never_falls_short(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + 9500)
        tick_at(parts, 300)
        assert not parts.walk.runs_short(Millis(S0 - 1000))

    def test_new_messages_are_armed_through_the_window_of_the_plan(self, parts: PartsBench) -> None:
        assert parts.walk.armed_through_ms() == S0
        parts.put_on_disk(T0 + 7500)
        parts.clock.advance(4000)
        plan = parts.next_plan()
        assert plan is not None and plan.blocks is not None
        assert parts.walk.armed_through_ms() == plan.blocks.through_ms == T0 + 9000
        tick_at(parts, 9500)
        assert parts.walk.armed_through_ms() == parts.walk.walked_ms == T0 + 11_000
