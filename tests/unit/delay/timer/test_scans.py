"""The times S and A, and the slots that the next turn scans."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.delay.timer.scans import SlotScans, falls_short
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.units import Millis
from wheelmq.testing.disk import SimulatedDisk

T0 = Millis(1_800_000_000_000)
LEAD_MS = 6000


@pytest.fixture
def wheel(disk: SimulatedDisk, tmp_path: Path) -> TimerWheel:
    return TimerWheel(disk, tmp_path / "timerwheel", 1000, slots=20)


@pytest.fixture
def scans(wheel: TimerWheel) -> SlotScans:
    found = SlotScans(wheel, LEAD_MS)
    found.walk_to(T0)
    return found


def fill(wheel: TimerWheel, *seconds: int) -> None:
    """Put one unit into each slot, by its seconds after T0."""
    for position, second in enumerate(seconds):
        wheel.put(T0 + 1000 * second, position, deletes=False)


def test_the_lead_ends_at_a_slot(scans: SlotScans) -> None:
    assert scans.lead_end_ms(Millis(T0 + 999)) == T0 + LEAD_MS
    assert scans.lead_end_ms(Millis(T0 + 1000)) == T0 + LEAD_MS + 1000


class TestWalk:
    def test_a_turn_scans_the_slots_from_s_to_the_end_of_the_lead(self, wheel: TimerWheel, scans: SlotScans) -> None:
        fill(wheel, 0, 1, 1, 6, 7)
        assert scans.next_walk(T0) == (T0 + LEAD_MS, 3)
        assert scans.walked_through_ms == T0

    def test_a_turn_begins_where_the_broker_ended(self, wheel: TimerWheel, scans: SlotScans) -> None:
        fill(wheel, 1, 2, 3)
        scans.note_scanned(T0 + 2000)
        assert scans.next_walk(T0) == (T0 + LEAD_MS, 1)
        assert scans.walked_through_ms == T0 + 2000

    @pytest.mark.parametrize(("rows_max", "seconds", "rows"), [(1, 1, 2), (2, 1, 2), (3, 2, 3), (4, 6, 4)])
    def test_a_turn_scans_whole_slots_up_to_a_limit(
        self,
        wheel: TimerWheel,
        scans: SlotScans,
        monkeypatch: pytest.MonkeyPatch,
        rows_max: int,
        seconds: int,
        rows: int,
    ) -> None:
        monkeypatch.setattr("wheelmq.delay.timer.scans.WALK_ROWS_MAX", rows_max)
        fill(wheel, 1, 1, 2, 3)
        assert scans.next_walk(T0) == (T0 + 1000 * seconds, rows)


class TestEmptySlots:
    def test_s_moves_to_the_slot_before_the_next_unit(self, wheel: TimerWheel, scans: SlotScans) -> None:
        fill(wheel, 4)
        scans.advance_over_empty_slots(T0)
        assert scans.walked_through_ms == T0 + 3000 and scans.has_units_to_walk(T0)

    def test_without_units_s_moves_to_the_end_of_the_lead(self, scans: SlotScans) -> None:
        scans.advance_over_empty_slots(T0)
        assert scans.walked_through_ms == T0 + LEAD_MS and not scans.has_units_to_walk(T0)

    def test_s_never_moves_back(self, scans: SlotScans) -> None:
        scans.advance_over_empty_slots(Millis(T0 - 60_000))
        assert scans.walked_through_ms == T0


class TestShortness:
    @pytest.mark.parametrize(("ahead_ms", "is_short"), [(3999, True), (4000, False)])
    def test_two_thirds_of_the_lead_are_enough(self, ahead_ms: int, is_short: bool) -> None:
        assert falls_short(T0 + ahead_ms, T0, LEAD_MS) == is_short

    def test_only_units_that_wait_make_scans_run_short(self, wheel: TimerWheel, scans: SlotScans) -> None:
        assert not scans.run_short(T0)
        fill(wheel, 3)
        assert scans.run_short(T0)


def test_a_scan_of_the_broker_moves_a_when_it_has_ended(scans: SlotScans) -> None:
    scans.note_scanning(T0 + 3000)
    assert (scans.scanning_through_ms, scans.covered_through_ms) == (T0 + 3000, T0)
    scans.note_scanned(T0 + 3000)
    assert scans.covered_through_ms == T0 + 3000
    scans.note_scanned(T0 + 1000)
    assert scans.scanned_through_ms == T0 + 3000
