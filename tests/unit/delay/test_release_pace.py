"""The pace of releases: their time in a tick, and the size of an append."""

from __future__ import annotations

import pytest

from wheelmq.delay.release_pace import BURST_SLICES, HALVINGS_MAX, URGENCY_MAX, ReleasePace


@pytest.mark.parametrize(
    ("slice_s", "share_s", "late_ms", "is_burst", "expected_s"),
    [
        (0.002, 0.0, 0, False, 0.002),
        (0.002, 0.0, 0, True, BURST_SLICES * 0.002),
        (0.002, 0.003, 0, False, 0.003),
        (0.002, 0.003, 10, False, 0.006),
        (0.002, 0.003, 60_000, False, 0.003 + BURST_SLICES * 0.002),
        (0.1, 0.003, 60_000, False, max(0.1, URGENCY_MAX * 0.003)),
        (0.002, 0.003, -5, False, 0.003),
    ],
)
def test_the_time_of_releases(slice_s: float, share_s: float, late_ms: int, is_burst: bool, expected_s: float) -> None:
    assert ReleasePace().release_seconds(slice_s, share_s, late_ms, is_burst=is_burst) == pytest.approx(expected_s)


def test_a_slow_append_is_halved_and_a_fast_one_grows_again() -> None:
    pace, limit_s = ReleasePace(), BURST_SLICES * 0.001
    seen = []
    for took_s in (limit_s * 1.1, limit_s * 1.1, limit_s, limit_s / 2, limit_s / 3, limit_s / 3, limit_s / 3):
        pace.fit(took_s, 0.001)
        seen.append(pace.halvings)
    assert seen == [1, 2, 2, 2, 1, 0, 0]
    for _ in range(HALVINGS_MAX + 2):
        pace.fit(1.0, 0.001)
    assert pace.halvings == HALVINGS_MAX


def test_without_a_slice_no_append_changes() -> None:
    pace = ReleasePace()
    pace.fit(9.0, 0.0)
    assert pace.halvings == 0
