"""Restores: exact times, facts of deleted records, files, verification, folders in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.backup.conftest import SMALL_FILES, Ship, expire
from wheelmq.auth.files import USERS_NAME
from wheelmq.auth.inner_users import PIPELINE_KEY_NAME
from wheelmq.backup.objects import TargetDamaged
from wheelmq.backup.plan import Window, windows
from wheelmq.backup.restore import FolderInUse, Restore
from wheelmq.backup.settings import ShipSettings
from wheelmq.broker.replication.role import StoredRole, store_role
from wheelmq.delay.timer.mark import Mark, MarkFile
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.system.disk import Disk, ReadOnlyDisk
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.stops import Died, Stops


def test_a_restore_has_the_records_that_were_stored_by_the_time(harness: BrokerHarness, ship: Ship) -> None:
    shipper = ship.shipper()
    shipper.step()
    times = []
    for i in range(6):
        harness.send("T", b"%d" % i)
        times.append(ship.clock.now_ms())
        harness.advance(7)
        if i == 3:
            shipper.step()
    shipper.step()
    for i, at_ms in enumerate(times):
        for extra_ms in (0, 6):
            made = ship.restore(at_ms + extra_ms, f"at-{i}-{extra_ms}")
            assert made.counts.records == i + 1 and made.last_ms == at_ms
    with BrokerHarness(ship.root / "at-4-6", clock=ManualClock(ship.clock.now_ms())) as restored:
        assert restored.bodies("T") == [b"0", b"1", b"2", b"3", b"4"]


def test_the_only_millisecond_before_a_gap_is_that_of_its_point(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    """The broker stores more in this millisecond, after the point, and deletes it before it is shipped."""
    with small("store") as harness:
        harness.send("T", b"in the point")
        shipper = ship.shipper()
        shipper.step()
        only_ms, at_point = ship.clock.now_ms(), ship.check()
        for i in range(300):
            harness.send("T", b"%03d" % i + bytes(300))
        assert ship.clock.now_ms() == only_ms
        expire(harness)
        while not shipper.step().is_complete:
            pass
    assert windows(ship.points())[0] == Window(only_ms, only_ms)
    restored = ship.restore(only_ms)
    assert (restored.counts, restored.log_end, restored.last_ms) == (
        at_point.counts,
        at_point.log_end,
        only_ms,
    )
    with BrokerHarness(ship.root / "restored", clock=ManualClock(only_ms), **SMALL_FILES) as again:
        assert again.bodies("T") == [b"in the point"]


def test_a_time_inside_merged_captures_is_exact(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(merged_count=10)
    shipper = ship.shipper()
    shipper.step()
    times = []
    for i in range(20):
        harness.send("T", b"%d" % i, delay_ms=3_600_000)
        harness.send("T", b"%d" % i, properties={"delayInSeconds": "3600"})
        times.append(ship.clock.now_ms())
        shipper.step()
        harness.advance(100)
    assert len(ship.points()) < 5
    for i in (0, 7, 19):
        counts = ship.check(times[i] + 50).counts
        assert (counts.timers, counts.in_blocks) == (i + 1, i + 1)
        assert ship.restore(times[i] + 50, f"at-{i}").counts == counts


def test_pending_messages_leave_once_and_on_time_after_a_restore(harness: BrokerHarness, ship: Ship) -> None:
    due = {}
    for i in range(4):
        due[b"timer %d" % i] = harness.now_ms + 4000 * (i + 1)
        harness.send("T", b"timer %d" % i, delay_ms=4000 * (i + 1))
        due[b"block %d" % i] = harness.now_ms + 4000 * (i + 1)
        harness.send("T", b"block %d" % i, properties={"delayInSeconds": str(4 * (i + 1))})
    harness.advance(5000)
    ship.shipper().step()
    ship.restore()
    assert len(harness.bodies("T")) == 2
    with BrokerHarness(ship.root / "restored", clock=ManualClock(harness.now_ms)) as restored:
        restored.advance(20_000)
        records = restored.read_queue("T")
    assert sorted(record.message.body for record in records) == sorted(due)
    assert all(record.store_ms >= due[record.message.body] for record in records)


def test_a_message_that_was_released_after_the_time_is_released_again(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"later", delay_ms=3000)
    shipper = ship.shipper()
    shipper.step()
    at_ms = harness.now_ms
    harness.advance(5000)
    shipper.step()
    assert ship.check().counts.timers == 0
    ship.restore(at_ms)
    with BrokerHarness(ship.root / "restored", clock=ManualClock(harness.now_ms)) as restored:
        restored.advance(1000)
        assert restored.bodies("T") == [b"later"]


def test_queues_continue_at_their_ends_when_their_records_have_expired(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    with small("store") as harness:
        for i in range(5):
            harness.send("Old", b"%d" % i)
        harness.send("T", b"timer", delay_ms=1000)
        for _ in range(300):
            harness.send("T", b"x" * 300)
        for _ in range(5):  # until the broker has indexed the timer itself
            expire(harness)
        assert harness.broker.parts.store.log.start > 0
        ship.shipper().step()
        end = harness.broker.parts.store.queues.end("T", 0)
    made = ship.restore()
    assert made.log_start > 0
    with small("restored") as restored:
        queues = restored.broker.parts.store.queues
        assert (queues.end("Old", 0), queues.end("T", 0)) == (5, end)
        assert int(restored.send("Old", b"next").ext["queueOffset"]) == 5
        restored.send("T", b"another timer", delay_ms=2000)
        restored.advance(5000)
        assert restored.bodies("T")[-1] == b"another timer"


def test_messages_of_blocks_stay_settled_when_the_settling_records_have_expired(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    with small("store") as harness:
        start_ms = harness.now_ms - harness.now_ms % 10_000 + 10_000
        harness.advance(start_ms - harness.now_ms)
        for i in range(1, 10):
            harness.send("T", b"block %d" % i, properties={"delayInSeconds": str(i)})
        harness.advance(4000)
        for _ in range(300):
            harness.send("T", b"x" * 300)
        harness.advance(1500)
        for _ in range(2):
            harness.broker.parts.file_upkeep.expiry.poll(at_once=True)
            harness.advance(700)
        log_start = harness.broker.parts.store.log.start
        assert log_start > 0
        ship.shipper().step()
        pending = int(harness.broker.parts.timer.pending.counts.by_queue.sum())
        assert 0 < pending < 9
    assert ship.check().counts.in_blocks == ship.restore().counts.in_blocks == pending
    with small("restored") as restored:
        end = restored.broker.parts.store.log.end
        restored.advance(30_000)
        left = [record for record in restored.read_queue("T") if record.position >= end]
        assert [record.message.body for record in left] == [b"block %d" % i for i in range(10 - pending, 10)]


def test_a_store_that_expires_while_it_is_shipped_keeps_these_facts(
    small: Callable[[str], BrokerHarness], ship: Ship
) -> None:
    with small("store") as harness:
        shipper = ship.shipper()
        for i in range(5):
            harness.send("Old", b"%d" % i)
            harness.send("T", b"block %d" % i, properties={"delayInSeconds": str(1 + 3600 * (i % 2))})
        shipper.step()
        for _ in range(20):
            for _ in range(15):
                harness.send("T", b"x" * 300)
            harness.advance(100)
            shipper.step()
        expire(harness)
        shipper.step()
        assert ship.plan().history.log_start > 0 and len({point.is_restart for point in ship.points()}) == 1
    assert ship.restore().counts.in_blocks == 2
    with small("restored") as restored:
        assert restored.broker.parts.store.queues.end("Old", 0) == 5
        assert restored.broker.parts.timer.pending.counts.by_queue.sum() == 2


def test_offsets_are_never_ahead_of_the_restored_log(harness: BrokerHarness, ship: Ship) -> None:
    shipper = ship.shipper()
    shipper.step()
    for i in range(4):
        harness.send("T", b"%d" % i)
        harness.broker.parts.consumer_offsets.commit("G", "T", 0, i + 1)
        job = harness.broker.parts.consumer_offsets.save_job()
        assert job is not None
        job()
        shipper.step()
        harness.advance(10)
    at_ms = ship.clock.now_ms() - 25  # in the middle of the third capture
    ship.restore(at_ms)
    with BrokerHarness(ship.root / "restored", clock=ManualClock(harness.now_ms)) as restored:
        offset = restored.broker.parts.consumer_offsets.get("G", "T", 0)
        assert offset is not None and offset <= len(restored.bodies("T")) == 2


def test_the_mark_keeps_its_epoch_and_indexes_again(harness: BrokerHarness, ship: Ship) -> None:
    paths = StorePaths(ship.root / "store")
    harness.send("T", b"x", delay_ms=60_000)
    harness.stop()
    MarkFile(Disk(), paths).write(Mark(1, 52, 7, 11, 0))
    ship.shipper().step()
    ship.restore()
    found = MarkFile(ReadOnlyDisk(), StorePaths(ship.root / "restored")).load()
    assert found == Mark(0, 0, 7, 11, 0)
    assert not (ship.root / "restored" / "config" / "timercheck").exists()


def test_a_target_has_no_readable_secret(harness: BrokerHarness, ship: Ship) -> None:
    """The secrets of users are encrypted, and their key is beside the store."""
    tables, secret = harness.broker.parts.access.tables, "the secret of bob"
    tables.change_user("bob", tables.users.make("bob", secret))
    harness.send("T", b"x")
    harness.stop()
    ship.shipper().step()
    own = StorePaths(ship.root / "store").config_file(PIPELINE_KEY_NAME)
    assert own.exists() and PIPELINE_KEY_NAME not in ship.plan().history.files
    ship.restore()
    restored = StorePaths(ship.root / "restored")
    assert not restored.config_file(PIPELINE_KEY_NAME).exists()
    users = restored.config_file(USERS_NAME).read_text()
    assert "bob" in users and secret not in users


def test_a_restored_store_has_no_snapshot_and_no_role(harness: BrokerHarness, ship: Ship) -> None:
    """The done bits of a snapshot may be ahead of the restored log, and the role is that of another broker."""
    paths = StorePaths(ship.root / "store")
    harness.send("T", b"x", delay_ms=5000)
    shipper = ship.shipper()
    shipper.step()
    before_ms = ship.clock.now_ms()
    harness.advance(6000)
    assert harness.bodies("T") == [b"x"]
    harness.stop()
    store_role(Disk(), paths, StoredRole(is_master=False, broker_id=3))
    shipper.step()
    assert paths.snapshot.exists() and paths.replication_role.exists()
    assert not {"snapshot", "replicationRole.json"} & ship.plan().history.files.keys()
    ship.restore(before_ms)
    restored_paths = StorePaths(ship.root / "restored")
    assert not restored_paths.snapshot.exists() and not restored_paths.replication_role.exists()
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        restored.advance(1000)
        assert restored.bodies("T") == [b"x"]


def test_a_folder_in_use_is_not_touched(harness: BrokerHarness, ship: Ship) -> None:
    ship.shipper().step()
    (ship.root / "restored").mkdir()
    (ship.root / "restored" / "mine").write_text("keep")
    with pytest.raises(FolderInUse, match="not empty"):
        ship.restore()
    assert (ship.root / "restored" / "mine").read_text() == "keep"


def test_an_empty_folder_is_used(harness: BrokerHarness, ship: Ship) -> None:
    ship.shipper().step()
    (ship.root / "restored").mkdir()
    ship.restore()
    assert (ship.root / "restored" / "config").is_dir()


@pytest.mark.parametrize("after", range(1, 30, 4))
def test_a_killed_restore_leaves_no_folder_that_looks_whole(harness: BrokerHarness, ship: Ship, after: int) -> None:
    harness.send("T", b"x", delay_ms=60_000)
    harness.send("T", b"y", properties={"delayInSeconds": "60"})
    ship.shipper().step()
    died = False
    with Stops(die_at=after) as stops:
        try:
            ship.restore()
        except Died:
            died = True
    if not died or stops.passed[-1] == "restore.renamed":
        assert (ship.root / "restored").is_dir()
        return
    assert not (ship.root / "restored").exists()
    with pytest.raises(FolderInUse, match=r"did not end"):
        ship.restore()


def test_each_changed_byte_of_a_target_is_found(harness: BrokerHarness, ship: Ship) -> None:
    ship.settings = ShipSettings(merged_count=3)
    shipper = ship.shipper()
    for i in range(5):
        harness.send("T", b"body %d" % i)
        harness.send("T", b"block %d" % i, properties={"delayInSeconds": "60"})
        shipper.step()
    good, found, missed = ship.check_all(), 0, 0
    for name in ship.target.names(""):
        path = ship.root / "target" / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[at] ^= 0x40
            path.write_bytes(damaged)
            try:
                checked = ship.check_all()
            except TargetDamaged:
                found += 1
                continue
            assert checked == good, (name, at)
            missed += 1
        path.write_bytes(whole)
    # bits that mean nothing to zstd, and the indexes that objects of chunks have for themselves
    assert found > 4 * missed


def test_a_chunk_that_is_missing_is_named(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"x")
    shipper = ship.shipper()
    shipper.step()
    harness.send("T", b"y")
    shipper.step()
    plan = ship.plan()
    del plan.history.log[0]
    from wheelmq.backup.check import TargetCheck

    with pytest.raises(TargetDamaged, match="bytes from 0 to"):
        TargetCheck(ship.target, plan).run()


def test_a_chunk_of_another_length_is_rejected(harness: BrokerHarness, ship: Ship) -> None:
    harness.send("T", b"x")
    ship.shipper().step()
    plan = ship.plan()
    plan.history.log[0] = msgspec.structs.replace(plan.history.log[0], end=plan.history.log[0].end + 1)
    with pytest.raises(TargetDamaged, match="another length"):
        Restore(ship.target, plan, Disk(), lambda done, total: None).run(ship.root / "restored")


def test_an_empty_store_can_be_shipped_and_restored(harness: BrokerHarness, ship: Ship) -> None:
    ship.shipper().step()
    assert ship.restore().counts.records == 0
    with BrokerHarness(ship.root / "restored", clock=ship.clock) as restored:
        restored.send("T", b"first")
        assert restored.bodies("T") == [b"first"]


def test_a_stopped_store_can_be_shipped(harness: BrokerHarness, ship: Ship, tmp_path: Path) -> None:
    harness.send("T", b"x", properties={"delayInSeconds": "60"})
    harness.stop()
    step = ship.shipper().step()
    assert step.is_complete and ship.check().counts.in_blocks == 1
    harness.start()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ShipSettings().keep_ms = 1  # type: ignore[misc]
