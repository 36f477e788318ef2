"""The fixtures of unit tests: a broker in its own folder, and a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of the store of `harness`."""
    return tmp_path / "store"


@pytest.fixture
def harness(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Iterator[BrokerHarness]:
    """A broker with small files and asynchronous flush. Jobs run at once in the test's thread."""
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk) as running:
        yield running


@pytest.fixture
def model(harness: BrokerHarness) -> PipelineModel:
    """A pipeline for `harness`. It works when the test calls it."""
    return PipelineModel(harness)
