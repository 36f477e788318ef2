"""A wheel of Apache's size after days: no message is lost, early or delivered twice.

Apache loses messages that are overdue by more than seven days. The places of a wheel repeat every 14 days. After a
stop of 13 days, messages for tomorrow need the places of messages that were due in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.timer import SLOTS
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ROUND_MS = 2 * SLOTS * 1000
DELAYS_MS = [1500, 7000, 31_000, HOUR_MS, 5 * HOUR_MS, DAY_MS, 2 * DAY_MS - 1, 2 * DAY_MS + 5, 3 * DAY_MS]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    with BrokerHarness(
        tmp_path,
        timer_slots=SLOTS,
        timer_roll_window_slots=2 * 24 * 3600,
        timer_lead_ms=30_000,
        file_reserved_time=24 * 365,
    ) as running:
        yield running


def send_all(harness: BrokerHarness, name: str, delays_ms: list[int]) -> dict[bytes, int]:
    """Send messages. Returns the due time of each by its body."""
    due = {}
    for i, delay_ms in enumerate(delays_ms):
        body = f"{name}{i}".encode()
        due[body] = harness.now_ms + delay_ms
        assert harness.send("T", body, delay_ms=delay_ms).code == 0
    return due


def left(harness: BrokerHarness, due: dict[bytes, int]) -> list[bytes]:
    """Return the delivered bodies. Checks that none came twice or early."""
    records = harness.read_queue("T")
    bodies = [record.message.body for record in records]
    assert len(bodies) == len(set(bodies))
    for record in records:
        assert int(record.message.properties[props.TIMER_DEQUEUE_MS]) >= due[record.message.body]
    return bodies


def same_places(harness: BrokerHarness, due: dict[bytes, int]) -> list[int]:
    """Return delays, at most the longest, whose slots have the places of those messages."""
    delays = [due_ms + ROUND_MS - harness.now_ms for due_ms in due.values()]
    return [delay_ms for delay_ms in delays if 0 < delay_ms <= 3 * DAY_MS]


def advance_three_days(harness: BrokerHarness, model: PipelineModel) -> None:
    """Advance a little more than three days, hour by hour."""
    for _ in range(3 * 24 + 1):
        harness.clock.advance(HOUR_MS)
        harness.advance(2000, model.work, 500)


@pytest.mark.parametrize("days", [8, 13, 20])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
def test_a_stop_of_days_loses_no_message(harness: BrokerHarness, days: int, clean: bool, indexed: bool) -> None:
    model = PipelineModel(harness)
    due = send_all(harness, "old", DELAYS_MS)
    harness.advance(4000, model.work if indexed else None, 500)
    assert harness.broker.parts.timer.indexed_to == (len(due) if indexed else 0)
    harness.stop() if clean else harness.crash()
    harness.clock.advance(days * DAY_MS)
    harness.start()
    assert set(left(harness, due)) == due.keys()
    fresh = send_all(harness, "new", [20, 9000, HOUR_MS, *same_places(harness, due)])
    assert days != 13 or len(fresh) > 3
    due |= fresh
    harness.advance(10_000, model.work, 500)
    invariants.check(harness.broker)
    assert {b"new0", b"new1"} <= set(left(harness, due))
    advance_three_days(harness, model)
    assert set(left(harness, due)) == due.keys()
    invariants.check(harness.broker)


@pytest.mark.parametrize("days", [8, 13, 20])
def test_days_without_a_pipeline_lose_no_message(
    harness: BrokerHarness, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest slots are scanned before a message that needs their places is indexed."""
    monkeypatch.setattr("wheelmq.delay.timer.scans.WALK_ROWS_MAX", 1)
    model = PipelineModel(harness)
    due = send_all(harness, "old", DELAYS_MS)
    harness.advance(4000, model.work, 500)
    for _ in range(days):
        harness.clock.advance(DAY_MS)
        harness.settle()
    due |= send_all(harness, "new", [20, 9000, HOUR_MS, *same_places(harness, due)])
    for _ in range(30):
        harness.advance(1000, model.work, 500)
        invariants.check(harness.broker)
    assert {body for body, due_ms in due.items() if due_ms <= harness.now_ms} == set(left(harness, due))
    advance_three_days(harness, model)
    assert set(left(harness, due)) == due.keys()
