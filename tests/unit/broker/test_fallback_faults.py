"""The broker's own lanes with pipelines that crash, damaged files and errors that no code expects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.test_fallback import WIDE, index, lateness, send
from wheelmq.broker import fallback
from wheelmq.delay import notes
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture
def harness(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Iterator[BrokerHarness]:
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk, **WIDE) as running:
        yield running


def crash(harness: BrokerHarness) -> None:
    """Let a pipeline open a lease, ask for a plan, and die."""
    model = PipelineModel(harness, holder_id="supervisor")
    model.open()
    model.plan()


class TestCrashLoop:
    @pytest.mark.parametrize("period_ms", [4000, 8000, 15_000, 64_000, 90_000])
    def test_no_message_waits_longer_than_for_a_hung_pipeline(self, harness: BrokerHarness, period_ms: int) -> None:
        send(harness, [30_000 + 5000 * i for i in range(30)], "indexed")  # the wheel lane begins the fallback
        index(harness, PipelineModel(harness, holder_id="supervisor"))
        timer, oldest_ms, waited_ms = harness.broker.timer, harness.now_ms, 0
        for i in range(720_000 // period_ms):
            if timer.indexed_to == timer.queue.end:
                oldest_ms = harness.now_ms
            send(harness, [250_000], f"{i}-")
            crash(harness)
            harness.advance(period_ms)
            waited_ms = max(waited_ms, harness.now_ms - oldest_ms if timer.indexed_to < timer.queue.end else 0)
        assert harness.broker.pipeline.fallback.indexed > 0
        assert waited_ms <= fallback.HUNG_MS + 2 * period_ms
        invariants.check(harness.broker)

    def test_more_messages_than_notes(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """A message without a note reaches its slot only through an index step."""
        monkeypatch.setattr(notes, "NOTES_MAX", 30)
        monkeypatch.setattr(fallback, "CROWDED", 22)
        due = send(harness, [40_000 + 1000 * i for i in range(200)], "indexed")  # the wheel lane always has work
        index(harness, PipelineModel(harness, holder_id="supervisor"))
        for i in range(85):
            due |= send(harness, [200_000, 210_000], f"{i}-") if i < 50 else {}
            crash(harness)
            harness.advance(8000)
        assert harness.broker.timer.notes.passed_over > 0
        assert set(lateness(harness, due).values()) == {0}

    def test_a_step_that_finds_nothing_on_disk_ends_no_takeover(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker takes the lease back for its step, and not for a step that could not begin."""
        lane = harness.broker.pipeline.fallback.index_lane
        start, left = lane.start, [3]

        def start_late(now_ms: int, durable: int) -> bool:
            left[0] -= 1
            return left[0] < 0 and start(now_ms, durable)  # type: ignore[arg-type]

        monkeypatch.setattr(lane, "start", start_late)
        model = PipelineModel(harness)
        model.open()
        send(harness, [300_000] * 3)
        harness.advance(fallback.HUNG_MS - 3000, model.renew, 1000)
        harness.advance(12_000)
        assert harness.broker.pipeline.fallback.indexed == 3

    def test_a_new_pipeline_has_time_for_its_first_turn(self, harness: BrokerHarness) -> None:
        """An old crash takes no time from a pipeline that comes after an absence."""
        crash(harness)
        harness.advance(10 * fallback.HUNG_MS)
        model = PipelineModel(harness, holder_id="supervisor")
        send(harness, [300_000])
        model.open()
        epoch = model.epoch
        harness.advance(fallback.HUNG_MS - 10_000, model.renew, 1000)
        assert harness.broker.timer.turns.epoch == epoch
