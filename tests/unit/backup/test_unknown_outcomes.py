"""Objects that the target has stored, although their write was reported as failed."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.unit.backup.conftest import Ship
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper
from wheelmq.backup.target import FolderTarget
from wheelmq.broker.replication.truncation import truncate
from wheelmq.formats.units import LogPosition
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import BrokerHarness

RETRY_MS = 31_000


class FailingOnce(FolderTarget):
    """Reports the write of one object as failed: the first whose name `fails` accepts."""

    fails: Callable[[str], bool] | None = None
    stores = True
    """Whether it stores the object nevertheless."""

    def write(self, name: str, content: bytes) -> None:
        if self.fails is None or not self.fails(name):
            super().write(name, content)
            return
        self.fails = None
        if self.stores:
            super().write(name, content)
        raise OSError(errno.EIO, "no answer", name)


@pytest.fixture
def target(ship: Ship) -> FailingOnce:
    ship.target = made = FailingOnce(Disk(), ship.root / "target")
    return made


def test_a_base_that_is_stored_but_unknown_hides_no_capture(
    harness: BrokerHarness, ship: Ship, target: FailingOnce
) -> None:
    """The shipper goes on with the older objects, and merges some on both sides of the end of the base."""
    ship.settings = ShipSettings(merged_count=2, objects_of_points=4, keep_ms=6000, expiry_interval_ms=70_000)
    shipper = ship.shipper()
    target.fails = lambda name: name.endswith(".base")
    for i in range(40):
        harness.send("T", b"%d" % i)
        shipper.step()
        harness.advance(5000)
        ship.check()
    assert target.fails is None


def ship_four(harness: BrokerHarness, ship: Ship, target: FailingOnce) -> tuple[Shipper, LogPosition]:
    """Ship four captures whose merge fails. Returns the shipper, and the log position after two of the records."""
    ship.settings = ShipSettings(merged_count=4)
    shipper = ship.shipper()
    position = LogPosition(0)
    for i in range(4):
        harness.send("T", b"%d" % i)
        if i == 1:
            position = harness.broker.parts.store.log.end
        if i == 3:
            target.fails = lambda name: name.startswith("points/")
        shipper.step()
        ship.clock.advance(100)
    assert target.fails is None
    return shipper, position


@pytest.mark.parametrize("stores", [True, False])
def test_a_cut_after_a_merge_with_unknown_outcome_leaves_a_target_that_goes_on(
    harness: BrokerHarness, ship: Ship, target: FailingOnce, stores: bool
) -> None:
    target.stores = stores
    shipper, position = ship_four(harness, ship, target)
    harness.stop()
    truncate(Disk(), harness.settings, position)
    harness.start()
    for _ in range(10):
        ship.clock.advance(RETRY_MS)
        harness.send("T", b"other")
        shipper.step()
    assert shipper.housekeeping.problem is None
    assert ship.check().counts.records == 12
    assert ship.shipper(shipper.identity.history).history.last == shipper.history.last
