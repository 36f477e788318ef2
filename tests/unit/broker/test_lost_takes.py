"""A step that fails after it took messages out of a table loses no message."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from wheelmq.broker.admission.error_text import TimersLost
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness


def fail(*arguments: Any, **keywords: Any) -> Any:
    raise AssertionError("planted")


@pytest.fixture(autouse=True)
def allow_failed_steps(harness: BrokerHarness) -> None:
    harness.allows_failed_steps = True


def advance_in_steps(harness: BrokerHarness, ms: int) -> None:
    """Tick every 10 ms: a broker with a failed step asks for no earlier tick."""
    for _ in range(ms // 10):
        harness.clock.advance(10)
        harness.tick()


@pytest.mark.parametrize("method", ["arm", "armed._add", "armed._was_armed.update", "notes.take_near", "done.get"])
@pytest.mark.parametrize("asks", [{"delay_ms": 5000}, {"properties": {"DELAY": "2"}}], ids=["timer", "level"])
def test_messages_of_the_near_lane_are_armed_by_a_later_tick(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, method: str, asks: dict[str, Any]
) -> None:
    for i in range(3):
        harness.send("T", b"%d" % i, **asks)
    harness.advance(3900)  # the near lane takes them after another 100 ms
    owner: Any = harness.broker.parts.timer.pending
    *path, name = method.split(".")
    for part in path:
        owner = getattr(owner, part)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        advance_in_steps(harness, 400)
    advance_in_steps(harness, 800)
    assert sorted(harness.bodies("T")) == [b"0", b"1", b"2"]
    invariants.check(harness.broker)


def test_due_messages_enter_the_ring_in_a_later_tick(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        harness.send("T", b"%d" % i, delay_ms=500)
    harness.settle()
    with monkeypatch.context() as patch:
        patch.setattr(harness.broker.parts.releaser._ring, "_bucket_of", fail)
        advance_in_steps(harness, 600)
        assert harness.broker.parts.steps.failures["take due timers"]
    advance_in_steps(harness, 50)
    assert harness.bodies("T") == [b"0", b"1", b"2"]
    invariants.check(harness.broker)


@pytest.mark.parametrize("method", ["timer.pending.take_journal", "block_parts.settlement.note"])
def test_timers_that_are_lost_in_memory_fail_the_broker(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    harness.send("T", b"first", delay_ms=500)
    harness.settle()
    owner, name = method.rsplit(".", 1)
    with monkeypatch.context() as patch:
        patch.setattr(attrgetter(owner)(harness.broker.parts), name, fail)
        harness.submit(harness.send_command("T", b"second", delay_ms=600))
        harness.end_round()
        advance_in_steps(harness, 600)
        assert isinstance(harness.broker.parts.health.failure, TimersLost)
        assert "planted" in (harness.broker.parts.health.rejection or "")
        harness.stop()
    harness.start()
    advance_in_steps(harness, 1000)
    assert sorted(harness.bodies("T")) == [b"first", b"second"]
    invariants.check(harness.broker)


def test_a_failed_wake_keeps_the_timers(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.send("T", b"first")
    harness.settle()
    harness.submit(harness.pull_command("T", 0, 1, hold_ms=15_000))
    with monkeypatch.context() as patch:
        patch.setattr(harness.broker.parts.holds, "wake", fail)
        patch.setattr(harness.broker.parts.stats, "note_puts", fail)
        harness.submit(harness.send_command("T", b"second"))
        harness.submit(harness.send_command("T", b"timer", delay_ms=500))
        harness.end_round()
        assert set(harness.broker.parts.steps.failures) >= {"held pulls", "statistics"}
    advance_in_steps(harness, 600)
    assert harness.bodies("T") == [b"first", b"second", b"timer"]
    assert harness.broker.parts.health.failure is None
