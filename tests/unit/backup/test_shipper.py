"""The shipper: captures, resumption, cuts, gaps, and targets that belong to others."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.backup.conftest import SMALL_FILES, Ship, expire
from wheelmq.backup.catalog import PointObject, read_catalog
from wheelmq.backup.index import COMMIT_LOG
from wheelmq.backup.objects import TargetDamaged
from wheelmq.backup.plan import NotRestorable, windows
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import TargetForeign
from wheelmq.backup.target import FolderTarget, Target, TargetTaken
from wheelmq.broker.replication.truncation import cut_blocks_to, truncate
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk
from wheelmq.testing.disk import Call, SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


def test_a_step_ships_records_of_each_log_and_the_files(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"now")
    harness.send("T", b"later", delay_ms=5000)
    harness.send("T", b"in a block", properties={"delayInSeconds": "30"})
    shipper = ship.shipper()
    step = shipper.step()
    assert step.is_complete and step.capture == 1 and step.records == 3
    counts = ship.check().counts
    assert (counts.records, counts.timers, counts.blocks, counts.in_blocks) == (2, 1, 1, 1)
    assert "topics.json" in ship.plan().history.files


def test_a_capture_goes_on_into_the_next_file_of_a_block(harness: BrokerHarness, ship: Ship) -> None:
    """Blocks have no files ahead, so the next file may be newer than the last listing."""
    shipper = ship.shipper()
    sent = 0
    for _ in range(40):
        for _ in range(3):
            harness.send("T", b"x" * 700, properties={"delayInSeconds": "3600"})
            sent += 1
        assert shipper.step().is_complete
        assert ship.check().counts.in_blocks == sent


def test_an_idle_store_costs_no_object(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"now")
    shipper = ship.shipper()
    shipper.step()
    names = ship.target.names("")
    for _ in range(3):
        ship.clock.advance(1000)
        step = shipper.step()
        assert step.is_complete and not step.capture
    assert ship.target.names("") == names and shipper.complete_ms == ship.clock.now_ms()


def test_a_shipper_continues_where_the_target_ends(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    ship.shipper().step()
    harness.send("T", b"two")
    step = ship.shipper().step()
    assert step.records == 1 and step.capture == 2
    assert ship.check().counts.records == 2


def test_a_small_capture_is_one_object_and_merges_keep_the_rest_few(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(merged_count=4, objects_of_points=3)
    shipper = ship.shipper()
    for i in range(30):
        before = len(ship.target.names("new"))
        harness.send("T", b"%d" % i)
        shipper.step()
        after = len(ship.target.names("new"))
        assert after in (before + 1, 0)
    assert len(ship.target.names("points")) <= 4 and len(ship.target.names("log")) == 7
    assert ship.check().counts.records == 30


def test_old_small_captures_are_merged_and_their_chunks_joined(harness: BrokerHarness, ship: Ship) -> None:
    shipper = ship.shipper()
    for _ in range(3):
        harness.send("T", b"x")
        shipper.step()
    ship.clock.advance(ship.settings.merged_ms)
    shipper.step()
    (_, merged) = ship.points()  # the first complete capture stays alone: it is the earliest moment
    assert (merged.first, merged.last, len(merged.chunks), merged.chunks[0].records) == (2, 3, 1, 2)


def test_a_large_capture_is_stored_once(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(small_bytes_max=0)
    harness.send("T", b"x" * 1000)
    ship.shipper().step()
    assert [name.partition("/")[0] for name in ship.target.names("")] == ["log", "points", "wheelmq-ship.json"]
    assert ship.check().counts.records == 1


def test_a_long_store_is_shipped_in_steps_and_restorable_after_the_last(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(step_bytes_max=1000, piece_bytes=500)
    for _ in range(10):
        harness.send("T", b"x" * 300)
        harness.advance(1)
    shipper, steps = ship.shipper(), 1
    while not shipper.step().is_complete:
        steps += 1
        with pytest.raises(NotRestorable, match="no complete point"):
            ship.plan()
    assert steps > 2 and ship.check().counts.records == 10


def test_records_that_a_power_cut_lost_are_cut_off(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"on disk")
    harness.broker.parts.store.flush()
    harness.send("T", b"lost", delay_ms=60_000)
    shipper = ship.shipper()
    shipper.step()
    before_ms = ship.clock.now_ms()
    harness.cut_power(keep=0.0)
    ship.clock.advance(5000)
    harness.start()
    harness.send("T", b"new")
    later = ship.shipper(shipper.identity.history)
    later.step()
    assert ship.points()[-1].cuts.keys() == {COMMIT_LOG}
    assert ship.check().counts[:4] == (2, 0, 0, 0)
    assert ship.check(before_ms).counts.timers == 1, "the lost message was there before the power cut"
    assert ship.check(before_ms + 1000).counts.timers == 1
    assert ship.check(ship.clock.now_ms()).counts.timers == 0


def test_a_running_shipper_notices_that_records_were_replaced(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"on disk")
    harness.broker.parts.store.flush()
    harness.send("T", b"lost")
    shipper = ship.shipper()
    shipper.step()
    harness.cut_power(keep=0.0)
    ship.clock.advance(10)
    harness.start()
    harness.send("T", b"other")
    shipper.step()
    ship.restore()
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        assert restored.bodies("T") == [b"on disk", b"other"]


def test_merged_captures_do_not_bring_lost_records_back(harness: BrokerHarness, ship: Ship) -> None:
    """The merged captures are from before and after a power cut that the shipper noticed."""
    ship.settings = ShipSettings(merged_count=3)
    harness.send("T", b"on disk")
    harness.broker.parts.store.flush()
    shipper = ship.shipper()
    shipper.step()
    harness.send("T", bytes(400))
    shipper.step()
    harness.cut_power(keep=0.0)
    ship.clock.advance(10)
    harness.start()
    harness.send("T", b"other")
    shipper.step()
    assert not ship.target.names("new"), "the three captures are merged"
    assert shipper.history.end(COMMIT_LOG).position == harness.broker.parts.store.log.end
    harness.send("T", b"later")
    shipper.step()
    ship.restore()
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        assert restored.bodies("T") == [b"on disk", b"other", b"later"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_running_shipper_notices_a_truncated_log(
    small: Callable[[str], BrokerHarness], ship: Ship, is_restarted: bool
) -> None:
    """A former master truncates its log between two steps, and creates files with the same names again."""
    with small("store") as harness:
        kept, lost, other = ([b"%s %02d" % (name, i) + bytes(1000) for i in range(40)] for name in (b"a", b"b", b"c"))
        kept = kept[:8]
        for body in kept:
            harness.send("T", body)
        position = harness.broker.parts.store.log.end
        for body in lost:
            harness.send("T", body)
        names = Disk().list(StorePaths(ship.root / "store").commit_log)
        shipper = ship.shipper()
        shipper.step()
        if is_restarted:
            shipper = ship.shipper(shipper.identity.history)
        harness.stop()
        assert truncate(Disk(), harness.settings, position) == len(lost)
        ship.clock.advance(1000)
        harness.start()
        assert harness.bodies("T") == kept
        for body in other:
            harness.send("T", body)
        assert Disk().list(StorePaths(ship.root / "store").commit_log) == names
        shipper.step()
        ship.restore()
    with BrokerHarness(ship.root / "restored", clock=ship.clock, **SMALL_FILES) as restored:
        assert restored.bodies("T") == [*kept, *other]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_running_shipper_notices_a_cut_block(harness: BrokerHarness, ship: Ship, is_restarted: bool) -> None:
    """The log of a former master can agree with that of the new one while its blocks have more."""

    def send(body: bytes) -> None:
        harness.send("T", body, properties={"delayInSeconds": "3000"})

    for body in (b"kept", b"lost", b"lost too"):
        send(body)
    shipper = ship.shipper()
    shipper.step()
    if is_restarted:
        shipper = ship.shipper(shipper.identity.history)
    (block,) = harness.broker.parts.blocks
    harness.stop()
    cut_blocks_to(Disk(), ship.clock, harness.settings, {block.number: 1})
    ship.clock.advance(1000)
    harness.start()
    send(b"another")
    shipper.step()
    assert ship.check().counts.in_blocks == 2
    ship.restore()
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        restored.advance(3_100_000)
        assert sorted(restored.bodies("T")) == [b"another", b"kept"]


def test_a_removed_block_has_no_tail(harness: BrokerHarness, ship: Ship) -> None:
    """Else a shipper that runs for months has one for each block that ever was."""
    harness.send("T", b"now")
    shipper = ship.shipper()
    for _ in range(3):
        harness.send("T", b"soon", properties={"delayInSeconds": "2"})
        harness.send("T", b"far", properties={"delayInSeconds": "7200"})
        shipper.step()
        assert shipper._tails.keys() == {COMMIT_LOG, *shipper.history.blocks}
        harness.advance(30_000)
    assert shipper.step().is_complete
    assert shipper._tails.keys() == {COMMIT_LOG, *shipper.history.blocks}
    assert len(shipper.history.blocks) < len({chunk.stream for point in ship.points() for chunk in point.chunks}) - 1


def test_a_gap_begins_a_new_window(small: Callable[[str], BrokerHarness], ship: Ship) -> None:
    with small("store") as harness:
        harness.send("T", b"first")
        shipper = ship.shipper()
        shipper.step()
        first_ms = ship.clock.now_ms()
        for _ in range(300):
            harness.send("T", b"x" * 300)
        expire(harness)
        assert harness.broker.parts.store.log.start > 0
        later = ship.shipper(shipper.identity.history)
        while not later.step().is_complete:
            pass
        known = windows(ship.points())
        assert [known[0].first_ms, known[1].first_ms] == [first_ms, ship.clock.now_ms()]
        with pytest.raises(NotRestorable, match="has nothing between"):
            ship.plan(first_ms + 1)
        with pytest.raises(NotRestorable, match="begins at"):
            ship.plan(first_ms - 1)
        assert ship.check().log_start == harness.broker.parts.store.log.start


def test_a_gap_in_a_running_shipper_begins_a_new_window_too(small: Callable[[str], BrokerHarness], ship: Ship) -> None:
    with small("store") as harness:
        harness.send("T", b"first")
        shipper = ship.shipper()
        shipper.step()
        for _ in range(300):
            harness.send("T", b"x" * 300)
        expire(harness)
        while not shipper.step().is_complete:
            pass
        assert len(windows(ship.points())) == 2


def test_a_target_of_another_store_is_rejected(harness: BrokerHarness, ship: Ship, tmp_path: Path) -> None:
    harness.send("T", b"mine")
    ship.shipper().step()
    other = Ship(tmp_path / "other", ship.target, ship.clock)
    with BrokerHarness(tmp_path / "other" / "store", clock=ship.clock) as stranger:
        stranger.send("T", b"another")
        with pytest.raises(TargetForeign, match="records of another store"):
            other.shipper()


def test_a_folder_with_other_files_is_rejected(harness: BrokerHarness, ship: Ship) -> None:
    (ship.root / "target").mkdir()
    (ship.root / "target" / "letter.txt").write_text("dear")
    with pytest.raises(TargetForeign, match="other files"):
        ship.shipper()


def test_a_restored_store_continues_its_target(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    ship.shipper().step()
    at_ms = ship.clock.now_ms()
    ship.clock.advance(1000)
    harness.send("T", b"two")
    ship.shipper().step()
    again = Ship(ship.root / "again", ship.target, ship.clock)
    Ship(ship.root / "again", ship.target, ship.clock).restore(at_ms, "store")
    ship.clock.advance(1000)
    with BrokerHarness(ship.root / "again" / "store", clock=ship.clock) as restored:
        restored.send("T", b"another two")
        again.shipper().step()
        again.restore(name="last")
        again.restore(at_ms + 1000, name="before")
    for name, bodies in (("last", [b"one", b"another two"]), ("before", [b"one", b"two"])):
        with BrokerHarness(ship.root / "again" / name, clock=ship.clock) as found:
            assert found.bodies("T") == bodies


def test_shipping_begins_again_for_a_store_restored_to_a_time_before_an_expiry(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    """The target knows a later start of the log than the store has, and flags of later records."""
    with small("store") as harness:
        shipper = ship.shipper()
        for _ in range(100):
            harness.send("T", bytes(300))
        shipper.step()
        at_ms = ship.clock.now_ms()
        ship.clock.advance(1000)
        for _ in range(200):
            harness.send("T", bytes(300))
            shipper.step()
        expire(harness)
        shipper.step()
        assert shipper.history.log_start > harness.broker.parts.store.log.files.file_bytes
    again = Ship(ship.root / "again", ship.target, ship.clock)
    again.restore(at_ms, "store")
    ship.clock.advance(1000)
    with small("again/store") as restored:
        for _ in range(100):
            restored.send("T", b"n" * 300)
        again.settings = ShipSettings(step_bytes_max=4000)
        later = again.shipper()
        assert not later.step().is_complete
        while not later.step().is_complete:
            pass
        assert again.check_all().counts.records == 200 and len(windows(again.points())) == 2
        again.restore(name="last")
        with small("again/last") as found:
            assert found.bodies("T") == restored.bodies("T")


def test_two_shippers_of_one_target_stop(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    first = ship.shipper()
    first.step()
    second = ship.shipper(first.identity.history)
    harness.send("T", b"two")
    first.step()
    ship.clock.advance(1)
    harness.send("T", b"three")
    with pytest.raises(TargetTaken, match="another shipper"):
        second.step()


def test_a_second_start_removes_no_capture_that_the_first_stores_meanwhile(
    harness: BrokerHarness, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.send("T", b"one")
    first = ship.shipper()
    first.step()
    harness.send("T", b"two")

    def read_slowly(target: Target) -> list[PointObject]:
        found = read_catalog(target)
        first.step()
        return found

    monkeypatch.setattr("wheelmq.backup.shipper.read_catalog", read_slowly)
    ship.shipper(first.identity.history)
    assert ship.check().counts.records == 2


def test_an_object_that_cannot_be_removed_delays_no_other_work(
    harness: BrokerHarness, ship: Ship, tmp_path: Path
) -> None:
    """Else the next merge reads objects that are gone, for ever."""
    disk = SimulatedDisk()
    ship.target, ship.settings = FolderTarget(disk, tmp_path / "target"), ShipSettings(merged_count=2)
    shipper = ship.shipper()
    disk.fail_call(1, OSError(errno.EIO, "planted"), [Call.REMOVE])
    for i in range(6):
        harness.send("T", b"%d" % i)
        shipper.step()
        ship.clock.advance(1000)
    housekeeping = shipper.housekeeping
    assert housekeeping.failures == 1 and len(ship.target.names("new")) > len(names_in(housekeeping.objects, "new"))
    ship.clock.advance(60_000)
    for _ in range(4):
        shipper.step()
    assert ship.target.names("new") == names_in(housekeeping.objects, "new") and housekeeping.problem is None
    assert ship.check().counts.records == 6


def names_in(objects: list[PointObject], folder: str) -> list[str]:
    return [one.name for one in objects if one.name.startswith(f"{folder}/")]


def test_a_failed_attempt_is_repeated_as_it_was(harness: BrokerHarness, ship: Ship, tmp_path: Path) -> None:
    disk = SimulatedDisk()
    ship.target = FolderTarget(disk, tmp_path / "target")
    harness.send("T", b"one")
    shipper = ship.shipper()
    disk.fail_call(2, OSError(errno.EIO, "planted"))
    with pytest.raises(OSError, match="planted"):
        shipper.step()
    ship.clock.advance(10)
    harness.send("T", b"two")
    assert [shipper.step().records, shipper.step().records] == [1, 1]
    assert ship.check().counts.records == 2


def test_objects_that_nothing_needs_are_removed_at_the_start(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"one")
    ship.shipper().step()
    (ship.root / "target" / "log").mkdir()
    (ship.root / "target" / "log" / "0000000000000002-0000000000000002").write_bytes(b"of a killed shipper")
    ship.shipper()
    assert ship.target.names("log") == []


def test_a_missing_capture_is_an_error(harness: BrokerHarness, ship: Ship) -> None:
    shipper = ship.shipper()
    for _ in range(3):
        harness.send("T", b"x")
        shipper.step()
    ship.target.remove("new/0000000000000002")
    with pytest.raises(TargetDamaged, match="capture 2 is missing"):
        ship.points()


def test_a_damaged_record_does_not_stop_the_shipper(harness: BrokerHarness, ship: Ship) -> None:
    for i in range(3):
        harness.send("T", b"body %d" % i)
        harness.advance(10)
    harness.stop()  # the checkpoint says that all records were on disk
    path = ship.root / "store" / "commitlog" / f"{0:020d}"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"body 1", b"bodY 1"))
    ship.clock.advance(1)
    step = ship.shipper().step()
    assert step.records == 3 and not step.problems
    ship.restore()
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        assert restored.bodies("T") == [b"body 0", b"body 2"]
    harness.start()


def test_records_after_damage_are_not_shipped_and_named(harness: BrokerHarness, ship: Ship) -> None:
    for i in range(3):
        harness.send("T", b"body %d" % i)
        harness.advance(10)
    harness.stop()
    path = ship.root / "store" / "commitlog" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    at = raw.index(b"body 1") - 88
    raw[at : at + 100] = bytes(100)
    path.write_bytes(raw)
    step = ship.shipper().step()
    assert step.records == 1 and not step.is_complete
    assert "no record at byte" in step.problems[0]


def test_a_file_that_is_gone_is_gone_in_a_restore(harness: BrokerHarness, ship: Ship) -> None:
    extra = ship.root / "store" / "config" / "acl" / "users.json"
    extra.parent.mkdir()
    extra.write_text("{}")
    first = ship.shipper()
    first.step()
    at_ms = ship.clock.now_ms()
    extra.unlink()
    ship.clock.advance(1000)
    ship.shipper(first.identity.history).step()
    ship.restore(at_ms, "before")
    ship.restore(name="after")
    assert (ship.root / "before" / "config" / "acl" / "users.json").read_text() == "{}"
    assert not (ship.root / "after" / "config" / "acl" / "users.json").exists()


def test_the_disk_of_the_target_may_lose_power_at_any_time(harness: BrokerHarness, ship: Ship, tmp_path: Path) -> None:
    disk = SimulatedDisk()
    ship.target = FolderTarget(disk, tmp_path / "target")
    harness.send("T", b"one")
    ship.shipper().step()
    disk.cut_power(harness.randomness, keep=0.0)
    assert ship.check().counts.records == 1
