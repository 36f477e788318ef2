"""The store after a stop of any kind. It runs in a broker harness, so that pulls show the messages that are left."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.unit.store.conftest import LOG, bodies, send_all, write
from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import LogPosition
from wheelmq.store import recovery
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def clean(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


def test_a_restart_finds_all_messages(harness: BrokerHarness, clean: bool) -> None:
    records = send_all(harness, 10)
    end, last_ms = harness.broker.parts.store.log.end, harness.broker.parts.store.log.last_store_ms
    harness.restart(clean=clean)
    log = harness.broker.parts.store.log
    assert (log.end, log.synced, log.last_store_ms) == (end, end, last_ms)
    assert harness.read_queue("T") == records
    assert harness.broker.parts.store.last_stop_was_clean is clean
    harness.send("T", b"after")
    assert harness.bodies("T") == [*bodies(10), b"after"]
    invariants.check(harness.broker)


def test_a_restart_finds_messages_in_several_log_files(harness: BrokerHarness, clean: bool) -> None:
    for i in range(30):
        harness.send("T", b"%d" % i * 100_000)
    assert harness.broker.parts.store.log.files.end == 4 << 20 or harness.broker.parts.store.log.files.end > 2 << 20
    before = harness.bodies("T")
    harness.restart(clean=clean)
    assert harness.bodies("T") == before and len(before) == 30


def test_the_store_time_does_not_decrease_over_a_stop(harness: BrokerHarness, clock: ManualClock, clean: bool) -> None:
    send_all(harness, 1)
    clock.step(-60_000)
    harness.restart(clean=clean)
    send_all(harness, 1)
    first, second = harness.read_queue("T")
    assert second.store_ms == first.store_ms


def test_a_stop_between_a_blank_and_the_next_record_is_recovered(harness: BrokerHarness, store: Path) -> None:
    harness.send("T", bytes(600_000))
    log = harness.broker.parts.store.log
    log.reserve(600_000)  # this fills the file with a blank; then the process ends
    assert log.end == 1 << 20
    harness.restart(clean=False)
    assert harness.broker.parts.store.log.end == 1 << 20
    harness.send("T", b"after")
    assert [len(body) for body in harness.bodies("T")] == [600_000, 5]


class TestTornTail:
    """The last record is partly on disk. The rest are zeros of the new file."""

    def last(self, records: list[Record]) -> tuple[int, int, int]:
        """Return the position and size of the last record, and the end of its body relative to its position."""
        record = records[-1]
        return record.position, record.size, 88 + len(record.message.body)

    def start(
        self, harness: BrokerHarness, store: Path, whole: bytes, position: int, size: int, cut: int
    ) -> list[bytes]:
        shutil.rmtree(store / "consumequeue")
        (store / "checkpoint").unlink(missing_ok=True)
        write(store / LOG, position, whole[:cut] + bytes(size - cut))
        harness.start()
        found = harness.bodies("T")
        if found == bodies(9):
            assert harness.broker.parts.store.log.end == position
        harness.crash()
        return found

    def test_a_record_torn_at_any_byte_of_its_body_is_dropped(
        self, stopped: tuple[BrokerHarness, list[Record]], store: Path
    ) -> None:
        harness, records = stopped
        position, size, body_end = self.last(records)
        whole = (store / LOG).read_bytes()[position : position + size]
        for cut in range(body_end):
            assert self.start(harness, store, whole, position, size, cut) == bodies(9), cut

    def test_a_record_torn_at_any_byte_after_its_body_is_dropped(
        self, stopped: tuple[BrokerHarness, list[Record]], store: Path
    ) -> None:
        harness, records = stopped
        position, size, body_end = self.last(records)
        whole = (store / LOG).read_bytes()[position : position + size]
        wrong = [
            cut for cut in range(body_end, size) if self.start(harness, store, whole, position, size, cut) != bodies(9)
        ]
        assert not wrong

    def test_the_log_is_cleared_after_its_end(self, stopped: tuple[BrokerHarness, list[Record]], store: Path) -> None:
        harness, records = stopped
        position, _size, _ = self.last(records)
        write(store / LOG, position + 4, b"\0")
        harness.start()
        assert harness.bodies("T") == bodies(9)
        assert not any((store / LOG).read_bytes()[position:])
        harness.send("T", b"after")
        harness.restart(clean=False)
        assert harness.bodies("T") == [*bodies(9), b"after"]

    def test_files_after_the_end_are_removed(self, harness: BrokerHarness, store: Path) -> None:
        harness.send("T", bytes(600_000))
        records = send_all(harness, 3)
        harness.send("T", bytes(600_000))
        harness.crash()
        assert len(list((store / "commitlog").iterdir())) == 2
        write(store / LOG, records[1].position + 88, b"X")
        harness.start()
        assert [file.name for file in (store / "commitlog").iterdir()] == [f"{0:020d}"]
        assert [body[:9] for body in harness.bodies("T")] == [bytes(9)]


class TestQueues:
    def test_missing_queues_are_rebuilt_without_a_checkpoint(
        self, stopped: tuple[BrokerHarness, list[Record]], store: Path
    ) -> None:
        harness, records = stopped
        shutil.rmtree(store / "consumequeue")
        (store / "checkpoint").unlink(missing_ok=True)
        harness.start()
        assert harness.read_queue("T") == records

    def test_missing_queues_are_rebuilt_with_a_checkpoint(self, harness: BrokerHarness, store: Path) -> None:
        records = send_all(harness, 10)
        harness.advance(10_000)
        records += [harness.send("T", b"late") and harness.read_queue("T")[-1]]
        harness.stop()
        shutil.rmtree(store / "consumequeue")
        harness.start()
        assert harness.read_queue("T") == records

    def test_missing_last_units_are_rebuilt(self, stopped: tuple[BrokerHarness, list[Record]], store: Path) -> None:
        harness, records = stopped
        write(store / f"consumequeue/T/0/{0:020d}", 6 * 20, bytes(4 * 20))
        harness.start()
        assert harness.read_queue("T") == records

    def test_units_of_missing_records_are_removed(
        self, stopped: tuple[BrokerHarness, list[Record]], store: Path
    ) -> None:
        harness, records = stopped
        write(store / LOG, records[7].position, bytes(8))
        harness.start()
        assert harness.bodies("T") == bodies(7)
        queue = harness.broker.parts.store.queues.find("T", 0)
        assert queue is not None and queue.end == 7
        harness.send("T", b"after")
        assert harness.bodies("T") == [*bodies(7), b"after"]

    def test_a_disk_that_is_full_for_one_queue_loses_no_message(
        self, harness: BrokerHarness, disk: SimulatedDisk, clean: bool
    ) -> None:
        harness.send("A", b"-")
        for i in range(20):
            harness.send("A", b"%d" % i, delay_ms=1000 * (i + 1))
            harness.send("T", b"%d" % i, delay_ms=1000 * (i + 1))
        for _ in range(295):
            harness.send("T", b"-")
        disk.is_full = lambda path: "consumequeue" in str(path)
        harness.advance(21_000)
        if clean:
            harness.stop()
        else:
            harness.crash()
        disk.is_full = lambda path: False
        harness.start()
        harness.advance(1000)
        assert harness.bodies("T")[295:] == [b"%d" % i for i in range(20)]

    def test_holes_and_later_units_of_missing_records_are_removed(
        self, stopped: tuple[BrokerHarness, list[Record]], store: Path
    ) -> None:
        harness, records = stopped
        path = store / f"consumequeue/T/0/{0:020d}"
        for hole, count in ((2, 3), (0, 10)):
            write(store / LOG, records[2].position, bytes(8))
            units = b"".join(struct.pack(">QIq", 1 << 19, 100, 0) for _ in range(10))
            write(path, 0, units)
            write(path, hole * 20, bytes(count * 20))
            write(path, 200 * 20, units)
            harness.start()
            assert harness.bodies("T") == bodies(2)
            assert path.read_bytes()[2 * 20 :] == bytes(298 * 20)
            harness.crash()

    def test_rebuilt_units_are_synced_again(self, harness: BrokerHarness, disk: SimulatedDisk) -> None:
        records = send_all(harness, 3)
        harness.restart(clean=False)
        harness.advance(20_000)
        harness.send("U", b"-")
        harness.advance(20_000)
        harness.cut_power(keep=0.0)
        harness.start()
        assert harness.read_queue("T") == records

    def test_a_failed_sync_prevents_the_checkpoint(
        self, harness: BrokerHarness, disk: SimulatedDisk, store: Path
    ) -> None:
        send_all(harness, 3)
        job = harness.broker.parts.store.checkpoint_job()
        assert job is not None
        disk.sync_error = OSError(5, "Input/output error")
        with pytest.raises(OSError, match="Input/output"):
            job()
        disk.sync_error = None
        harness.advance(20_000)
        harness.stop()
        assert not (store / "checkpoint").exists()
        harness.start()
        assert not harness.broker.parts.store.last_stop_was_clean


class TestPowerCut:
    def test_acknowledged_messages_survive_a_power_cut(self, tmp_path: Path, disk: SimulatedDisk) -> None:
        for seed in range(10):
            with BrokerHarness(tmp_path / str(seed), disk=disk, seed=seed, flush_mode="SYNC_FLUSH") as harness:
                send_all(harness, 10)
                for i in range(5):
                    harness.submit(harness.send_command("T", b"unsynced %d" % i))
                harness.cut_power()
                harness.start()
                assert harness.bodies("T")[:10] == bodies(10)
                invariants.check(harness.broker)

    def test_stale_units_do_not_come_back(self, tmp_path: Path, disk: SimulatedDisk) -> None:
        with BrokerHarness(tmp_path, disk=disk, flush_mode="SYNC_FLUSH") as harness:
            send_all(harness, 2)
            for topic in ("T", "T", "T"):
                harness.submit(harness.send_command(topic, b"lost"))
            harness.broker.parts.store.dispatch()
            for file in (tmp_path / "consumequeue/T/0").iterdir():
                disk.map(file, file.stat().st_size).sync(0)  # the kernel writes the queue back, not the log
            harness.cut_power(keep=0.0)
            harness.start()
            for _ in range(3):
                harness.send("U", b"elsewhere")
            harness.cut_power(keep=0.0)
            harness.start()
            assert harness.bodies("T") == bodies(2)
            assert harness.bodies("U") == [b"elsewhere"] * 3


def test_a_walk_over_the_log_returns_all_records(harness: BrokerHarness) -> None:
    """Rows and end of the walk match the records in the log, also across a file border."""
    for i in range(30):
        harness.send("T", b"%d" % i * 50_000)
    records = invariants.read_log(harness.broker).records
    log = harness.broker.parts.store.log
    scan = recovery.LogScan(log.files, log.start)
    rows = [row.copy() for rows in scan.chunks() for row in rows]
    assert scan.end == log.end
    col = recovery.col
    assert [(row[col.POSITION], row[col.SIZE], row[col.STORE_MS]) for row in rows] == [
        (record.position, record.size, record.store_ms) for record in records
    ]
    assert {scan.names.name(int(row[col.TOPIC])) for row in rows} == {"T"}
    behind = recovery.LogScan(log.files, LogPosition(records[20].position))
    assert sum(len(rows) for rows in behind.chunks()) == 10


def test_a_walk_interns_many_names() -> None:
    names = recovery.InternedNames()
    wanted = [f"topic-{i}" + "x" * 60 for i in range(700)]
    rows = [names.intern(name) for name in wanted]
    assert [names.name(row) for row in rows] == wanted
    assert [names.intern(name) for name in wanted] == rows == list(range(700))
