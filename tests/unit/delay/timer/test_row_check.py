"""Each wrong field of each row of a turn is rejected, or has no effect."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.growth import growth
from tests.unit.delay.parked import REAL, park_raw
from wheelmq.delay.timer import row_check
from wheelmq.delay.timer.row_check import RowCheck
from wheelmq.delay.timer.turns import Part, TurnPlan, TurnRejected
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import NO_ORIGIN, timer_origin
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE, KIND_WALK, TURN_ROW
from wheelmq.net.errors import Refused
from wheelmq.testing.clock import START_MS
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task

HARMLESS = {
    KIND_INDEX: {"topic_hash", "delay_ms"},
    KIND_WALK: {"topic_hash", "delay_ms", "order"},
    KIND_QUEUE: {"topic_hash", "delay_ms"},
    KIND_BLOCKS: {"topic_hash", "delay_ms", "order", "slot_ms"},
}
"""Fields that no message depends on: the broker does not read them, or uses them only for statistics."""
WIDE = (0, -1, 1 << 40, -4096, -(1 << 62), (1 << 63) - 1, START_MS, START_MS + 86_400_000, timer_origin(1 << 30))
NARROW = (0, -1, 1, 2, 3, 4, 5, 7, 8, 1 << 30, -(1 << 31))


def mutations(field: str, value: int) -> Iterator[int]:
    """Yield wrong values of a field."""
    is_wide = TURN_ROW[field].itemsize == 8
    near = (value + change for change in (1, -1, 2, -2, 400, -400, 1000, -1000, 5000, -5000))
    limits = np.iinfo(TURN_ROW[field])
    for wrong in {*near, *(WIDE if is_wide else NARROW), value ^ 1, value ^ 2, value ^ 4} - {value}:
        if limits.min <= wrong <= limits.max:
            yield wrong


def is_rejected(harness: BrokerHarness, plan: TurnPlan, tasks: list[Task]) -> bool:
    """Return whether the broker rejects the turn that `tasks` propose."""
    turns, winners = harness.broker.parts.timer.turns, []
    for task in tasks:
        raw = task.rows.tobytes()
        turns.upload(plan.epoch, plan.turn, (task.kind, task.part, 0), 0, raw)
        winners.append(Part(task.kind, task.part, 0, 1, len(task.rows), zlib.crc32(raw)))
    try:
        harness.broker.parts.pipeline.committer.checked(plan, plan.epoch, plan.turn, winners)
    except TurnRejected:
        return True
    return False


def next_turn(harness: BrokerHarness, model: PipelineModel) -> tuple[TurnPlan, list[Task]]:
    """Return the next plan, and the rows that its tasks read."""
    for _ in range(100):
        plan = model.plan()
        if plan is not None:
            return plan, model.read(plan)
        harness.advance(100)
        model.renew()
    raise AssertionError("no turn is due")


def commit(harness: BrokerHarness, model: PipelineModel, plan: TurnPlan, tasks: list[Task]) -> None:
    model.commit(plan, [model.hand_over(plan, task) for task in tasks])


def fill(harness: BrokerHarness) -> None:
    """Send messages of every kind: near and far, cancelled, rolling, of levels, in blocks, and foreign ones."""
    for i, delay_ms in enumerate((3000, 3001, 4500, 6000, 7999, 8000, 12_345, 19_999, 30_000, 55_000)):
        harness.send("T", b"%d" % i, delay_ms=delay_ms, properties={props.UNIQ_KEY: f"K{i}"})
    cancel = {props.TIMER_DEL_UNIQKEY: delete_key("T", "K6")}
    harness.send("T", b"", delay_ms=12_345, properties=cancel)
    for level in (2, 3, 4):
        harness.send("T", b"level %d" % level, properties={props.DELAY: str(level)})
        harness.send("T", b"level %d" % level, properties={props.DELAY: str(level)})
    for seconds in (6, 6, 7, 14):
        harness.send("T", b"block", properties={props.DELAY_IN_SECONDS: str(seconds)})
    at_ms = harness.now_ms
    for slot_ms, due_ms in ((7000, 7300), (9000, 4000), (5000, 9500), (6123, 6123)):
        times = {props.TIMER_OUT_MS: str(at_ms + slot_ms), props.TIMER_DELIVER_MS: str(at_ms + due_ms)}
        park_raw(harness, {**REAL, **times})


@pytest.fixture(params=[False, True], ids=["noted", "not noted"])
def filled(harness: BrokerHarness, request: pytest.FixtureRequest) -> BrokerHarness:
    """A broker with messages of every kind, with and without their notes in memory."""
    fill(harness)
    if request.param:
        harness.broker.parts.timer.pending.notes.drop_below(timer_origin(1 << 30))
    return harness


def check_all(harness: BrokerHarness, plan: TurnPlan, tasks: list[Task]) -> set[str]:
    """Check that each mutation of the tasks' rows is rejected. Returns the kinds of tasks that were tried."""
    assert not is_rejected(harness, plan, tasks)
    tried = set()
    for place, task in enumerate(tasks):
        tried.add(task.kind)
        for field in set(TURN_ROW.names or ()) - HARMLESS[task.kind]:
            for at in range(len(task.rows)):
                for wrong in mutations(field, int(task.rows[at][field])):
                    rows = task.rows.copy()
                    rows[at][field] = wrong
                    mutated = [*tasks[:place], task._replace(rows=rows), *tasks[place + 1 :]]
                    if is_rejected(harness, plan, mutated):
                        continue
                    is_done = harness.broker.parts.timer.pending.done.get(task.rows["origin"][at : at + 1])[0]
                    limit_ms = harness.broker.parts.timer.shift_max_ms
                    if field == "shift_ms" and task.kind in (KIND_INDEX, KIND_WALK) and 0 <= wrong <= limit_ms:
                        assert task.rows[at]["magic"] == MAGIC_DEFAULT
                        continue
                    is_harmless = task.kind == KIND_INDEX and is_done and field in ("slot_ms", "fire_ms", "magic")
                    assert is_harmless, f"{task.kind} row {at}: {field} {task.rows[at][field]} -> {wrong}"
    return tried


