"""A shipper on an object store whose requests fail, before or after their effect."""

from __future__ import annotations

from random import Random
from typing import Any

import fsspec
import pytest

from tests.unit.backup.conftest import Ship
from wheelmq.backup.object_store import ObjectStoreTarget
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper
from wheelmq.backup.target import TargetTaken
from wheelmq.testing.harness import BrokerHarness

STEPS = 150
FAILING = {"cat_file", "exists", "find", "pipe_file", "rm_file"}


class RequestFailed(Exception):
    """An error of a client library, which is no OSError."""


class FailingFiles:
    """An fsspec file system whose requests fail at random. An answer may be lost after the request had its effect."""

    def __init__(self, files: Any, randomness: Random) -> None:
        self._files = files
        self._randomness = randomness
        self.share = 0.0
        """Share of failing requests."""
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._files, name)
        return function if name not in FAILING else lambda *args, **kwargs: self._call(function, args, kwargs)

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        fails = self._randomness.random() < self.share
        is_done = fails and self._randomness.random() < 0.5
        found = function(*args, **kwargs) if is_done or not fails else None
        if fails:
            self.failed += 1
            raise self._randomness.choice((RequestFailed("500"), ConnectionResetError("reset"), TimeoutError("slow")))
        return found


class Run:
    """Steps of a shipper, which is opened again until it succeeds."""

    def __init__(self, ship: Ship) -> None:
        self._ship = ship
        self._shipper: Shipper | None = None
        self._history: str | None = None

    def step(self) -> bool:
        """Make one step. Returns whether it reached the end of the store."""
        try:
            if self._shipper is None:
                self._shipper = self._ship.shipper(self._history)
                self._history = self._shipper.identity.history
            return self._shipper.step().is_complete
        except TargetTaken:
            raise
        except OSError:
            return False

    def kill(self) -> None:
        self._shipper = None

    @property
    def failures(self) -> int:
        return 0 if self._shipper is None else self._shipper.housekeeping.failures


@pytest.mark.parametrize("seed", range(6))
def test_failed_requests_lose_and_repeat_nothing(harness: BrokerHarness, ship: Ship, seed: int) -> None:
    randomness = Random(seed)
    files = FailingFiles(fsspec.filesystem("memory"), randomness)
    ship.target = ObjectStoreTarget(files, f"/{ship.root.name}-{seed}")
    ship.settings = ShipSettings(
        merged_count=3, small_bytes_max=600, objects_of_points=3, keep_ms=30_000, expiry_interval_ms=1000
    )
    run, failed_jobs = Run(ship), 0
    while not run.step():  # the target begins before the first fault
        pass
    files.share = 0.25
    for number in range(STEPS):
        harness.send("T", b"%d" % number)
        if number % 10 == 0:
            harness.send("T", b"timer %d" % number, delay_ms=3_600_000)
            harness.send("T", b"block %d" % number, properties={"delayInSeconds": "3600"})
        run.step()
        if randomness.random() < 0.1:
            failed_jobs += run.failures
            run.kill()
        harness.advance(500)
    files.share = 0.0
    failed_jobs += run.failures
    while not run.step():
        pass
    assert files.failed > STEPS // 10 and failed_jobs
    counts = ship.check_all().counts
    assert (counts.timers, counts.in_blocks) == (STEPS // 10, STEPS // 10)
    assert ship.restore().counts == counts
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        assert restored.bodies("T") == [b"%d" % number for number in range(STEPS)]
