"""The samples of the last hour, and the points of the charts."""

from __future__ import annotations

import asyncio

import pytest

from wheelmq.dashboard.charts import GAP_MS, STEP_MS, Chart, charts, count_text, rate_text, table
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.history import HOUR_MS, SAMPLES_MAX, HourHistory
from wheelmq.testing.harness import BrokerHarness

from .sample_figures import CountedRequests, sample, steady_history

NOW_MS = 1_800_000_000_000


def charts_of(history: HourHistory, now_ms: int = NOW_MS) -> dict[str, Chart]:
    return {one.key: one for one in charts(history.points(now_ms, STEP_MS), now_ms)}


def test_points_have_the_rates_between_samples() -> None:
    points = steady_history(NOW_MS, late_ms=10).points(NOW_MS, STEP_MS)
    assert {(one.puts_per_s, one.gets_per_s, one.lateness_p50_ms, one.lateness_p99_ms) for one in points} == {
        (10.0, 5.0, 10.0, 10.0)
    }
    assert 115 <= len(points) <= 121 and points[-1].pending == 360


def test_a_restart_of_the_broker_leaves_a_gap_and_no_negative_rate() -> None:
    history = HourHistory()
    history.add(sample(NOW_MS - 60_000, puts=1000))
    history.add(sample(NOW_MS - 30_000, puts=10)._replace(boot_ms=2))
    history.add(sample(NOW_MS, puts=40)._replace(boot_ms=2))
    assert [one.puts_per_s for one in history.points(NOW_MS, STEP_MS)] == [1.0]


def test_a_clock_that_was_set_back_begins_a_new_history() -> None:
    history = HourHistory()
    history.add(sample(NOW_MS))
    history.add(sample(NOW_MS - 5000))
    assert history.first_ms == NOW_MS - 5000 and history.recent(60_000) is None


def test_the_history_is_limited_to_an_hour() -> None:
    history = steady_history(NOW_MS, minutes=90)
    assert history.first_ms == NOW_MS - (SAMPLES_MAX - 1) * 10_000
    assert all(one.at_ms > NOW_MS - HOUR_MS - STEP_MS for one in history.points(NOW_MS, STEP_MS))


def test_intervals_without_releases_have_no_lateness() -> None:
    history = HourHistory()
    for i in range(3):
        history.add(sample(NOW_MS - 60_000 + i * 30_000, puts=i))
    chart = charts_of(history)["lateness"]
    assert [curve.paths for curve in chart.curves] == [[], []] and "no values" in chart.text


def test_percentiles_are_those_of_the_interval() -> None:
    history = HourHistory()
    history.add(sample(NOW_MS - 30_000, late_ms=5000, released=1000))
    before = dict(sample(0, late_ms=5000, released=1000).late_to)
    late_to = tuple(
        (bound, count + (90 if bound >= 10 else 0) + (10 if bound >= 100 else 0)) for bound, count in before.items()
    )
    history.add(sample(NOW_MS, released=1100)._replace(late_to=late_to))
    [point] = history.points(NOW_MS, STEP_MS)
    assert (point.lateness_p50_ms, point.lateness_p99_ms) == (10.0, 100.0)


def test_releases_beyond_the_last_bound_count_as_late_by_it() -> None:
    history = HourHistory()
    history.add(sample(NOW_MS - 30_000))
    history.add(sample(NOW_MS, released=5, late_ms=10**9))
    [point] = history.points(NOW_MS, STEP_MS)
    assert point.lateness_p50_ms == 60_000


def test_a_chart_joins_its_points_up_to_a_gap() -> None:
    history = HourHistory()
    for at_ms in (0, 30_000, 60_000, 60_000 + 2 * GAP_MS, 90_000 + 2 * GAP_MS, 90_000 + 4 * GAP_MS):
        history.add(sample(NOW_MS - HOUR_MS + 1000 + at_ms, puts=at_ms))
    [line, _] = charts_of(history)["throughput"].curves
    assert [len(path.split()) for path in line.paths] == [2, 2] and len(line.dots) == 1


def test_the_axes_fit_the_greatest_value() -> None:
    found = charts_of(steady_history(NOW_MS))
    assert [line.label for line in found["throughput"].rows] == ["0", "5", "10"]
    assert [line.label for line in found["pending"].rows] == ["0", "200", "400"]
    assert [line.label for line in found["lateness"].rows] == ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "60 s"]
    assert len(found["pending"].columns) in (4, 5)
    empty = charts_of(HourHistory())
    assert [line.label for line in empty["pending"].rows] == ["0", "1", "2"]


def test_a_chart_is_described_in_words() -> None:
    text = charts_of(steady_history(NOW_MS))["throughput"].text
    assert text.startswith("Throughput of the last hour. in: now 10, at most 10 at ") and "out: now 5" in text


def test_the_table_has_a_row_for_five_minutes() -> None:
    rows = table(steady_history(NOW_MS).points(NOW_MS, STEP_MS))
    assert 12 <= len(rows) <= 14 and rows[0][1:] == ["10", "5", "360", "1 ms", "1 ms"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (9, "9"), (950, "950"), (9500, "9.5k"), (95_000, "95k"), (9_500_000, "9.5M")],
)
def test_numbers_of_a_chart_are_short(value: float, text: str) -> None:
    assert rate_text(value) == text and len(count_text(value)) <= 4


def test_samples_come_from_the_broker(harness: BrokerHarness) -> None:
    requests = CountedRequests(harness)
    figures = DashboardFigures(requests, harness.clock)
    asyncio.run(figures.sample())
    for _ in range(20):
        harness.send("T")
    harness.send("T", delay_ms=60_000)
    harness.advance(10_000)
    asyncio.run(figures.sample())
    point = figures.history.recent(60_000)
    assert point is not None and point.puts_per_s == 2.0 and point.pending == 1
    assert len(requests.codes) == 2, "a sample is one request"
    requests.is_there = False
    asyncio.run(figures.sample())
    assert figures.history.recent(60_000) == point
