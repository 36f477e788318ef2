"""The fixtures of unit tests: plain code instead of kernels, and a broker in its own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.formats.kernels import jit
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture(autouse=True)
def plain_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Disable kernels. Their own tests compare them with the plain code."""
    if request.node.get_closest_marker("kernels") is not None:
        yield
        return
    with mock.patch.object(jit, "available", return_value=False):
        yield


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