def test_each_mutation_of_each_field_is_rejected(filled: BrokerHarness) -> None:
    model = PipelineModel(filled)
    model.open()
    tried: set[str] = set()
    for _ in range(4):
        plan, tasks = next_turn(filled, model)
        tried |= check_all(filled, plan, tasks)
        commit(filled, model, plan, tasks)
    assert tried == {KIND_INDEX, KIND_WALK, KIND_QUEUE, KIND_BLOCKS}


def test_consistently_wrong_rows_are_rejected(filled: BrokerHarness) -> None:
    """The fields agree with each other but not with the message."""
    model = PipelineModel(filled)
    model.open()
    walked = False
    for _ in range(4):
        plan, tasks = next_turn(filled, model)
        for place, task in enumerate(tasks):
            if task.kind not in (KIND_INDEX, KIND_WALK) or len(task.rows) < 2:
                continue
            walked |= task.kind == KIND_WALK
            pending = np.flatnonzero(~filled.broker.parts.timer.pending.done.get(task.rows["origin"]))
            last = pending[-1:]
            for changes in (
                {"slot_ms": 1000, "fire_ms": 1000},
                {"slot_ms": -1000, "fire_ms": -1000},
                {"slot_ms": 5000, "fire_ms": 5000},
            ):
                rows = task.rows.copy()
                for field, change in changes.items():
                    rows[field][pending] += change
                assert is_rejected(filled, plan, [*tasks[:place], task._replace(rows=rows), *tasks[place + 1 :]])
            rows = task.rows.copy()
            rows["magic"][last], rows["slot_ms"][last] = 3, plan.write_ms + 10_000
            rows["fire_ms"][last] = plan.write_ms + 10_001
            assert is_rejected(filled, plan, [*tasks[:place], task._replace(rows=rows), *tasks[place + 1 :]])
            for one, other in ((0, 1), (1, 0)):
                rows = task.rows.copy()
                for field in ("origin", "position", "size"):
                    rows[field][one] = task.rows[field][other]
                rows["order"] = np.argsort(rows["origin"], kind="stable")
                assert is_rejected(filled, plan, [*tasks[:place], task._replace(rows=rows), *tasks[place + 1 :]])
        commit(filled, model, plan, tasks)
    assert walked


