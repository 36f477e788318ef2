"""Tasks that read wrong times: the broker rejects each of their turns, and every message is on time without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
MESSAGES = 200


async def run_skewed(home: Path) -> tuple[Verdict, int, str]:
    """Let tasks read every due time 5 s too late, with timers of 20 s and of half a second.

    Returns the verdict, the number of committed turns, and the log of the broker.
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
        assert await watch.until(
            lambda: "and applies none of its rows" in (home / "broker.log").read_text(), START_DEADLINE_S
        )
        assert await watch.until(lambda: load.notes.count >= MESSAGES, START_DEADLINE_S)
        await load.stop()
        deadline_s = DELAY_MS / 1000 + 10
        assert await watch.until(lambda: watch.last.metrics["timers"]["pending"] == 0, deadline_s)
    finally:
        watching.cancel()
        await load.stop(grace_s=0.0)
        await pipeline.stop()
        await broker.stop()
        event.close()
    return judge(broker.store, load.notes), len(watch.commits), (home / "broker.log").read_text()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_turns_of_tasks_that_read_wrong_times_are_rejected(tmp_path: Path) -> None:
    verdict, commits, log = asyncio.run(run_skewed(tmp_path))
    assert verdict.violations == []
    assert commits == 0 and "and applies none of its rows: index: the row of origin" in log
    assert verdict.delivered is not None and len(verdict.delivered) >= MESSAGES
    late = verdict.delivered["store_ms"] - verdict.delivered["due_ms"]
    assert (late <= LATE_MAX_MS).all(), "the broker arms them by itself"
