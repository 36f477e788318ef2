"""Periodic work on the files of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.broker.store_tasks import CHECKPOINT_REST, Checkpoints
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker


class TestCheckpoints:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[BrokerHarness]:
        with BrokerHarness(tmp_path, checkpoint_ms=1 << 30) as running:
            yield running

    def test_one_checkpoint_runs_at_a_time(self, harness: BrokerHarness) -> None:
        worker = HeldWorker()
        checkpoints = Checkpoints(harness.broker.parts.store, worker)
        checkpoints.begin()
        assert len(worker) == 0, "there is nothing to write"
        harness.send("T")
        checkpoints.begin()
        harness.send("T")
        checkpoints.begin()
        assert len(worker) == 1

    def test_the_disk_rests_after_a_checkpoint(self, harness: BrokerHarness) -> None:
        worker = HeldWorker()
        checkpoints = Checkpoints(harness.broker.parts.store, worker)
        harness.send("T")
        checkpoints.begin()
        harness.clock.advance(1000)
        worker.run()
        harness.send("T")
        harness.clock.advance(CHECKPOINT_REST * 1000 - 1)
        checkpoints.begin()
        assert len(worker) == 0
        harness.clock.advance(1)
        checkpoints.begin()
        assert len(worker) == 1

    def test_a_failed_checkpoint_is_logged(self, harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
        worker = HeldWorker()
        harness.send("T")
        Checkpoints(harness.broker.parts.store, worker).begin()
        worker.fail_next(OSError(5, "Input/output error"))
        worker.run()
        assert "a background task on the broker's files failed" in caplog.text
