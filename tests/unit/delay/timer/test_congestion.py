"""Slots that are too full: their counts, and the sends that they reject."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.delay.settings import NO_LIMIT
from wheelmq.delay.timer.congestion import Congestion
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.parked import delete_key
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

DUE_MS = START_MS + 5000
SLOT_S = (DUE_MS - 1) // 1000


def filled(limit: int, count: int) -> Congestion:
    congestion = Congestion(limit, 1000, 120)
    for _ in range(count):
        congestion.add(DUE_MS, START_MS)
    return congestion


def refused_share(limit: int, count: int) -> float:
    randomness, congestion = Random(1), filled(limit, count)
    return sum(congestion.rejects(DUE_MS, randomness) for _ in range(2000)) / 2000


class TestRejections:
    def test_no_send_is_rejected_up_to_the_limit(self) -> None:
        assert [refused_share(100, count) for count in (0, 50, 100)] == [0, 0, 0]

    def test_every_send_is_rejected_from_twice_the_limit_on(self) -> None:
        assert [refused_share(100, count) for count in (200, 201, 5000)] == [1, 1, 1]

    @pytest.mark.parametrize("over", [1, 25, 50, 75, 99])
    def test_the_rejected_share_grows_above_the_limit(self, over: int) -> None:
        assert refused_share(100, 100 + over) == pytest.approx(over / 100, abs=0.04)

    def test_a_limit_of_zero_accepts_sends_only_to_empty_slots(self) -> None:
        assert (refused_share(0, 0), refused_share(0, 1)) == (0, 1)

    def test_a_full_slot_rejects_only_sends_to_itself(self) -> None:
        congestion = filled(1, 10)
        slot_ms = SLOT_S * 1000
        for due_ms in (slot_ms, slot_ms + 1001, DUE_MS + 120_000):
            assert not congestion.rejects(due_ms, Random(1))
        for due_ms in (slot_ms + 1, slot_ms + 1000):
            assert congestion.rejects(due_ms, Random(1))
        assert congestion.refused == 2

    def test_slots_are_not_counted_without_a_limit(self) -> None:
        congestion = filled(NO_LIMIT, 10)
        assert (congestion.waiting(DUE_MS), len(congestion.table)) == (0, 1)
        assert not congestion.rejects(DUE_MS, Random(1))


class TestCounts:
    def test_a_place_of_the_table_counts_only_one_slot_time(self) -> None:
        congestion = filled(10, 3)
        congestion.add(DUE_MS + 120_000, START_MS + 120_000)
        assert [congestion.waiting(DUE_MS), congestion.waiting(DUE_MS + 120_000)] == [0, 1]
        congestion.remove(DUE_MS)
        assert congestion.waiting(DUE_MS + 120_000) == 1

    def test_a_count_never_falls_below_zero(self) -> None:
        congestion = filled(10, 1)
        congestion.remove(DUE_MS)
        congestion.remove(DUE_MS)
        assert congestion.waiting(DUE_MS) == 0

    def test_a_message_beyond_the_table_counts_after_its_roll(self) -> None:
        congestion = Congestion(10, 1000, 120)
        due_ms = START_MS + 200_000
        congestion.add(due_ms, START_MS)
        assert congestion.waiting(due_ms) == 0
        congestion.roll(due_ms, START_MS, START_MS + 60_000)
        assert congestion.waiting(due_ms) == 0
        congestion.roll(due_ms, START_MS + 60_000, START_MS + 100_000)
        congestion.roll(due_ms, START_MS + 100_000, START_MS + 150_000)
        assert congestion.waiting(due_ms) == 1

    @given(
        dues=st.lists(st.integers(START_MS + 1, START_MS + 130_000), max_size=40),
        precision_ms=st.sampled_from([100, 1000]),
    )
    def test_recovery_restores_the_counts(self, dues: list[int], precision_ms: int) -> None:
        one, other = Congestion(10, precision_ms, 120), Congestion(10, precision_ms, 120)
        for due_ms in dues:
            one.add(due_ms, START_MS)
        other.count(np.array(dues, np.int64), START_MS)
        assert [one.waiting(due_ms) for due_ms in dues] == [other.waiting(due_ms) for due_ms in dues]


def pending_by_slot(harness: BrokerHarness, bodies: dict[bytes, int]) -> Counter[int]:
    return Counter((due_ms - 1) // 1000 for due_ms in bodies.values() if due_ms > harness.now_ms)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_each_slot_counts_its_waiting_messages(tmp_path: Path, clean: bool) -> None:
    """Holds over near and far sends, cancels, rolls and a stop."""
    with BrokerHarness(tmp_path, timer_congest_num_each_slot=1000) as harness:
        model, randomness = PipelineModel(harness), Random(3)
        due_ms: dict[bytes, int] = {}
        for i in range(60):
            delay_ms = randomness.choice((700, 4000, 4000, 30_000, 90_000, 150_000, 200_000))
            due_ms[b"%d" % i] = harness.now_ms + delay_ms
            answer = harness.send("T", b"%d" % i, delay_ms=delay_ms, properties={props.UNIQ_KEY: f"{i}"})
            assert answer.code == 0
            harness.advance(randomness.choice((0, 0, 350)), model.work, 500)
        for i in (3, 17, 40):
            properties = {props.TIMER_DEL_UNIQKEY: delete_key("T", f"{i}")}
            if harness.send("T", b"x", delay_ms=5000, properties=properties).ext["cancelResult"] == "cancelled":
                del due_ms[b"%d" % i]
        for wait_ms in (0, 60_000, 60_000):
            harness.advance(wait_ms, model.work, 500)
            congestion = harness.broker.parts.timer.congestion
            near = {body: due for body, due in due_ms.items() if due - harness.now_ms < 55_000}
            for time, count in pending_by_slot(harness, near).items():
                assert congestion.waiting(time * 1000 + 1) == count
            harness.restart(clean=clean)
