"""The blocks in a turn of the pipeline: the planned window, the check of the rows, and their effect."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.delay.blocks.parts_bench import BLOCK_MS, LEAD_MS, T0, PartsBench
from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.block import Put
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import BlockWindow, TurnPlan, TurnRejected
from wheelmq.formats.disk.origin import block_stream
from wheelmq.formats.units import Millis

S0 = T0 + LEAD_MS
NOW_MS = Millis(T0 + 4250)
"""Time of a plan. Its window is from S0 to THROUGH_MS."""
THROUGH_MS = T0 + 9000


def window_of(parts: PartsBench) -> BlockWindow:
    window = parts.turns.window(NOW_MS)
    assert window is not None
    return window


def plan_now(parts: PartsBench) -> tuple[TurnPlan, TurnRows]:
    """Plan a turn at NOW_MS. Returns the plan and the rows that its task reads."""
    parts.clock.advance(NOW_MS - parts.clock.now_ms())
    plan = parts.next_plan()
    assert plan is not None
    return plan, parts.read(plan)


class TestWindow:
    def test_a_window_names_the_counted_units_of_each_block(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(T0 + due_ms) for due_ms in (5500, 9000, 9001, 10_500)]
        window = window_of(parts)
        assert (window.after_ms, window.through_ms, window.rows) == (S0, THROUGH_MS, 2)
        folder = parts.block_of(puts[0]).paths.folder.name
        assert window.blocks == [(puts[0].number, folder, 3)], "the other block has no message in the window"

    def test_a_window_has_the_messages_of_several_blocks(self, parts: PartsBench) -> None:
        first, second = parts.put_on_disk(T0 + 9500), parts.put_on_disk(T0 + 10_500)
        window = parts.turns.window(Millis(T0 + 8000))
        assert window is not None and window.rows == 2
        assert [number for number, _, _ in window.blocks] == [first.number, second.number]

    def test_without_counted_messages_there_is_no_window(self, parts: PartsBench) -> None:
        parts.put(T0 + 5500)
        assert parts.turns.window(NOW_MS) is None, "the message is not on disk"
        parts.blocks.flush()
        assert parts.turns.window(Millis(T0 + 250)) is None, "the lead ends at S"
        assert parts.turns.window(Millis(T0 - BLOCK_MS)) is None, "the clock was set back"
        assert window_of(parts).rows == 1

    def test_a_window_includes_messages_flushed_since_the_tick(self, parts: PartsBench) -> None:
        parts.put(T0 + 5500)
        parts.walk.tick(Millis(T0 + 300))
        parts.blocks.flush()
        assert window_of(parts).rows == 1

    @pytest.mark.parametrize(
        ("rows_max", "seconds", "rows"), [(1, 1, 2), (2, 1, 2), (3, 2, 3), (4, 3, 4), (5, 4, 5), (9, 4, 5)]
    )
    def test_a_window_has_whole_seconds_up_to_a_limit(
        self, parts: PartsBench, monkeypatch: pytest.MonkeyPatch, rows_max: int, seconds: int, rows: int
    ) -> None:
        monkeypatch.setattr("wheelmq.delay.blocks.turns.ROWS_MAX", rows_max)
        for due_ms in (5500, 5600, 6500, 7500, 8500):
            parts.put_on_disk(T0 + due_ms)
        window = window_of(parts)
        assert (window.through_ms, window.rows) == (S0 + seconds * 1000, rows)

    def test_messages_that_the_scan_cannot_find_are_armed_with_the_plan(self, parts: PartsBench) -> None:
        """They are not on disk when the plan is made, and the flush may count them before its commit."""
        parts.put_on_disk(T0 + 5500)
        late, later = parts.put(T0 + 6500), parts.put(T0 + 9500)
        plan, rows = plan_now(parts)
        assert plan.blocks is not None and plan.blocks.rows == len(rows) == 1
        assert parts.are_armed([late, later]) == [True, False]
        parts.blocks.flush()
        parts.walk.count_near(THROUGH_MS)
        parts.commit(plan, rows)
        assert parts.walk.walked_ms == THROUGH_MS and not parts.is_armed(later)


class TestCheck:
    @pytest.fixture
    def puts(self, parts: PartsBench) -> list[Put]:
        return [parts.put_on_disk(T0 + due_ms) for due_ms in (5500, 6500, 6600, 8500)]

    def test_the_rows_of_the_window_are_accepted(self, parts: PartsBench, puts: list[Put]) -> None:
        plan, rows = plan_now(parts)
        assert len(rows) == len(puts)
        parts.turns.check(plan.blocks, [rows])
        parts.turns.check(plan.blocks, [rows[:2], rows[2:]])

    @pytest.mark.parametrize(
        ("chosen", "why"),
        [
            ([0, 1, 2], "has 1 messages, but 0 rows"),
            ([0, 2, 3], "has 2 messages, but 1 rows"),
            ([0, 1, 1, 2, 3], "two rows have the same message"),
            ([1, 0, 2, 3], "not in the order of their fire times"),
            ([], "the rows are of blocks \\[\\]"),
        ],
    )
    def test_other_rows_than_those_counted_are_rejected(
        self, parts: PartsBench, puts: list[Put], chosen: list[int], why: str
    ) -> None:
        plan, rows = plan_now(parts)
        with pytest.raises(TurnRejected, match=why):
            parts.turns.check(plan.blocks, [rows[np.array(chosen, np.int64)]])
        assert parts.walk.walked_ms == S0 and parts.are_armed(puts) == [False] * 4

    def test_a_row_that_is_not_its_unit_is_rejected(self, parts: PartsBench, puts: list[Put]) -> None:
        plan, rows = plan_now(parts)
        rows["position"][1] += 1
        with pytest.raises(TurnRejected, match="does not agree with its unit"):
            parts.turns.check(plan.blocks, [rows])

    def test_without_a_window_no_row_is_accepted(self, parts: PartsBench, puts: list[Put]) -> None:
        plan, rows = plan_now(parts)
        parts.turns.check(None, [])
        with pytest.raises(TurnRejected, match="received 4 rows, but the plan has none"):
            parts.turns.check(None, [rows])
        parts.commit(plan, rows)
        with pytest.raises(TurnRejected, match="received 4 rows, but the plan has none"):
            parts.turns.check(plan.blocks, [rows])

    def test_the_next_plan_replaces_one_that_was_dropped(self, parts: PartsBench, puts: list[Put]) -> None:
        plan_now(parts)
        parts.timer.turns.take_back()
        parts.put_on_disk(T0 + 7500)
        plan, rows = plan_now(parts)
        assert len(rows) == 5
        parts.commit(plan, rows)
        assert parts.are_armed(puts) == [True] * 4

    def test_the_rows_of_a_removed_block_are_accepted(self, parts: PartsBench, puts: list[Put]) -> None:
        """A tick armed the messages of a slow turn, and they were released. The rows arm nothing."""
        plan, rows = plan_now(parts)
        parts.walk.tick(Millis(T0 + BLOCK_MS))
        parts.settle_on_disk(*puts)
        parts.settlement.flag(parts.store.log.synced)
        ((job, done),) = parts.expiry.jobs(Millis(T0 + BLOCK_MS))
        job()
        done(None)
        assert len(parts.blocks) == 0 and parts.pending.done.has_ended(block_stream(puts[0].number))
        armed, walked_ms = parts.pending.armed.count, parts.walk.walked_ms
        parts.commit(plan, rows)
        assert parts.pending.armed.count == armed and parts.walk.walked_ms == walked_ms


class TestCommit:
    def test_a_commit_arms_the_rows_and_moves_s(self, parts: PartsBench) -> None:
        puts = [parts.put_on_disk(T0 + due_ms) for due_ms in (5500, 8500, 9500)]
        plan, rows = plan_now(parts)
        assert parts.are_armed(puts) == [False, False, False]
        parts.commit(plan, rows)
        assert parts.are_armed(puts) == [True, True, False]
        assert parts.walk.walked_ms == THROUGH_MS and parts.pending.armed_by["pipeline"] == 2
        armed = np.concatenate(parts.pending.armed.firing(0, THROUGH_MS))
        assert sorted(armed[:, ref.FIRE_MS].tolist()) == [T0 + 5500, T0 + 8500]
        assert set(armed[:, ref.ENQUEUE_MS].tolist()) == {plan.write_ms}

    def test_a_commit_hands_the_records_of_each_block_to_the_prefetcher(self, parts: PartsBench) -> None:
        first, second = parts.put_on_disk(T0 + 9500), parts.put_on_disk(T0 + 10_500)
        parts.clock.advance(8000)
        plan = parts.next_plan()
        assert plan is not None
        rows = parts.read(plan)
        assert len(parts.walked) == 0
        parts.commit(plan, rows)
        found = [(records.positions.tolist(), records.sizes.tolist()) for records in parts.walked.take()]
        assert found == [([first.position], [first.size]), ([second.position], [second.size])]

    def test_a_settled_message_is_not_armed_again(self, parts: PartsBench) -> None:
        put, other = parts.put_on_disk(T0 + 5500), parts.put_on_disk(T0 + 5600)
        plan, rows = plan_now(parts)
        parts.settle_on_disk(put)
        parts.commit(plan, rows)
        assert parts.are_armed([put, other]) == [False, True] and parts.pending.armed.count == 1

    def test_a_commit_without_a_window_leaves_s(self, parts: PartsBench) -> None:
        parts.turns.commit(None, [], 0)
        assert parts.walk.walked_ms == S0 and parts.pending.armed.count == 0

    def test_a_message_that_comes_during_the_turn_is_armed_once(self, parts: PartsBench) -> None:
        parts.put_on_disk(T0 + 5500)
        plan, rows = plan_now(parts)
        put = parts.put_on_disk(T0 + 8000)
        assert parts.is_armed(put)
        parts.commit(plan, rows)
        assert parts.pending.armed.count == 2
