"""Counts of pending messages by due time: by minute, hour and day of local time."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterator

import pytest

from tests.unit.zones import in_zone
from wheelmq.dashboard import due_counts
from wheelmq.dashboard.due_counts import DAY_MS, HOUR_MS, HOURS, MINUTE_MS, QUARTER_MS, DueCounter, DueSteps
from wheelmq.testing.harness import BrokerHarness

from .sample_figures import CountedRequests


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """A time zone of the process. That of India has a half hour."""
    with in_zone(request.param) as name:
        yield name


def at(text: str) -> int:
    """Return a local time in milliseconds since 1970."""
    return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)


def test_hours_and_days_are_those_of_local_time(zone: str) -> None:
    now_ms = at("2026-03-10T22:40:00")
    dues = [
        "2026-03-10T22:45:00",
        "2026-03-10T23:15:00",
        "2026-03-10T23:45:00",
        "2026-03-11T00:00:00",
        "2026-05-01T12:00",
    ]
    found = DueSteps(now_ms, {at(one): 2 for one in dues})
    hours = dict(map(tuple, found.by_hour()))  # type: ignore[arg-type]
    assert len(hours) == HOURS and min(hours) == at("2026-03-10T22:00:00")
    assert {start_ms: count for start_ms, count in hours.items() if count} == {
        at("2026-03-10T22:00:00"): 2,
        at("2026-03-10T23:00:00"): 4,
        at("2026-03-11T00:00:00"): 2,
    }
    assert found.by_day() == [[at("2026-03-10"), 6], [at("2026-03-11"), 2], [at("2026-05-01"), 2]]


def test_a_day_on_which_clocks_change_is_one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        dues = ["2026-03-29T00:30:00", "2026-03-29T04:00:00", "2026-03-29T23:45:00", "2026-10-25T23:45:00"]
        found = DueSteps(at("2026-03-28T12:00:00"), {at(one): 1 for one in dues})
        assert found.by_day() == [[at("2026-03-29"), 3], [at("2026-10-25"), 1]]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_rows_begin_with_the_running_step() -> None:
    assert DueSteps(125_000, {120_000: 3}).rows(MINUTE_MS, 2) == [[120_000, 3], [180_000, 0]]


def test_a_count_continues_until_all_messages_are_counted(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request covers 2 places here, and one call 3 requests."""
    monkeypatch.setattr("wheelmq.delay.listing.PLACES_MAX", 2)
    monkeypatch.setattr(due_counts, "REQUESTS_MAX", 3)
    for i in range(20):
        harness.send("T", delay_ms=HOUR_MS + i)
    counter = DueCounter(CountedRequests(harness), QUARTER_MS, 2 * DAY_MS // QUARTER_MS)

    async def count() -> tuple[DueSteps, int]:
        for calls in range(1, 50):
            found = await counter.advance(harness.now_ms)
            if found is not None:
                return found, calls
        raise AssertionError("the count does not end")

    found, calls = asyncio.run(count())
    assert sum(found.counts.values()) == 20 and calls > 1
    harness.send("T", delay_ms=HOUR_MS)
    found, _ = asyncio.run(count())
    assert sum(found.counts.values()) == 21, "the next count begins at the first place"
