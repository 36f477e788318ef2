"""The lag of groups and the dead letters, for the overview of a dashboard."""

from __future__ import annotations

import pytest

from tests.unit.broker.test_handlers import send_heartbeat
from tests.unit.delay.parked import due, park_raw
from wheelmq.broker import group_progress
from wheelmq.broker.backlogs import dead_letters, group_lags
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness


def commit(harness: BrokerHarness, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
    harness.broker.parts.consumer_offsets.commit(group, topic, queue_id, offset)


def lags(harness: BrokerHarness, rows_max: int = 50) -> dict[str, object]:
    return group_lags(harness.broker.parts.metric_sources, rows_max)


def test_a_lag_counts_all_queues_from_the_committed_offsets(harness: BrokerHarness) -> None:
    for queue_id, count in ((0, 5), (1, 3)):
        for _ in range(count):
            harness.send("T", queue_id=queue_id)
    commit(harness, "billing", "T", 2)
    send_heartbeat(harness, harness.connect(), group="billing")
    commit(harness, "idle", "T", 5)
    commit(harness, "idle", "T", 3, queue_id=1)
    assert lags(harness) == {
        "groups": [{"group": "billing", "topic": "T", "messages": 6, "members": 1}],
        "groups_in_all": 1,
        "groups_complete": True,
        "lag_in_all": 6,
    }
    header = headers.ConsumeStatsHeader(consumer_group="billing")
    answer = harness.ask(Command(code=RequestCode.GET_CONSUME_STATS, ext=headers.write(header)))
    assert answer.body.count(b'"brokerOffset":5') == 1, "the same table as that of wheelmq lag"


def test_the_largest_lags_come_first(harness: BrokerHarness) -> None:
    for topic, count in (("A", 1), ("B", 3), ("C", 2)):
        for _ in range(count):
            harness.send(topic, queue_id=0)
        commit(harness, "g", topic, 0)
    found = lags(harness, rows_max=2)
    assert [row["topic"] for row in found["groups"]] == ["B", "C"]  # type: ignore[attr-defined]
    assert (found["groups_in_all"], found["lag_in_all"]) == (3, 6)


def test_a_deleted_topic_has_no_lag(harness: BrokerHarness) -> None:
    harness.send("T", queue_id=0)
    commit(harness, "g", "T", 0)
    commit(harness, "g", "Gone", 0)
    assert lags(harness)["lag_in_all"] == 1


def test_an_overview_looks_at_a_limited_number_of_queues(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.send("T", queue_id=0)
    commit(harness, "g", "T", 0)
    monkeypatch.setattr(group_progress, "QUEUES_MAX", 1)
    assert lags(harness) == {"groups": [], "groups_in_all": 0, "groups_complete": False, "lag_in_all": 0}


def test_dead_letters_count_by_group(harness: BrokerHarness) -> None:
    for group, count in (("few", 1), ("many", 2)):
        for _ in range(count):
            harness.send(f"%DLQ%{group}", queue_id=0)
    sources = harness.broker.parts.metric_sources
    assert dead_letters(sources, 50) == {
        "dead_letters": [{"group": "many", "messages": 2}, {"group": "few", "messages": 1}],
        "dead_letters_in_all": 3,
        "timer_dead_letters": 0,
    }
    assert len(dead_letters(sources, 1)["dead_letters"]) == 1


def test_dead_letters_of_the_timer_count_apart(harness: BrokerHarness) -> None:
    park_raw(harness, {"own": "x", **due(1000)})
    harness.advance(1000)
    found = dead_letters(harness.broker.parts.metric_sources, 50)
    assert (found["dead_letters_in_all"], found["timer_dead_letters"]) == (0, 1)
