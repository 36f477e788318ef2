"""The fixtures of unit tests: a broker in its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def harness(tmp_path: Path, clock: ManualClock, disk: SimulatedDisk) -> Iterator[BrokerHarness]:
    """A broker with small files and asynchronous flush. Jobs run at once in the test's thread."""
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk) as running:
        yield running
