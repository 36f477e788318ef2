"""The times that a target can restore, from its points alone."""

from __future__ import annotations

import pytest

from wheelmq.backup.index import Point
from wheelmq.backup.plan import NotRestorable, Window, make_plan, windows


def points(*made: tuple[int, str]) -> list[Point]:
    """Return points by their times: `complete`, `part` for an incomplete one, `gap` for one after a gap."""
    return [
        Point(
            first=i,
            last=i,
            since_ms=made_ms,
            made_ms=made_ms,
            is_complete="part" not in kind,
            is_restart="gap" in kind,
        )
        for i, (made_ms, kind) in enumerate(made, 1)
    ]


def test_a_window_before_a_gap_ends_with_its_last_complete_point() -> None:
    """The captures after it did not reach the end of the store."""
    found = points((100, "complete"), (200, "complete"), (300, "part"), (400, "part"), (900, "gap"))
    assert windows(found) == [Window(100, 199), Window(900, 900)]
    assert make_plan(found, 199).history.last == 1, "the second point adds no record"
    with pytest.raises(NotRestorable, match="has nothing between"):
        make_plan(found, 250)


def test_a_single_point_before_a_gap_can_be_restored() -> None:
    found = points((100, "complete"), (100, "part"), (900, "gap"))
    assert windows(found) == [Window(100, 100), Window(900, 900)]
    assert make_plan(found, 100).history.last == 1


def test_a_time_in_a_gap_is_rejected_before_the_shipper_has_caught_up() -> None:
    found = points((100, "complete"), (200, "complete"), (900, "gap part"))
    assert windows(found) == [Window(100, 199)]
    assert make_plan(found, None).history.last == 2, "the last state that is known"
    with pytest.raises(NotRestorable, match=r"nothing complete after 1970-01-01T00:00:00.199Z"):
        make_plan(found, 950)


def test_captures_after_the_last_complete_point_count_without_a_gap() -> None:
    found = points((100, "complete"), (300, "part"))
    assert windows(found) == [Window(100, 100)]
    assert make_plan(found, None).history.last == 2
    assert make_plan(found, 5000).history.last == 2
