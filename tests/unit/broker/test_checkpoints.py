"""Periodic checkpoints: one at a time, with pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.workers import HeldWorker

EVERY_MS = 100


@pytest.fixture
def background() -> HeldWorker:
    return HeldWorker()


@pytest.fixture
def harness(tmp_path: Path, background: HeldWorker) -> Iterator[BrokerHarness]:
    """A broker that takes no snapshots, which also write checkpoints."""
    with BrokerHarness(tmp_path, background=background, checkpoint_ms=EVERY_MS, snapshot_ms=1 << 30) as running:
        yield running


def counted(made: list[str], error: OSError | None) -> Callable[[], Callable[[], None]]:
    """Return a replacement of `checkpoint_job`, whose jobs are counted in `made` and raise `error`."""

    def job() -> None:
        if error is not None:
            raise error

    def checkpoint_job() -> Callable[[], None]:
        made.append("job")
        return job

    return checkpoint_job


both_outcomes = pytest.mark.parametrize("error", [None, OSError("gone")])


@both_outcomes
def test_one_checkpoint_of_blocks_runs_at_a_time(
    harness: BrokerHarness, background: HeldWorker, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    made: list[str] = []
    monkeypatch.setattr(harness.broker.parts.blocks, "checkpoint_job", counted(made, error))
    for count in (1, 2, 3):
        harness.advance(5 * EVERY_MS)
        assert len(made) == count
        background.run()


@both_outcomes
def test_the_disk_rests_nine_times_as_long_as_a_checkpoint_took(
    harness: BrokerHarness, background: HeldWorker, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    made: list[str] = []
    monkeypatch.setattr(harness.broker.parts.store, "checkpoint_job", counted(made, error))
    harness.advance(EVERY_MS)
    assert len(made) == 1
    harness.advance(3 * EVERY_MS)
    assert len(made) == 1, "it still runs"
    background.run()
    harness.advance(9 * 3 * EVERY_MS - 1)
    assert len(made) == 1, "the disk rests"
    harness.advance(EVERY_MS)
    assert len(made) == 2
