"""The tasks of a plan: as many as its rows and the session allow, and together exactly the rows of the plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wheelmq.delay.timer import staging
from wheelmq.formats.disk.turn_row import KIND_INDEX, KIND_QUEUE, KIND_WALK
from wheelmq.spark import ranges as module
from wheelmq.spark.ranges import PARALLELISM_MIN, ROWS_PER_PARTITION, parallelism_of, ranges, rows_of
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task

PRECISION_MS = 1000


def plan_of(*, index: int = 0, walk: int = 0, slots: int = 10, queues: int = 0) -> dict[str, Any]:
    return {
        "index_from": 7,
        "index_to": 7 + index,
        "walk_after_ms": 50_000,
        "walk_through_ms": 50_000 + slots * PRECISION_MS,
        "walk_rows": walk,
        "queues": [[1, 5, 5 + queues]] if queues else [],
        "blocks": None,
    }


def count(plan: dict[str, Any], kind: str, parallelism: int) -> int:
    return sum(one.kind == kind for one in ranges(plan, parallelism, precision_ms=PRECISION_MS))


@pytest.mark.parametrize("kind", ["index", "walk", "queues"])
@pytest.mark.parametrize(
    ("rows", "parallelism", "tasks"),
    [
        (0, 8, 0),
        (1, 8, 1),
        (2 * ROWS_PER_PARTITION - 1, 8, 1),
        (2 * ROWS_PER_PARTITION, 8, 2),
        (5 * ROWS_PER_PARTITION, 8, 5),
        (50 * ROWS_PER_PARTITION, 8, 8),
        (50 * ROWS_PER_PARTITION, 2, 2),
    ],
)
def test_the_tasks_follow_the_rows_up_to_a_bound(kind: str, rows: int, parallelism: int, tasks: int) -> None:
    name = {"index": KIND_INDEX, "walk": KIND_WALK, "queues": KIND_QUEUE}[kind]
    plan = plan_of(**{kind: rows})
    assert count(plan, name, parallelism) == tasks and rows_of(plan) == rows


def test_the_scan_of_slots_is_divided_at_slots() -> None:
    plan = plan_of(walk=100 * ROWS_PER_PARTITION, slots=7)
    parts = [(one.first, one.end) for one in ranges(plan, 3, precision_ms=PRECISION_MS)]
    assert parts == [(50_000, 52_000), (52_000, 54_000), (54_000, 57_000)]
    assert count(plan_of(walk=100 * ROWS_PER_PARTITION, slots=2), KIND_WALK, 8) == 2, "a slot is in one task"


def test_the_bound_follows_the_slots_of_the_session() -> None:
    assert [parallelism_of(slots, 1) for slots in (1, 4, 32)] == [PARALLELISM_MIN, 2, 16]
    assert [parallelism_of(32, queries) for queries in (0, 4, 100)] == [16, 4, PARALLELISM_MIN]


def test_the_broker_commits_the_rows_of_many_tasks(
    harness: BrokerHarness, model: PipelineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index and scan are divided into several tasks each. The broker accepts their rows, and no message is lost."""
    monkeypatch.setattr(module, "ROWS_PER_PARTITION", 4)
    model.open()
    assert model.terms is not None
    precision_ms, window = int(model.terms["precision_ms"]), int(model.terms["roll_window_slots"])
    for i in range(60):
        harness.send("T", delay_ms=34_000 + 150 * i)
    seen: set[tuple[str, int]] = set()
    for _ in range(60):
        harness.advance(1000, harness.tick, every_ms=25)
        plan = model.plan()
        if plan is None:
            continue
        parts = ranges(msgspec.to_builtins(plan), 5, precision_ms=precision_ms)
        tasks = []
        for place, part in enumerate(parts):
            view, fixed = model.view(), {"write_ms": plan.write_ms, "turn": plan.turn}
            if part.kind == KIND_INDEX:
                rows = staging.read_index(view, part.first, part.end, **fixed)
            else:
                end, precision = plan.timer_log_end, precision_ms
                rows = staging.read_walk(view, part.first, part.end, log_end=end, precision_ms=precision, **fixed)
            if len(rows):
                tasks.append(Task(part.kind, place, staging.decide(rows, window * precision_ms, precision_ms)))
        model.commit(plan, [model.hand_over(plan, task) for task in tasks])
        for kind in (KIND_INDEX, KIND_WALK):
            seen.add((kind, sum(part.kind == kind for part in parts)))
    counts = harness.broker.parts.releaser.counts
    assert max(n for kind, n in seen if kind == KIND_INDEX) > 2 and (KIND_WALK, 2) in seen
    assert counts["released"] == 60