def test_a_pending_message_cannot_be_reported_as_expired(filled: BrokerHarness) -> None:
    model = PipelineModel(filled)
    model.open()
    plan, tasks = next_turn(filled, model)
    while not any(task.kind == KIND_WALK for task in tasks):
        commit(filled, model, plan, tasks)
        plan, tasks = next_turn(filled, model)
    (place,) = (i for i, task in enumerate(tasks) if task.kind == KIND_WALK)
    rows = tasks[place].rows.copy()
    rows["origin"] = NO_ORIGIN
    rows["fire_ms"] = rows["slot_ms"]
    rows["order"] = np.arange(len(rows))
    tasks[place] = tasks[place]._replace(rows=rows[np.argsort(rows["fire_ms"], kind="stable")])
    assert is_rejected(filled, plan, tasks)


@pytest.mark.parametrize("field", ["topic_hash", "delay_ms"])
def test_fields_without_effect_may_be_wrong(harness: BrokerHarness, field: str) -> None:
    model = PipelineModel(harness)

    def bend(task: Task) -> Task:
        rows = task.rows.copy()
        rows[field] = -7
        return task._replace(rows=rows)

    model.bend = bend
    for delay_ms in (3000, 4500, 9000, 15_000):
        harness.send("T", b"%d" % delay_ms, delay_ms=delay_ms)
    sent_ms = harness.now_ms
    harness.advance(16_000, model.work)
    assert model.committed
    records = harness.read_queue("T")
    assert {int(record.message.body) for record in records} == {3000, 4500, 9000, 15_000}
    assert all(record.store_ms - sent_ms == int(record.message.body) for record in records)


def test_a_rejected_turn_is_logged_and_changes_nothing(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    model = PipelineModel(harness)
    harness.send("T", delay_ms=4000)
    harness.advance(1100)
    model.open()
    plan, tasks = next_turn(harness, model)
    rows = tasks[0].rows.copy()
    rows["position"] = 1 << 40
    with pytest.raises(Refused, match="TURN_REFUSED: index: the row of origin 0x3000000000000000"):
        commit(harness, model, plan, [tasks[0]._replace(rows=rows)])
    assert "rejects turn 1 and applies none of its rows: index: the row of origin" in caplog.text
    commit(harness, model, plan, tasks)
    harness.advance(4000)
    assert harness.bodies("T") == [b"body"]


@pytest.mark.parametrize("has_details", [True, False])
def test_a_wrong_time_in_a_large_turn_is_rejected(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, has_details: bool
) -> None:
    """With details, each wrong time is rejected. Without them, a wrong time within its slot may pass in few rows."""
    monkeypatch.setattr(row_check, "EXACT_ROWS", 5)
    model = PipelineModel(harness)
    for i in range(40):
        harness.send("T", delay_ms=14_000 + i)
    harness.advance(1100)
    model.open()
    plan, tasks = next_turn(harness, model)
    commit(harness, model, plan, tasks)
    if not has_details:
        for _, units in harness.broker.parts.timer.log.chunks(0, harness.broker.parts.timer.log.end):
            units["reserved"] = 0
    harness.advance(1500)
    plan, tasks = next_turn(harness, model)
    (walk,) = tasks
    assert walk.kind == KIND_WALK and len(walk.rows) == 40
    rows = walk.rows.copy()
    rows["fire_ms"][-1] += 1
    assert is_rejected(harness, plan, [walk._replace(rows=rows)]) == has_details
    rows["fire_ms"][:-1] += 1
    assert is_rejected(harness, plan, [walk._replace(rows=rows)])
    rows["fire_ms"] += 1000
    assert is_rejected(harness, plan, [walk._replace(rows=rows)])
    assert not is_rejected(harness, plan, tasks)


def test_the_time_of_the_check_is_linear_in_the_rows(tmp_path: Path) -> None:
    """The check of the largest scan, over files of the usual sizes."""
    settings: dict[str, Any] = {"log_file_bytes": 1 << 26, "queue_file_bytes": 20 * 300_000}
    with BrokerHarness(tmp_path, **settings) as harness:
        check = RowCheck(harness.broker.parts.timer)

        def check_rows(count: int) -> None:
            rows = np.zeros(count, TURN_ROW)
            rows["position"] = np.arange(count)[::-1] * 300
            rows["slot_ms"] = START_MS
            order = row_check._by_position(rows["position"], rows["slot_ms"])
            assert (rows["position"][order] == np.arange(count) * 300).all()
            check._has_its_origin(rows)

        assert growth(lambda: check_rows(25_000), lambda: check_rows(200_000)) < 24
