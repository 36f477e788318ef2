"""What unit tests share: the plain code in place of kernels, and a broker in a folder of the test's own."""

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
    """No kernels: their own tests hold them equal to the plain code."""
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
    """A broker with small files, asynchronous flush, and jobs done in place."""
    with BrokerHarness(tmp_path / "store", clock=clock, disk=disk) as running:
        yield running
