"""The removal of chunks that no restore needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.backup.conftest import Ship, expire
from wheelmq.backup.plan import NotRestorable, windows
from wheelmq.backup.settings import ShipSettings
from wheelmq.testing.harness import BrokerHarness

KEEP = ShipSettings(merged_count=2, objects_of_points=2, keep_ms=60_000, expiry_interval_ms=0)


def test_a_window_is_kept_and_older_times_go(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = KEEP
    shipper = ship.shipper()
    began_ms = harness.now_ms
    for i in range(40):
        harness.send("T", b"%d" % i)
        shipper.step()
        harness.advance(5000)
    (window,) = windows(ship.points())
    assert harness.now_ms - 120_000 <= window.first_ms <= harness.now_ms - 60_000
    with pytest.raises(NotRestorable):
        ship.plan(began_ms + 1000)
    for at_ms in range(window.first_ms, harness.now_ms, 7000):
        sent = (at_ms - began_ms) // 5000 + 1
        assert ship.check(at_ms).counts.records == sent


def test_the_log_of_a_pending_message_stays_however_old_it_is(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    ship.settings = KEEP
    with small("store") as harness:
        harness.send("T", b"far", properties={"DELAY": "18"})
        harness.send("T", b"far in a block", properties={"delayInSeconds": str(50 * 3600)})
        shipper = ship.shipper()
        for _ in range(30):
            for _ in range(10):
                harness.send("T", b"x" * 300)
            shipper.step()
            expire(harness)
        shipper.step()
        assert harness.broker.parts.store.log.start == 0
    counts = ship.check().counts
    assert (counts.in_levels, counts.in_blocks) == (1, 1)


def test_chunks_of_deleted_log_files_go(small: Callable[[str], BrokerHarness], ship: Ship) -> None:
    ship.settings = KEEP
    with small("store") as harness:
        harness.send("Old", b"x")
        shipper = ship.shipper()
        for _ in range(30):
            for _ in range(15):
                harness.send("T", b"x" * 300)
            shipper.step()
            expire(harness)
        shipper.step()
        log_start = harness.broker.parts.store.log.start
        assert log_start > 0
    points = ship.points()
    assert min(chunk.start for point in points for chunk in point.chunks) > 0
    (window,) = windows(points)
    assert ship.plan(window.first_ms).history.log_start <= log_start
    assert len(ship.target.names("log")) < 30
    ship.restore()
    with small("restored") as restored:
        assert restored.broker.parts.store.queues.end("Old", 0) == 1


def test_chunks_of_deleted_blocks_go_and_small_objects_are_joined(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = KEEP
    shipper = ship.shipper()
    for i in range(40):
        harness.send("T", b"soon", properties={"delayInSeconds": "2"})
        harness.send("T", b"far %d" % i, properties={"delayInSeconds": "3600"})
        shipper.step()
        harness.advance(10_000)
    names = ship.target.names("blocks")
    assert len(names) < 20, "one object has the chunks of the blocks before the window"
    assert ship.check().counts.in_blocks == 41
    (base, *_) = ship.points()
    assert {folder[:10] for folder in base.blocks} <= {"2027011508", "2027011509"}
    ended = [name for name, facts in base.blocks.items() if facts.end_ms < base.made_ms - 30_000]
    assert ended == [], "chunks of deleted blocks are gone"


def test_without_a_window_everything_stays(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(merged_count=2, expiry_interval_ms=0)
    shipper = ship.shipper()
    began_ms = harness.now_ms
    for i in range(10):
        harness.send("T", b"%d" % i)
        shipper.step()
        harness.advance(100_000)
    assert ship.check(began_ms).counts.records == 1
