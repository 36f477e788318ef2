"""A failed step of a tick does not fail the steps after it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from wheelmq.broker.steps import FAILED_STEP_MS, Steps
from wheelmq.delay import refs as ref
from wheelmq.formats.disk.origin import level_origin, timer_origin
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

STEPS = {
    "chores": "table_saves.poll",
    "arm near timers": "timer.pending.arm_near",
    "blocks": "block_parts.walk.tick",
    "timer chores": "timer_upkeep.stops.poll",
    "transaction checks": "transaction_checks.tick",
    "transactions": "transactions.tick",
    "pipeline": "pipeline.tick",
    "slices": "slices.tick",
    "held requests": "holds.expire",
    "calls": "calls.expire",
    "notify members": "member_changes.notify_members",
    "flush": "flush.tick",
    "timer check": "timer_upkeep.count_audit.poll",
    "snapshots": "file_upkeep.snapshots.poll",
    "delay offsets": "file_upkeep.delay_offsets.poll",
    "files ahead": "file_upkeep.preallocator.poll",
    "message index": "index.poll",
    "held queries": "holds.wake",
}
"""Each step and the method that it calls, except for the steps that a release needs."""


def fail(*arguments: Any, **keywords: Any) -> Any:
    raise AssertionError("planted")


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_step_delays_no_timer_and_no_send(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    harness.allows_failed_steps = True
    harness.send("T", b"timer", delay_ms=900)
    harness.settle()  # its reference is in the near lane
    owner: Any = harness.broker.parts
    *path, method = STEPS[step].split(".")
    for name in path:
        owner = getattr(owner, name)
    wake = harness.broker.parts.holds.wake
    with monkeypatch.context() as patch:
        patch.setattr(
            owner,
            method,
            (lambda key, *more: fail() if key is harness.broker.parts.index else wake(key, *more))
            if method == "wake"
            else fail,
        )
        for _ in range(91):
            harness.clock.advance(10)
            harness.tick()
        assert harness.bodies("T") == [b"timer"]
        harness.send("T", b"sent")
        assert harness.bodies("T") == [b"timer", b"sent"]
    assert harness.broker.parts.steps.failures[step] > 0
    assert set(harness.broker.parts.steps.failures) == {step}


def test_a_failed_release_keeps_its_messages_and_allows_sends(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.allows_failed_steps = True
    harness.send("T", b"timer", delay_ms=500)
    harness.clock.advance(500)
    with monkeypatch.context() as patch:
        patch.setattr(harness.broker.parts.releaser, "_append", fail)
        harness.tick()
        assert harness.broker.next_tick_ms() == FAILED_STEP_MS, "a lasting failure must not use a whole core"
        harness.send("T", b"sent")
        assert harness.bodies("T") == [b"sent"]
    harness.tick()
    assert harness.bodies("T") == [b"sent", b"timer"]


def test_a_dispatch_that_fails_in_a_round_is_repeated_by_the_tick(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.send("T")
    harness.settle()
    harness.allows_failed_steps = True
    dispatch, calls = harness.broker.parts.store.dispatch, []

    def fail_once(count: int) -> Any:
        calls.append(1)
        return fail() if len(calls) == 1 else dispatch(count)

    monkeypatch.setattr(harness.broker.parts.store, "dispatch", fail_once)
    harness.submit(harness.send_command("T", b"x"))
    assert harness.end_round(), "the server must tick at once"
    assert len(calls) == 2 and harness.broker.parts.steps.failures == {"dispatch": 1}
    assert harness.bodies("T")[-1] == b"x"


def test_a_lasting_failure_is_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    steps = Steps(clock.monotonic)
    with caplog.at_level(logging.WARNING):
        for _ in range(1500):
            steps.begin()
            assert steps.run("release", fail) is None
            clock.advance(10)
    assert steps.failures == {"release": 1500}
    assert len(caplog.records) == 2
    assert "'release'" in caplog.text and "AssertionError: planted" in caplog.text


@pytest.mark.parametrize("position", [1 << 40, -4096, -(1 << 62), (1 << 62) + 5])
@pytest.mark.parametrize("of_level", [False, True])
def test_a_reference_to_an_impossible_position_fails_no_release(
    harness: BrokerHarness, position: int, of_level: bool
) -> None:
    for _ in range(3):
        harness.send("T", b"timer", delay_ms=1500)
    harness.settle()
    forged = ref.make(2)
    forged[:, ref.FIRE_MS] = harness.now_ms + 1500
    forged[:, ref.ORIGIN] = (
        [level_origin(1, 900), level_origin(1, 901)] if of_level else np.arange(2) + timer_origin(90)
    )
    forged[:, ref.POSITION] = [position, position + 300]
    forged[:, ref.SIZE] = 300
    harness.broker.parts.timer.pending.armed.arm(forged)
    harness.advance(1500)
    assert harness.bodies("T") == [b"timer"] * 3
    assert harness.broker.parts.releaser.counts["unreadable"] == 2
