"""Random stages, hostile ones too: no timer is lost, delivered twice or early. An allowed shift is kept."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.delay.cancel import Cancelled
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.net.errors import Refused
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

from .profiles import profile
from .stages import BENDS, DELAYED, SHIFT_MS_MAX, bent

LAST_MS = 30_000


def make_turn(model: PipelineModel, bend: str, randomness: Random) -> str:
    """Make a turn with a stage. If the broker rejects it, make the turn without one, as the driver does.

    Returns the outcome of the staged turn.
    """
    if model.terms is None:
        model.open()
    plan = model.plan()
    if plan is None:
        return "no turn"
    tasks = model.read(plan)
    try:
        changed = [task._replace(rows=bent(task, BENDS[bend], randomness)) for task in tasks]
        model.commit(plan, [model.hand_over(plan, task) for task in changed if len(task.rows)])
        return "staged"
    except Refused:
        model.commit(plan, [model.hand_over(plan, task) for task in tasks])
        return "plain"


def delivered(harness: BrokerHarness) -> dict[bytes, list[int]]:
    """Return the times of delivery of each body."""
    found: dict[bytes, list[int]] = {}
    for record in harness.read_queue("T", 0):
        found.setdefault(record.message.body, []).append(int(record.message.properties[props.TIMER_DEQUEUE_MS]))
    return found


@profile(examples=25)
@given(
    delays_ms=st.lists(st.integers(1500, LAST_MS), min_size=1, max_size=25),
    bends=st.lists(st.sampled_from([DELAYED, *sorted(BENDS)]), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 16),
    stops=st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=2),
)
def test_no_stage_loses_repeats_or_hurries_a_timer(
    delays_ms: list[int], bends: list[str], seed: int, stops: list[tuple[int, bool]]
) -> None:
    randomness, outcomes = Random(seed), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(prefix="wheelmq-") as folder, BrokerHarness(Path(folder)) as harness:
        model = PipelineModel(harness)
        for i, delay_ms in enumerate(delays_ms):
            harness.send("T", b"%d" % i, delay_ms=delay_ms)
        for step in range((LAST_MS + SHIFT_MS_MAX) // 1000 + 5):
            bend = bends[step % len(bends)]
            outcomes[bend, make_turn(model, bend, randomness)] += 1
            harness.advance(1000)
            for at, clean in stops:
                if at == step:
                    harness.restart(clean=clean)
                    model.terms = None
        times = delivered(harness)
    assert set(times) == {b"%d" % i for i in range(len(delays_ms))}, "none is lost, and none is added"
    for i, delay_ms in enumerate(delays_ms):
        (time_ms,) = times[b"%d" % i]
        assert 0 <= time_ms - (START_MS + delay_ms) <= SHIFT_MS_MAX + (1000 if stops else 0), delay_ms
    assert not outcomes[DELAYED, "plain"], "an allowed stage is not rejected"


def test_each_hostile_stage_is_rejected(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        for bend in sorted(set(BENDS) - {DELAYED}):
            harness.send("T", bend.encode(), delay_ms=4000)
            outcome = "no turn"
            while outcome == "no turn":
                harness.advance(200)
                outcome = make_turn(model, bend, Random(1))
            assert outcome == "plain", bend
        harness.advance(10_000, lambda: make_turn(model, DELAYED, Random(1)), 500)
        times = delivered(harness)
    assert set(times) == {bend.encode() for bend in set(BENDS) - {DELAYED}}
    assert all(len(one) == 1 for one in times.values())


def commit_shifted(model: PipelineModel, shift_ms: int) -> None:
    """Commit the next turn, with the same shift of all timers that neither roll nor cancel."""
    model.open()
    while (plan := model.plan()) is None:
        model.harness.advance(100)
        model.renew()
    tasks = model.read(plan)
    for task in tasks:
        task.rows["shift_ms"] = np.where(task.rows["magic"] == MAGIC_DEFAULT, shift_ms, 0)
    model.commit(plan, [model.hand_over(plan, task) for task in tasks])


def test_a_timer_leaves_at_the_millisecond_of_its_shift(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T", b"shifted", delay_ms=4321)
        commit_shifted(PipelineModel(harness), 1234)
        harness.advance(10_000)
        assert delivered(harness) == {b"shifted": [START_MS + 4321 + 1234]}


def test_only_armed_timers_count_as_shifted(tmp_path: Path) -> None:
    """A shift has no effect on a timer that is armed already, was cancelled, or is armed by a later turn."""
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        harness.send("T", b"armed", delay_ms=900)
        harness.send("T", b"cancelled", delay_ms=4000, properties={props.UNIQ_KEY: "K"})
        harness.send("T", b"shifted", delay_ms=4000)
        harness.send("T", b"far", delay_ms=15_000)
        harness.send("T", delay_ms=4000, properties={props.TIMER_DEL_UNIQKEY: delete_key("T", "K")})
        commit_shifted(model, 2000)
        assert harness.broker.parts.timer.shifts.count == 1
        harness.advance(20_000, model.work, 500)
        times = {b"armed": [900], b"shifted": [6000], b"far": [15_000]}
        assert delivered(harness) == {body: [START_MS + ms for ms in due] for body, due in times.items()}


def test_a_shifted_timer_is_cancelled_after_its_due_time(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path) as harness:
        harness.send("T", b"shifted", delay_ms=4000, properties={props.UNIQ_KEY: "K"})
        commit_shifted(PipelineModel(harness), 20_000)
        harness.advance(8000)
        cancel = {props.TIMER_DEL_UNIQKEY: delete_key("T", "K")}
        assert harness.send("T", delay_ms=1, properties=cancel).ext["cancelResult"] == Cancelled.CANCELLED
        harness.advance(30_000)
        assert delivered(harness) == {}


def test_timercheck_waits_for_a_shifted_timer(tmp_path: Path) -> None:
    """Apache's broker reads the slots from timercheck on, so a stop may not pass the slot of a shifted timer."""
    with BrokerHarness(tmp_path) as harness:
        model = PipelineModel(harness)
        harness.send("T", b"shifted", delay_ms=3500)
        commit_shifted(model, 20_000)
        harness.advance(10_000, model.work, 500)
        assert delivered(harness) == {}
        timer, releaser = harness.broker.parts.timer, harness.broker.parts.releaser
        assert timer.timercheck(releaser.earliest_in_hand_ms()).last_read_ms <= START_MS + 3000
        harness.advance(100_000, model.work, 500)
        assert set(delivered(harness)) == {b"shifted"}
        assert timer.timercheck(releaser.earliest_in_hand_ms()).last_read_ms > START_MS + 60_000
