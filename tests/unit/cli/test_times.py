"""Durations and times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.unit.zones import in_zone
from wheelmq.cli.times import clock_text, duration_text, parse_duration, parse_time, remaining_text, time_text
from wheelmq.formats.units import Millis

NOW = Millis(1_800_000_000_000)  # 2027-01-15T08:00:00Z


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the local zone, and restore it."""
    with in_zone(request.param) as name:
        yield name


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        (" 5m ", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1.5s", 1500),
        ("1h30m", 5_400_000),
        ("2D", 172_800_000),
        ("0s", 0),
        ("0.1ms", 0),
    ],
)
def test_durations_are_parsed(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["10", "1.5", ""])
def test_a_duration_without_a_unit_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="unit" if text else "write"):
        parse_duration(text)


def test_a_negative_duration_is_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        parse_duration("-5s")


@pytest.mark.parametrize("text", ["5 s", "s", "10x", "1h-3m", "１０s", "1e3s", "10s junk"])
def test_the_error_of_an_invalid_duration_names_the_format(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2027-01-15T08:00:00Z", 0),
        ("2027-01-15T08:00:00.250Z", 250),
        ("2027-01-15T09:00:00+01:00", 0),
        ("2027-01-15 08:00:01+00:00", 1000),
        ("20270115T080000Z", 0),
        ("+10s", 10_000),
        ("+1h30m", 5_400_000),
    ],
)
def test_times_are_parsed(text: str, ms: int) -> None:
    assert parse_time(text, NOW) == NOW + ms


def test_a_time_without_a_zone_is_local(zone: str) -> None:
    hours = {"UTC": 0, "Asia/Kolkata": 5.5, "America/New_York": -5}[zone]
    assert parse_time("2027-01-15T08:00", NOW) == NOW - hours * 3_600_000


def test_times_are_printed_in_the_local_zone(zone: str) -> None:
    printed = {
        "UTC": "2027-01-15T08:00:00.007+00:00",
        "Asia/Kolkata": "2027-01-15T13:30:00.007+05:30",
        "America/New_York": "2027-01-15T03:00:00.007-05:00",
    }[zone]
    assert time_text(NOW + 7) == printed
    assert clock_text(NOW + 7) == printed[11:23]
    assert parse_time(printed, NOW) == NOW + 7


@pytest.mark.parametrize(
    "text",
    [
        *("", "2027-13-01", "+", "+5", "1800000000000", "0001-01-01T00:00", "noon", "someday", "next monday"),
        *("25:00", "10:60", "7", "tomorrow noon", "tomorrow 25:00", "tomorrow at 9:00", "monday tuesday"),
    ],
)
def test_the_error_of_an_invalid_time_names_the_format(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("18:30", "2027-01-15T18:30"),
        ("9:05:07.250", "2027-01-15T09:05:07.250"),
        ("00:00", "2027-01-15T00:00"),
        ("today", "2027-01-15T00:00"),
        ("Today 23:59", "2027-01-15T23:59"),
        ("tomorrow", "2027-01-16T00:00"),
        (" tomorrow  7:30 ", "2027-01-16T07:30"),
        ("saturday", "2027-01-16T00:00"),
        ("friday 18:30", "2027-01-22T18:30"),
        ("Thursday 18:30", "2027-01-21T18:30"),
        ("2027-02-01", "2027-02-01T00:00"),
        ("2027-02-01 9:00", None),
        ("2027-02-01 09:00", "2027-02-01T09:00"),
    ],
)
def test_days_and_clock_times_are_local(text: str, moment: str | None, zone: str) -> None:
    """The 15th of January 2027 is a Friday in each of the zones."""
    if moment is None:
        with pytest.raises(ValueError, match="write"):
            parse_time(text, NOW)
        return
    assert time_text(parse_time(text, NOW)).startswith(moment)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_moment_that_the_clocks_skip_is_rejected(berlin: None) -> None:
    with pytest.raises(ValueError, match=r"02:30' does not exist here.* Write 2027-03-28T03:30\+02:00 instead"):
        parse_time("2027-03-28T02:30", NOW)
    before = parse_time("2027-03-27T20:00", NOW)
    with pytest.raises(ValueError, match="does not exist here"):
        parse_time("tomorrow 02:30", before)
    assert parse_time("2027-03-28T03:30+02:00", NOW) > NOW


def test_a_moment_that_the_clocks_show_twice_is_the_first_one(berlin: None) -> None:
    assert time_text(parse_time("2027-10-31T02:30", NOW)) == "2027-10-31T02:30:00.000+02:00"


def test_tomorrow_is_the_next_day_when_a_day_has_23_hours(berlin: None) -> None:
    noon = parse_time("2027-03-27T12:00", NOW)
    assert parse_time("tomorrow 12:00", noon) == noon + 23 * 3_600_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1945, "1.945s"),
        (60_000, "1m"),
        (90_400, "1m30s"),
        (90_500, "1m31s"),
        (3_599_500, "1h"),
        (3_600_000, "1h"),
        (7_199_999, "2h"),
        (86_399_999, "1d"),
        (93_600_000, "1d2h"),
        (90_061_000, "1d1h"),
        (-5000, "-5s"),
        (-90_000, "-1m30s"),
    ],
)
def test_durations_are_printed_short(ms: int, text: str) -> None:
    assert duration_text(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (49, "0s"),
        (950, "1s"),
        (1945, "1.9s"),
        (9_949, "9.9s"),
        (9_950, "10s"),
        (29_998, "30s"),
        (59_499, "59s"),
        (59_500, "1m"),
        (7_199_950, "2h"),
        (259_199_400, "3d"),
    ],
)
def test_remaining_times_are_rounded(ms: int, text: str) -> None:
    assert remaining_text(ms) == text
