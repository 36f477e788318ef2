"""Rounds of reading, and the ticks that follow some of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker import broker as broker_module
from wheelmq.broker.broker import ROUNDS_MS
from wheelmq.broker.settings import FlushMode
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker


def settled(harness: BrokerHarness) -> None:
    """Create a topic, and finish all work."""
    harness.send("T")
    harness.settle()


def test_the_end_of_a_round_writes_queue_units_and_wakes_pulls(harness: BrokerHarness) -> None:
    settled(harness)
    consumer = harness.connect()
    held = harness.submit(harness.pull_command("T", 0, 1, hold_ms=15_000), consumer)
    harness.tick()
    harness.broker.next_tick_ms()
    sent = harness.submit(harness.send_command("T", b"news"))
    assert not harness.end_round()
    assert sent.answer is not None and sent.answer.code == ResponseCode.SUCCESS
    assert held.answer is not None and b"news" in bytes(held.answer.body)


def test_ticks_keep_their_interval_while_rounds_follow_each_other(harness: BrokerHarness) -> None:
    settled(harness)
    assert harness.broker.next_tick_ms() > ROUNDS_MS
    ticks = []
    for _ in range(3 * ROUNDS_MS):
        harness.submit(harness.send_command("T"))
        ticks.append(harness.end_round())
        wait_ms = harness.broker.next_tick_ms()
        assert (wait_ms >= ROUNDS_MS) if ticks[-1] else (0 < wait_ms <= ROUNDS_MS)
        harness.clock.advance(1)
    assert ticks == [i % ROUNDS_MS == 0 and i > 0 for i in range(3 * ROUNDS_MS)]


def test_a_message_due_before_the_interval_ends_causes_a_tick(harness: BrokerHarness) -> None:
    settled(harness)
    harness.send("T", delay_ms=500)
    harness.advance(499)
    assert harness.broker.next_tick_ms() == 1
    harness.submit(harness.send_command("T"))
    assert not harness.end_round()
    assert harness.broker.next_tick_ms() == 1
    harness.clock.advance(1)
    harness.submit(harness.send_command("T"))
    assert harness.end_round()
    assert harness.broker.parts.releaser.counts["released"] == 1


def test_a_message_due_at_once_causes_a_tick(harness: BrokerHarness) -> None:
    settled(harness)
    harness.broker.next_tick_ms()
    harness.submit(harness.send_command("T", delay_ms=1))
    assert harness.end_round()


def test_a_message_that_waits_for_the_disk_causes_a_tick(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path / "synced", worker=HeldWorker(), flush_mode=FlushMode.SYNC) as harness:
        harness.submit(harness.send_command("T"))
        harness.tick()
        harness.run_jobs()
        harness.broker.next_tick_ms()
        harness.submit(harness.send_command("T"))
        assert harness.end_round()
        harness.broker.next_tick_ms()
        harness.submit(harness.send_command("T"))
        assert not harness.end_round()  # its flush begins when the running flush ends


def test_a_release_may_take_as_long_as_the_rounds_before_it(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the time of all rounds since the last tick."""
    settled(harness)
    given: list[float] = []
    release = harness.broker.parts.releaser.release

    def spy(now_ms: int, slice_s: float, share_s: float) -> int:
        given.append(share_s)
        return release(now_ms, slice_s, share_s)

    monkeypatch.setattr(harness.broker.parts.releaser, "release", spy)
    monkeypatch.setattr(broker_module, "ROUNDS_MS", 60_000)
    harness.broker.next_tick_ms()
    for _ in range(3):
        harness.submit(harness.send_command("T"))
        harness.clock.advance(7)
        harness.broker.end_round()
    harness.broker.tick()
    assert given == [pytest.approx(0.021)]
