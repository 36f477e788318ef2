"""Restores of a target whose store lost records, or came from another time."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.unit.backup.conftest import SMALL_FILES, Ship, expire
from wheelmq.backup import shipper as shipper_module
from wheelmq.backup.plan import windows
from wheelmq.backup.settings import ShipSettings
from wheelmq.broker.replication.truncation import cut_blocks_to, truncate
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk
from wheelmq.testing.harness import BrokerHarness

KEEPS_FILES = {**SMALL_FILES, "file_reserved_time": 72}


@pytest.mark.parametrize("merged_count", [100, 6])
def test_a_time_after_a_power_cut_has_the_records_that_followed_it(
    harness: BrokerHarness, ship: Ship, merged_count: int
) -> None:
    """The power cut takes the second record of a shipped chunk."""
    ship.settings = ShipSettings(merged_count=merged_count)
    shipper = ship.shipper()
    shipper.step()
    harness.send("T", b"on disk")
    harness.broker.parts.store.flush()
    ship.clock.advance(10)
    harness.send("T", b"lost")
    shipper.step()
    harness.cut_power(keep=0.0)
    ship.clock.advance(1000)
    harness.start()
    shipper = ship.shipper(shipper.identity.history)
    times = []
    for _ in range(4):
        harness.send("T", b"new")
        times.append(ship.clock.now_ms())
        ship.clock.advance(250)
        shipper.step()
    assert [ship.check(at_ms).counts.records for at_ms in times] == [2, 3, 4, 5]


@pytest.mark.parametrize("step_bytes_max", [32 << 20, 2000])
def test_a_time_before_a_cut_has_the_records_that_it_lost(
    harness: BrokerHarness, ship: Ship, step_bytes_max: int
) -> None:
    """Log and block are cut. With small steps, the first points after the cut are not complete."""
    shipper = ship.shipper()
    shipper.step()
    later = {"delayInSeconds": "3000"}
    harness.send("T", b"block, on disk", properties=later)
    harness.send("T", b"log, on disk")
    position = harness.broker.parts.store.log.end
    harness.advance(10)
    harness.send("T", b"block, lost", properties=later)
    harness.send("T", b"log, lost")
    shipper.step()
    ship.clock.advance(60_000)
    at_ms = ship.clock.now_ms()
    ship.clock.advance(60_000)
    (block,) = harness.broker.parts.blocks
    harness.stop()
    truncate(Disk(), harness.settings, position)
    cut_blocks_to(Disk(), ship.clock, harness.settings, {block.number: 1})
    ship.clock.advance(1000)
    harness.start()
    for _ in range(20):
        harness.send("T", bytes(500))
    ship.settings = ShipSettings(step_bytes_max=step_bytes_max, piece_bytes=1000)
    shipper = ship.shipper(shipper.identity.history)
    while not shipper.step().is_complete:
        pass
    counts = ship.check(at_ms).counts
    assert (counts.records, counts.in_blocks) == (2, 2)
    counts = ship.check().counts
    assert (counts.records, counts.in_blocks) == (21, 1)


def test_a_restored_store_keeps_messages_that_were_settled_later(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    """The old broker deleted their log files after the restored time, and `keep_ms` passes."""
    ship.settings = ShipSettings(merged_count=2, objects_of_points=2, keep_ms=200_000, expiry_interval_ms=0)
    with small("store") as harness:
        harness.send("P", b"pending", delay_ms=5000)
        for _ in range(150):
            harness.send("T", bytes(300))
        shipper = ship.shipper()
        shipper.step()
        at_ms = ship.clock.now_ms()
        harness.advance(6000)
        for _ in range(5):
            expire(harness)
        for _ in range(8):
            harness.send("T", b"after the expiry")
            shipper.step()
            harness.advance(1000)
        log_start = shipper.history.log_start
    again = Ship(ship.root / "again", ship.target, ship.clock, ship.settings)
    restored = again.restore(at_ms, "store")
    assert restored.counts.timers == 1 and 0 < log_start < restored.log_end
    ship.clock.advance(1000)
    with BrokerHarness(ship.root / "again" / "store", clock=ship.clock, **KEEPS_FILES) as broker:
        later = again.shipper()
        for _ in range(60):
            broker.send("T", b"new")
            later.step()
            broker.advance(5000)
            again.check()
    again.restore(name="last")


def test_a_shipper_moves_to_a_replica_whose_log_starts_earlier(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    with small("store") as harness:
        for _ in range(200):
            harness.send("T", bytes(300))
        harness.broker.parts.store.flush()
        replica = ship.root / "replica" / "store"
        shutil.copytree(ship.root / "store", replica)
        expire(harness)
        shipper = ship.shipper()
        while not shipper.step().is_complete:
            pass
        assert shipper.history.log_start
    for name in ("lock", "abort"):
        (replica / name).unlink(missing_ok=True)
    again = Ship(ship.root / "replica", ship.target, ship.clock)
    with BrokerHarness(replica, clock=ship.clock, **KEEPS_FILES) as master:
        master.send("T", b"new")
        later = again.shipper()
        while not later.step().is_complete:
            pass
        assert again.check().counts.records == 201


def test_an_expiry_between_the_check_for_a_gap_and_the_capture_begins_a_new_window(
    small: Callable[[str], BrokerHarness], ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small("store") as harness:
        harness.send("T", b"first")
        shipper = ship.shipper()
        shipper.step()
        for _ in range(300):
            harness.send("T", bytes(300))
        check = shipper_module.has_lost_tails

        def has_lost_tails(*given: object) -> bool:
            found = check(*given)  # type: ignore[arg-type]
            expire(harness)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(shipper_module, "has_lost_tails", has_lost_tails)
            shipper.step()
        while not shipper.step().is_complete:
            pass
        assert [point.is_restart for point in ship.points()].count(True) == 1 and len(windows(ship.points())) == 2
        ship.check()


def test_a_block_whose_removal_a_power_cut_has_lost_is_there_once(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"soon", properties={"delayInSeconds": "2"})
    harness.send("T", b"far", properties={"delayInSeconds": "7200"})
    shipper = ship.shipper()
    shipper.step()
    blocks = StorePaths(ship.root / "store").blocks
    shutil.copytree(blocks, ship.root / "saved")
    harness.advance(60_000)
    (gone,) = {path.name for path in (ship.root / "saved").iterdir()} - {path.name for path in blocks.iterdir()}
    harness.send("T", b"before the point")
    ship.clock.advance(100)
    at_ms = ship.clock.now_ms()
    ship.clock.advance(100)
    shipper.step()
    assert ship.points()[-1].gone
    shutil.copytree(ship.root / "saved" / gone, blocks / gone)
    ship.clock.advance(200)
    ship.shipper(shipper.identity.history).step()
    assert ship.check(at_ms).counts == ship.restore(at_ms).counts
