"""The medians, ratios and verdicts of a table."""

from __future__ import annotations

import pytest

from bench.machine import machine, stolen_percent
from bench.report import Metric, Report, number, spread
from bench.ticks import trend


@pytest.fixture
def report() -> Report:
    made = Report(
        "some figures",
        [
            Metric("per_s", "sends/s", ratio_at_least=2),
            Metric("p99_ms", "p99, ms", at_most=20),
            Metric("share", "share", at_least=99),
            Metric("used", "used", below=3),
            Metric("only_theirs", "only theirs", at_most=1),
        ],
    )
    for per_s in (100.0, 300.0, 200.0):
        made.add("Apache", {"per_s": per_s, "only_theirs": 5})
    for per_s, p99_ms in ((500.0, 10.0), (390.0, 30.0), (300.0, 21.0)):
        made.add("WheelMQ", {"per_s": per_s, "p99_ms": p99_ms, "share": 99.0, "used": 3.0})
    return made


class TestReport:
    def test_medians_are_computed_per_broker(self, report: Report) -> None:
        assert report.medians("Apache") == {"per_s": 200, "only_theirs": 5}
        assert report.medians("WheelMQ")["per_s"] == 390

    def test_a_median_ignores_rounds_without_the_figure(self, report: Report) -> None:
        report.add("Apache", {"per_s": 250.0})
        assert report.medians("Apache") == {"per_s": 225, "only_theirs": 5}

    def test_a_ratio_compares_the_medians_of_both_brokers(self, report: Report) -> None:
        assert report.ratio(report.metrics[0]) == 1.95
        assert report.ratio(report.metrics[1]) is None

    def test_missed_lists_the_metrics_below_their_goal(self, report: Report) -> None:
        assert report.missed() == ["sends/s", "p99, ms", "used"]

    def test_the_text_shows_medians_ratios_and_verdicts(self, report: Report) -> None:
        lines = report.text().splitlines()
        assert lines[0] == "some figures"
        assert lines[1].split() == ["Apache", "WheelMQ", "ratio", "wanted"]
        assert lines[2].split("  ")[-1] == "MISSED" and "390 (300 to 500)" in lines[2] and ">= 2x" in lines[2]
        assert lines[4].endswith("met") and lines[5].endswith("MISSED")
        assert "medians of 3 rounds" in lines[-1]


def test_a_ratio_needs_figures_of_both_brokers() -> None:
    made = Report("alone", [Metric("per_s", "sends/s", ratio_at_least=2)])
    made.add("WheelMQ", {"per_s": 5})
    assert made.missed() == [] and "ratio" not in made.text()


def test_spread_computes_percentiles_and_maximum() -> None:
    assert spread([]) == {}
    assert spread([1, 2, 3], "stored") == {"p50_stored_ms": 2, "p99_stored_ms": 2.98, "max_stored_ms": 3}


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12345.6, "12,346"), (3.14159, "3.14"), (0.00123, "0.00123"), (250.5, "250")]
)
def test_number_rounds_to_readable_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_trend_finds_the_slope_of_a_growing_figure() -> None:
    found = trend([(turn, 100 + turn / 1024) for turn in range(30)])
    assert found["slope"] == pytest.approx(1.0)
    assert found["last"] - found["first"] == pytest.approx(20 / 1024)


def test_trend_without_turns_has_slope_zero() -> None:
    assert trend([(0, 5.0)]) == {"first": 5.0, "last": 5.0, "slope": 0.0}


def test_the_report_shows_the_stolen_processor_share(report: Report) -> None:
    before = {"processor_s": 100.0, "stolen_s": 1.0}
    assert stolen_percent(before, {"processor_s": 300.0, "stolen_s": 11.0}) == 5
    assert stolen_percent(before, before) == 0
    assert machine()["processor_s"] > machine()["stolen_s"] >= 0
    assert "% of the processor stolen" in report.text()
