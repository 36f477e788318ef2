"""The pipeline arms what is due beyond a few seconds, and not the tick: told a wrong time, it is late by just that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.crash.killing import Watch
from tests.crash.load import Load, Mix
from tests.crash.notes import Kind
from tests.crash.parts import BrokerProcess, Event, Pipeline
from tests.crash.run import BROKER_SETTINGS, START_DEADLINE_S
from tests.crash.verdict import Verdict, judge
from wheelmq.cli.ports import free_port

SKEW_MS = 5000
LEAD_MS = 5000
DELAY_MS = 20_000
LATE_MAX_MS = 500
SKEWED = Mix(
    kinds=((Kind.DELIVER_AT, 1.0),),
    delays_ms=((0.5, DELAY_MS, DELAY_MS), (0.5, 300, 600)),
    whole_second_share=0.0,
)
TURNS_BEFORE = 2
MESSAGES = 200


async def run_skewed(home: Path) -> tuple[Verdict, int]:
    """Let tasks read every due time 5 s too late; what came of timers of 20 s and of half a second.

    Also the number of the first message that was sent when the pipeline made turns: Spark's first turns are slow.
    """
    event = Event(home / "events.jsonl")
    settings = {**BROKER_SETTINGS, "timer_lead_ms": LEAD_MS}
    failpoint_log = home / "failpoints.log"
    broker = BrokerProcess(home, free_port(), "ASYNC_FLUSH", settings, failpoint_log)
    pipeline = Pipeline([broker.address], home / "logs", failpoint_log, event)
    watch = Watch(broker, pipeline)
    load = Load(broker.address, SKEWED, rate=50.0, seed=1)
    watching = asyncio.create_task(watch.run())
    try:
        await broker.start()
        pipeline.arm(("task.skew_due_ms", SKEW_MS))
        pipeline.start()
        load.start()
        assert await watch.until(lambda: len(watch.commits) >= TURNS_BEFORE, START_DEADLINE_S)
        first = load.notes.count
        assert await watch.until(lambda: load.notes.count >= first + MESSAGES, START_DEADLINE_S)
        await load.stop()
        deadline_s = (DELAY_MS + SKEW_MS) / 1000 + 10
        assert await watch.until(lambda: watch.last.metrics["timers"]["pending"] == 0, deadline_s)
    finally:
        watching.cancel()
        await load.stop(grace_s=0.0)
        await pipeline.stop()
        await broker.stop()
        event.close()
    return judge(broker.store, load.notes), first


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_task_that_reads_wrong_times_makes_messages_late(tmp_path: Path) -> None:
    verdict, first = asyncio.run(run_skewed(tmp_path))
    assert verdict.violations == []
    assert verdict.delivered is not None
    delivered = verdict.delivered[verdict.delivered["number"] >= first]
    late = delivered["store_ms"] - delivered["due_ms"]
    long = delivered["due_ms"] - delivered["parked_ms"] > LEAD_MS
    assert np.count_nonzero(long) > MESSAGES // 4 < np.count_nonzero(~long)
    assert (np.abs(late[long] - SKEW_MS) <= LATE_MAX_MS).all(), "the pipeline armed these"
    assert (late[~long] <= LATE_MAX_MS).all(), "the broker armed these by itself"
