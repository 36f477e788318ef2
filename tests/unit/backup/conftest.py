"""Fixtures: a broker, and a shipper that copies its store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from wheelmq.backup.catalog import read_catalog
from wheelmq.backup.check import Checked, TargetCheck
from wheelmq.backup.index import Point
from wheelmq.backup.plan import Plan, make_plan
from wheelmq.backup.restore import Restore, Restored
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper
from wheelmq.backup.source import Source
from wheelmq.backup.target import FolderTarget, Target
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk, ReadOnlyDisk
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness

SMALL_FILES = {"log_file_bytes": 16 << 10, "queue_file_bytes": 20 * 40, "file_reserved_time": 0}


@dataclass
class Ship:
    """A store, a target, and what a test does with them."""

    root: Path
    target: Target
    clock: ManualClock
    settings: ShipSettings = field(default_factory=ShipSettings)

    def shipper(self, known: str | None = None) -> Shipper:
        """Return an open shipper. `known` is the history that the store was shipped to before."""
        source = Source(ReadOnlyDisk(), StorePaths(self.root / "store"), self.settings.piece_bytes)
        made = Shipper(source, self.target, self.clock, self.settings, InlineWorker(), Random(1))
        made.open(known)
        return made

    def points(self) -> list[Point]:
        return [point for one in read_catalog(self.target) for point in one.points]

    def plan(self, at_ms: int | None = None) -> Plan:
        return make_plan(self.points(), at_ms)

    def check(self, at_ms: int | None = None) -> Checked:
        return TargetCheck(self.target, self.plan(at_ms)).run()

    def check_all(self) -> Checked:
        check = TargetCheck(self.target, self.plan())
        found = check.run()
        check.verify_all(self.points())
        return found

    def restore(self, at_ms: int | None = None, name: str = "restored") -> Restored:
        return Restore(self.target, self.plan(at_ms), Disk(), lambda done, total: None).run(self.root / name)


@pytest.fixture
def ship(tmp_path: Path, clock: ManualClock) -> Ship:
    return Ship(tmp_path, FolderTarget(Disk(), tmp_path / "target"), clock)


@pytest.fixture
def small(tmp_path: Path, clock: ManualClock) -> Callable[[str], BrokerHarness]:
    """Open a broker with short log files, which expire at once, on a store of the test."""
    return lambda name: BrokerHarness(tmp_path / name, clock=clock, **SMALL_FILES)


def expire(harness: BrokerHarness) -> None:
    """Let the log files expire that the broker does not need."""
    start = harness.broker.parts.store.log.start
    harness.advance(10_000)
    for _ in range(6):
        harness.broker.parts.file_upkeep.expiry.poll(at_once=True)
        harness.advance(1000)
        if harness.broker.parts.store.log.start > start:
            return
