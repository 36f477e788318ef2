"""A start continues from a valid snapshot. Without one it walks the whole log."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import TIMER_STREAM
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.disk.snapshot import SNAPSHOT, Snapshot
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import QueueOffset
from wheelmq.store.journal import Rows
from wheelmq.store.snapshot import load_snapshot
from wheelmq.testing import invariants
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker

WAITS_MS = 60_000


@pytest.fixture(autouse=True)
def capture_info_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wheelmq.store")


def walked_from(caplog: pytest.LogCaptureFixture) -> int:
    """Where the last start began to walk the log."""
    return int(re.findall(r"recovery read it from (\d+)", caplog.text)[-1])


def snapshot_of(harness: BrokerHarness) -> Snapshot:
    found = load_snapshot(harness.disk, harness.broker.parts.paths)
    assert found is not None
    return found


def live(harness: BrokerHarness) -> None:
    """Send messages and timers, some released, some waiting, one cancelled. Take a snapshot, and send some more."""
    for i in range(8):
        unique = {props.UNIQ_KEY: f"K{i}"}
        assert harness.send("T", b"plain %d" % i).code == 0
        assert harness.send("T", b"timer %d" % i, delay_ms=500 if i < 4 else WAITS_MS, properties=unique).code == 0
    assert cancel(harness, 7) == "cancelled"
    harness.advance(4000, PipelineModel(harness).work, 500)
    assert snapshot_of(harness).position == harness.broker.parts.store.log.end
    harness.send("T", b"behind")
    assert cancel(harness, 6) == "cancelled"


def cancel(harness: BrokerHarness, number: int) -> str:
    properties = {props.TIMER_DEL_UNIQKEY: f"T+K{number}"}
    return harness.send("T", b"-", delay_ms=1000, properties=properties).ext["cancelResult"]


def check(harness: BrokerHarness) -> None:
    """Check that a start on the store of `live` finds all messages."""
    invariants.check(harness.broker)
    assert harness.broker.parts.timer.pending.counts.by_queue.sum() == 2
    assert [cancel(harness, number) for number in (7, 5)] == ["already delivered or cancelled", "cancelled"]
    harness.advance(WAITS_MS, PipelineModel(harness).work, 500)
    expected = [*(b"plain %d" % i for i in range(8)), *(b"timer %d" % i for i in range(5)), b"behind"]
    assert sorted(harness.bodies("T")) == sorted(expected)
    invariants.check(harness.broker)


def test_a_start_after_a_kill_walks_only_the_log_after_the_snapshot(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    live(harness)
    position = snapshot_of(harness).position
    harness.restart(clean=False)
    assert walked_from(caplog) == position < harness.broker.parts.store.log.end
    check(harness)


def test_a_start_after_a_clean_stop_walks_nothing(harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
    live(harness)
    harness.restart(clean=True)
    assert walked_from(caplog) == harness.broker.parts.store.log.end
    check(harness)


def remove_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T" / "0")


def remove_timer_queue(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / TIMER_TOPIC)


def remove_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def cut_queue(store: Path) -> None:
    path = store / "consumequeue" / "T" / "0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: 3 * 20].ljust(path.stat().st_size, b"\0"))


def remove_all_derived_files(store: Path) -> None:
    for name in ("consumequeue", "index", "timerlog"):
        shutil.rmtree(store / name)
    for name in ("timerwheel", "checkpoint", "config/timermark", "config/snapshot"):
        (store / name).unlink()


def remove_snapshot(store: Path) -> None:
    (store / "config" / "snapshot").unlink()


def flip(at: int) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        path = store / "config" / "snapshot"
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1
        path.write_bytes(raw)

    return damage


def cut_snapshot(store: Path) -> None:
    path = store / "config" / "snapshot"
    path.write_bytes(path.read_bytes()[: SNAPSHOT.size - 1])


def add_queue(store: Path) -> None:
    path = store / "config" / "snapshot"
    snapshot = Snapshot.decode(path.read_bytes())
    path.write_bytes(snapshot._replace(queue_ends={**snapshot.queue_ends, ("U", 0): QueueOffset(1)}).encode())


def change(**fields: object) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        path = store / "config" / "snapshot"
        path.write_bytes(Snapshot.decode(path.read_bytes())._replace(**fields).encode())

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "its first byte": (flip(0), "its checksum is wrong"),
    "a bit of it": (flip(SNAPSHOT.size), "its checksum is wrong"),
    "its end": (flip(-1), "its checksum is wrong"),
    "cut": (cut_snapshot, "are too few for a snapshot"),
    "gone": (remove_snapshot, ""),
    "of another log": (change(record_crc=1), "the log has another record"),
    "of a longer log": (change(position=1 << 40), "the log has no record"),
    "of a log elsewhere": (change(record_position=3), "the log has no record"),
    "of other queues": (change(queue_ends={("T", 0): 3}), "has other units than the snapshot says"),
    "of more queues": (add_queue, "of topic U is gone"),
    "a queue gone": (remove_queue, "queue 0 of topic T is gone"),
    "the timer queue gone": (remove_timer_queue, "has other units than the snapshot says"),
    "queues gone": (remove_queues, "than the snapshot says"),
    "a queue cut": (cut_queue, "queue 0 of topic T has other units than the snapshot says"),
    "all that follows gone": (remove_all_derived_files, ""),
}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_snapshot_is_logged_and_the_whole_log_is_walked(
    harness: BrokerHarness, store: Path, caplog: pytest.LogCaptureFixture, clean: bool, name: str
) -> None:
    live(harness)
    harness.stop() if clean else harness.crash()
    damage, text = DAMAGE[name]
    damage(store)
    harness.start()
    assert walked_from(caplog) == 0
    assert text in caplog.text
    check(harness)


def test_a_start_walks_the_log_if_a_pending_record_is_missing(
    harness: BrokerHarness, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Applies to units without a detail. A start reads no record of a message whose timer log unit has a detail."""
    live(harness)
    for _, units in harness.broker.parts.timer.log.chunks(0, harness.broker.parts.timer.log.end):
        units["reserved"] = 0
    index = harness.broker.parts.timer.pending.done.of(TIMER_STREAM).first_unset(100)
    position = int(harness.broker.parts.timer.queue.read(index, 1)["position"][0])  # type: ignore[arg-type]
    harness.crash()
    (store / "checkpoint").unlink()  # so that the walk ends the log there
    with open(store / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(position)
        file.write(bytes(8))
    harness.start()
    assert f"the log ends at {position}; recovery read it from 0" in caplog.text
    invariants.check(harness.broker)


class TestSnapshotTimes:
    def test_a_snapshot_waits_until_log_and_units_are_on_disk(self, tmp_path: Path) -> None:
        worker = HeldWorker()
        with BrokerHarness(tmp_path, worker=worker) as harness:
            harness.send("T")
            end = harness.broker.parts.store.log.end
            for _ in range(20):
                harness.advance(500)
                assert not harness.broker.parts.paths.snapshot.exists() or harness.broker.parts.store.log.synced >= end
                harness.run_jobs(1)
                invariants.check(harness.broker)
            assert snapshot_of(harness).position == end

    def test_an_unchanged_log_gets_no_second_snapshot(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        harness.send("T")
        harness.advance(5000)
        path = harness.broker.parts.paths.snapshot
        path.unlink()
        harness.advance(60_000)
        assert not path.exists()
        harness.send("T")
        harness.advance(5000)
        assert path.exists()

    def test_many_written_bytes_trigger_a_snapshot(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, snapshot_ms=60_000, snapshot_log_bytes=50_000) as harness:
            harness.send("T", bytes(40_000))
            harness.advance(5000)
            assert not harness.broker.parts.paths.snapshot.exists()
            harness.send("T", bytes(40_000))
            harness.advance(2000)
            assert snapshot_of(harness).position == harness.broker.parts.store.log.end

    def test_a_failed_sync_of_units_prevents_the_snapshot(
        self, harness: BrokerHarness, disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        harness.send("T")
        harness.advance(600)
        assert harness.broker.parts.store.log.synced == harness.broker.parts.store.log.end
        disk.sync_error = OSError(5, "Input/output error")
        harness.advance(10_000)
        disk.sync_error = None
        harness.advance(10_000)
        harness.stop()
        assert not (harness._folder / "config" / "snapshot").exists()
        assert "could not write the snapshot for the next start" in caplog.text
        harness.start()
        assert harness.bodies("T") == [b"body"]

    def test_an_empty_store_has_no_snapshot(self, harness: BrokerHarness) -> None:
        harness.advance(5000)
        harness.restart(clean=True)
        assert not harness.broker.parts.paths.snapshot.exists()
        invariants.check(harness.broker)


@pytest.mark.parametrize("damage", ["zeroed", "its neighbour's", "far", "large"])
def test_a_timer_queue_unit_with_a_wrong_record_loses_no_message(
    harness: BrokerHarness, store: Path, damage: str
) -> None:
    for i in range(60):
        harness.send("T", b"%d" % i, delay_ms=WAITS_MS)
    harness.advance(4000, PipelineModel(harness).work, 500)
    harness.stop()
    path = store / "consumequeue" / TIMER_TOPIC / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    at = QUEUE_UNIT.size * 37
    match damage:
        case "zeroed":
            raw[at : at + QUEUE_UNIT.size] = bytes(QUEUE_UNIT.size)
        case "its neighbour's":
            raw[at : at + QUEUE_UNIT.size] = raw[at + QUEUE_UNIT.size : at + 2 * QUEUE_UNIT.size]
        case "far":
            raw[at : at + 8] = (1 << 40).to_bytes(8, "big")
        case "large":
            raw[at + 8 : at + 12] = (1 << 30).to_bytes(4, "big")
    path.write_bytes(raw)
    harness.start()
    harness.advance(WAITS_MS + 5000, PipelineModel(harness).work, 500)
    assert sorted(map(int, harness.bodies("T"))) == list(range(60))


def test_a_start_after_apache_walks_the_whole_log(
    harness: BrokerHarness, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live(harness)
    harness.stop()
    check = store / "config" / "timercheck"
    raw = bytearray(check.read_bytes())
    raw[7] ^= 1  # Apache writes its fields, but not our copy of them
    check.write_bytes(raw)
    harness.start()
    assert "Apache RocketMQ has used the store" in caplog.text and walked_from(caplog) == 0


def test_no_snapshot_is_taken_while_a_failed_dispatch_has_left_units(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(harness)
    harness.settle()
    before = snapshot_of(harness).position
    queues = harness.broker.parts.store.queues
    write = queues.write

    def write_half(rows: Rows) -> dict[int, int]:
        write(rows[: len(rows) // 2])
        raise AssertionError("planted")

    harness.allows_failed_steps = True
    with monkeypatch.context() as patched:
        patched.setattr(queues, "write", write_half)
        for body in (b"one", b"two"):
            harness.submit(harness.send_command("T", body))
        harness.end_round()
        harness.advance(4000)
        assert queues.end("T", 0) == 14 and snapshot_of(harness).position == before
        invariants.check(harness.broker)
    harness.advance(4000)
    assert harness.bodies("T")[-2:] == [b"one", b"two"]
    assert snapshot_of(harness).position == harness.broker.parts.store.log.end
    invariants.check(harness.broker)
