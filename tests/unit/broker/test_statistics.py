"""Counters by topic and group, and their figures over a minute, an hour and a day."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from wheelmq.broker.handlers.runtime import runtime_info
from wheelmq.broker.statistics import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    RATES_SAMPLE_MS,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.observe import stats
from wheelmq.observe.bound_counts import WAITING_MAX, BoundCounts
from wheelmq.observe.stats import SAMPLE_MS, Stats, WindowFigures
from wheelmq.testing.harness import BrokerHarness

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Sampled:
    """A table of counters that is sampled as in a broker."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.stats = Stats(self.now_ms)
        self.stats.sample(self.now_ms)

    def pass_time(self, ms: int, *counts: tuple[str, int]) -> None:
        """Advance the time by samples, and add each count before every sample."""
        for _ in range(ms // SAMPLE_MS):
            for key, value in counts:
                self.stats.add("N", key, value)
            self.now_ms += SAMPLE_MS
            self.stats.sample(self.now_ms)

    def figures(self, key: str = "k") -> tuple[WindowFigures, WindowFigures, WindowFigures]:
        found = self.stats.figures("N", key)
        assert found is not None
        return found


@pytest.fixture
def sampled() -> Sampled:
    return Sampled()


class TestWindows:
    def test_figures_are_zero_before_the_first_sample(self, sampled: Sampled) -> None:
        assert sampled.stats.figures("N", "k") is None
        sampled.stats.add("N", "k", 5)
        assert sampled.figures() == (WindowFigures(), WindowFigures(), WindowFigures())

    def test_a_steady_rate_has_equal_figures_in_all_windows(self, sampled: Sampled) -> None:
        sampled.pass_time(10 * MINUTE_MS, ("k", 30))
        minute, hour, day = sampled.figures()
        assert minute == WindowFigures(180, 3.0, 30.0)
        assert hour == day == WindowFigures(1800, 3.0, 30.0)
        sampled.pass_time(50 * MINUTE_MS, ("k", 30))
        assert sampled.figures()[2] == WindowFigures(10_800, 3.0, 30.0)

    def test_old_counts_leave_the_windows(self, sampled: Sampled) -> None:
        sampled.pass_time(SAMPLE_MS, ("k", 12))
        assert sampled.figures()[0].sum == 12
        sampled.pass_time(MINUTE_MS)
        assert sampled.figures()[0] == WindowFigures(0, 0.0, 0.0)
        sampled.pass_time(2 * HOUR_MS)
        assert [one.sum for one in sampled.figures()] == [0, 0, 12]
        assert sampled.figures()[2].tps == pytest.approx(12 / 7270)
        sampled.pass_time(25 * HOUR_MS)
        assert sampled.stats.figures("N", "k") is None  # a counter without counts for a day is removed

    def test_a_new_counter_does_not_inherit_old_counts(self, sampled: Sampled) -> None:
        sampled.pass_time(MINUTE_MS, ("old", 100))
        sampled.stats.drop(lambda name, key: key == "old")
        sampled.stats.add("N", "new", 1)
        assert sampled.figures("new")[0] == WindowFigures()
        sampled.pass_time(SAMPLE_MS)
        assert sampled.figures("new")[0] == WindowFigures(1, 0.1, 1.0)

    def test_a_thousand_counters_are_sampled(self, sampled: Sampled) -> None:
        for i in range(1000):
            sampled.stats.add("N", str(i), i, 2)
        sampled.pass_time(SAMPLE_MS)
        assert [sampled.figures(str(i))[0].sum for i in range(1000)] == list(range(1000))
        assert sampled.figures("10")[0].average == 5.0

    def test_the_number_of_counters_is_limited(self, sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stats, "COUNTERS_MAX", 3)
        for key in "abcd":
            sampled.stats.add("N", key, 1)
        assert (len(sampled.stats), sampled.stats.total("N", "d")) == (3, 0)
        sampled.stats.drop(lambda name, key: key == "a")
        sampled.stats.add("N", "d", 1)
        assert sampled.stats.total("N", "d") == 1


@pytest.mark.parametrize("length", [1, 7, WAITING_MAX, WAITING_MAX + 1])
def test_values_are_counted_by_bound_in_arrays_of_any_length(length: int) -> None:
    counts = BoundCounts((10, 20))
    values = np.arange(3 * WAITING_MAX) % 22
    for start in range(0, len(values), length):
        counts.add(values[start : start + length])
    bounds = (10, 20, 21)
    expected = [int((values <= bound).sum()) for bound in bounds]
    assert counts.cumulated() == expected
    counts.add(np.array([10, 20, 21]))
    assert counts.cumulated() == [count + more for count, more in zip(expected, (1, 2, 3), strict=True)]


def test_a_copy_of_the_values_is_counted() -> None:
    counts = BoundCounts((10,))
    rows = np.array([5, 5])
    counts.add(rows)
    rows[:] = 50  # the journal is used again for the next round
    assert counts.cumulated() == [2, 2]


def view(harness: BrokerHarness, name: str, key: str) -> dict[str, Any] | None:
    answer = harness.ask_code(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    if answer.code:
        assert (answer.code, answer.remark) == (1, f"The stats <{name}> <{key}> not exist")
        return None
    found: dict[str, Any] = json.loads(answer.body)
    return found


class TestBroker:
    def test_puts_are_counted_by_topic(self, harness: BrokerHarness) -> None:
        assert view(harness, TOPIC_PUT_NUMS, "T") is None
        for _ in range(6):
            harness.send("T", b"x" * 100)
        size = harness.broker.parts.store.log.end
        harness.advance(SAMPLE_MS)
        numbers, sizes = view(harness, TOPIC_PUT_NUMS, "T"), view(harness, TOPIC_PUT_SIZE, "T")
        assert numbers is not None and sizes is not None
        assert numbers["statsMinute"] == {"sum": 6, "tps": 0.6, "avgpt": 1.0}
        assert sizes["statsMinute"]["sum"] == size
        assert numbers["statsDay"]["sum"] == numbers["statsHour"]["sum"] == 6
        assert harness.broker.parts.stats.put_tps("T") == 0.6

    def test_messages_from_before_the_start_are_not_counted(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.restart()
        harness.advance(SAMPLE_MS)
        assert view(harness, TOPIC_PUT_NUMS, "T") is None
        assert harness.broker.parts.stats.put_total() == 0

    def test_gets_are_counted_by_group(self, harness: BrokerHarness) -> None:
        for _ in range(3):
            harness.send("T")
        pulls = [
            harness.pull("T", offset=offset, consumerGroup="g", maxMsgNums=most) for offset, most in ((0, 2), (2, 1))
        ]
        harness.pull("T", offset=3, consumerGroup="g")
        harness.advance(SAMPLE_MS)
        numbers, sizes = view(harness, GROUP_GET_NUMS, "T@g"), view(harness, GROUP_GET_SIZE, "T@g")
        assert numbers is not None and sizes is not None
        assert (numbers["statsMinute"]["sum"], numbers["statsMinute"]["avgpt"]) == (3, 1.5)
        assert sizes["statsMinute"]["sum"] == sum(len(pulled.answer.body) for pulled in pulls)
        assert (harness.broker.parts.stats.found, harness.broker.parts.stats.missed > 0) == (2, True)

    def test_a_group_has_figures_before_the_first_sample(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.pull("T", consumerGroup="g")
        found = view(harness, GROUP_GET_NUMS, "T@g")
        assert found is not None and found["statsMinute"]["sum"] == 0

    def test_messages_sent_back_are_counted(self, harness: BrokerHarness) -> None:
        harness.send("T")
        answer = harness.ask_code(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=1)
        assert answer.code == 0
        harness.advance(SAMPLE_MS)
        found = view(harness, SNDBCK_PUT_NUMS, "T@g")
        assert found is not None and found["statsMinute"]["sum"] == 1

    def test_a_deleted_topic_or_group_loses_its_counters(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.send("U")
        for topic in "TU":
            harness.pull(topic, consumerGroup="g")
        harness.advance(SAMPLE_MS)
        harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        assert view(harness, TOPIC_PUT_NUMS, "T") is view(harness, GROUP_GET_NUMS, "T@g") is None
        assert view(harness, TOPIC_PUT_NUMS, "U") and view(harness, GROUP_GET_NUMS, "U@g")
        harness.pull("U", consumerGroup="g")  # this pull is not sampled yet
        harness.ask_code(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        assert view(harness, GROUP_GET_NUMS, "U@g") is None
        harness.send("T")
        harness.advance(SAMPLE_MS)
        found = view(harness, TOPIC_PUT_NUMS, "T")
        assert found is not None and found["statsMinute"]["sum"] == 1

    def test_totals_of_the_day_cover_only_topics_of_users(self, harness: BrokerHarness) -> None:
        harness.send("T")
        harness.send("T", delay_ms=60_000)
        harness.pull("T")
        info = runtime_info(harness.broker.parts.metric_sources)
        assert (info["msgPutTotalTodayNow"], info["msgGetTotalTodayNow"]) == (1, 1)
        assert info["putMessageTimesTotal"] == 2
        assert info["putMessageSizeTotal"] == harness.broker.parts.store.log.end

    def test_the_totals_of_the_last_mornings_are_kept(self, harness: BrokerHarness) -> None:
        harness.send("T")
        for total in (0, 1, 2):
            assert runtime_info(harness.broker.parts.metric_sources)["msgPutTotalTodayMorning"] == total
            harness.clock.advance(24 * HOUR_MS)
            harness.settle()
            harness.send("T")
        assert runtime_info(harness.broker.parts.metric_sources)["msgPutTotalYesterdayMorning"] == 2

    def test_totals_stay_constant_over_an_idle_day(self, harness: BrokerHarness) -> None:
        """Idle counters are removed, but totals never shrink: the count of a day is a difference of two totals."""
        harness.send("T")
        harness.pull("T")
        for _ in range(27):
            harness.clock.advance(HOUR_MS)
            harness.broker.parts.stats.sample()
        assert view(harness, TOPIC_PUT_NUMS, "T") is None
        info = runtime_info(harness.broker.parts.metric_sources)
        assert info["msgPutTotalTodayNow"] == info["msgPutTotalTodayMorning"] == 1
        assert info["msgGetTotalTodayNow"] == info["msgGetTotalTodayMorning"] == 1

    def test_rates_count_stored_and_received_messages(self, harness: BrokerHarness) -> None:
        harness.advance(RATES_SAMPLE_MS)
        for _ in range(3):
            harness.send("T")
        harness.pull("T", maxMsgNums=2)
        harness.advance(RATES_SAMPLE_MS)
        info = runtime_info(harness.broker.parts.metric_sources)
        assert (info["putTps"], info["getTransferredTps"]) == ("3 3 3", "2 2 2")

    def test_failed_puts_are_counted(self, harness: BrokerHarness) -> None:
        assert harness.send("T", properties={"K": "v\0"}).code != 0
        assert runtime_info(harness.broker.parts.metric_sources)["putMessageFailedTimes"] == 1


@pytest.mark.parametrize("minutes", [0, 1, 3])
def test_the_rates_of_all_counters_equal_the_single_rates(sampled: Sampled, minutes: int) -> None:
    assert sampled.stats.rates("N") == {}
    sampled.pass_time(20_000, ("old", 10))
    sampled.pass_time(minutes * MINUTE_MS, ("old", 10), ("k", 3))
    sampled.stats.add("N", "fresh", 5)  # no sample contains this count yet
    sampled.stats.add("other", "k", 5)
    found = sampled.stats.rates("N")
    assert found == {key: sampled.stats.per_second("N", key) for key in (("old", "k") if minutes else ("old",))}
    assert found["old"] == pytest.approx(1.0)
