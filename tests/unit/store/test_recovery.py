"""The store after a stop of any kind. It runs in a broker harness, so that pulls show the messages that are left."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.store import recovery
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness

LOG = f"commitlog/{0:020d}"


@pytest.fixture(params=[True, False], ids=["clean", "killed"])
def clean(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % i for i in range(count)]


def send_all(harness: BrokerHarness, count: int, topic: str = "T") -> list[Record]:
    for body in bodies(count):
        assert harness.send(topic, body).code == 0
    return harness.read_queue(topic)


def write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.fixture
def stopped(harness: BrokerHarness) -> Iterator[tuple[BrokerHarness, list[Record]]]:
    """A killed broker with ten messages in its log. A test may damage the log before the start."""
    records = send_all(harness, 10)
    harness.crash()
    yield harness, records


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


def test_a_flipped_bit_in_the_last_body_drops_the_record(
    stopped: tuple[BrokerHarness, list[Record]], store: Path
) -> None:
    harness, records = stopped
    at = records[-1].position + 88
    write(store / LOG, at, bytes([(store / LOG).read_bytes()[at] ^ 0x08]))
    harness.start()
    assert harness.bodies("T") == bodies(9)
    invariants.check(harness.broker)


def test_a_flipped_bit_in_an_old_body_loses_only_that_message(harness: BrokerHarness, store: Path) -> None:
    records = send_all(harness, 10)
    harness.advance(60_000)
    harness.send("T", b"later")
    harness.stop()
    write(store / LOG, records[4].position + 88, b"X")
    try:
        harness.start()
    except (ValueError, OSError):
        return  # a rejected start is right too: an operator must check the disk
    assert harness.bodies("T")[-1] == b"later"


@pytest.mark.parametrize("flip", [1 << 63, 1 << 40, 1 << 12], ids=["negative", "in no origin", "than log between"])
@pytest.mark.parametrize("size", [10, 70_000])
def test_an_impossible_queue_offset_loses_only_that_message(
    harness: BrokerHarness, store: Path, caplog: pytest.LogCaptureFixture, flip: int, size: int
) -> None:
    """The blanks up to that offset would fill the disk."""
    for i in range(30):
        harness.send("T", b"%02d" % i * (size // 2))
    harness.send("T", b"parked", delay_ms=600_000)
    records = harness.read_queue("T")
    harness.advance(60_000)
    harness.send("T", b"later")
    harness.stop()
    (store / "config" / "snapshot").unlink()
    shutil.rmtree(store / "consumequeue")
    record = records[-2]
    base = record.position >> 20 << 20
    write(store / f"commitlog/{base:020d}", record.position - base + 20, (28 ^ flip).to_bytes(8, "big"))
    harness.start()
    left = [body[:5] for body in harness.bodies("T")]
    assert len(left) == 30 and left[-2:] == [b"29292", b"later"] and b"28282" not in left
    assert f"the record at log position {record.position} has changed" in caplog.text
    assert harness.broker.parts.store.queues.end("T", 0) == 31
    harness.advance(600_000)
    assert harness.bodies("T")[-1] == b"parked"
    invariants.check(harness.broker)


@pytest.mark.parametrize("flip", [1 << 20, 1 << 30])
def test_an_impossible_first_offset_loses_only_that_message(harness: BrokerHarness, store: Path, flip: int) -> None:
    """The queue would begin after all its other messages."""
    records = send_all(harness, 9)
    harness.advance(5000)
    harness.send("T", b"later")
    harness.stop()
    shutil.rmtree(store / "consumequeue")
    (store / "config" / "snapshot").unlink()
    write(store / LOG, records[0].position + 20, flip.to_bytes(8, "big"))
    harness.start()
    assert harness.bodies("T") == [*bodies(9)[1:], b"later"]


def test_a_cancel_with_a_damaged_offset_still_cancels(harness: BrokerHarness, store: Path) -> None:
    harness.send("T", b"parked", delay_ms=60_000, properties={props.UNIQ_KEY: "U1"})
    end = harness.broker.parts.store.log.end
    cancel = {props.TIMER_DEL_UNIQKEY: "T+U1"}
    assert harness.send("T", properties=cancel, delay_ms=60_000).ext["cancelResult"] == "cancelled"
    harness.advance(3000)
    harness.send("T", b"later")
    harness.stop()
    (store / "config" / "snapshot").unlink()
    write(store / LOG, end + 20, (1 ^ 1 << 40).to_bytes(8, "big"))
    harness.start()
    harness.advance(70_000)
    assert harness.bodies("T") == [b"later"]


@pytest.mark.parametrize("at", [4, 28, 84], ids=["magic", "position", "body size"])
def test_a_pull_skips_a_damaged_record(harness: BrokerHarness, caplog: pytest.LogCaptureFixture, at: int) -> None:
    records = send_all(harness, 10)
    file = harness.broker.parts.store.log.files.file_at(records[4].position)
    file.array[records[4].position + at] ^= 1
    assert harness.bodies("T") == [*bodies(4), *bodies(10)[5:]]
    assert "1 units of queue 0 of topic T" in caplog.text


@pytest.mark.parametrize("at", [0, 4, 28, 84], ids=["size", "magic", "position", "body size"])
def test_a_damaged_old_record_stops_the_start(harness: BrokerHarness, store: Path, at: int) -> None:
    records = send_all(harness, 10)
    harness.advance(60_000)
    harness.send("T", b"later")
    harness.stop()
    (store / "config" / "snapshot").unlink()  # with the snapshot no start reads there
    log = (store / LOG).read_bytes()
    write(store / LOG, records[4].position + at, b"\x7f" * 4)
    with pytest.raises(recovery.LogDamaged, match="put a good copy in its place"):
        harness.start()
    write(store / LOG, 0, log)  # the failed start has changed nothing
    harness.start()
    assert harness.bodies("T") == [*bodies(10), b"later"]
    harness.stop()
    write(store / LOG, records[4].position + at, b"\x7f" * 4)
    for name in ("checkpoint", "config/snapshot"):
        (store / name).unlink()
    harness.start()
    assert harness.bodies("T") == bodies(4)


def test_records_that_are_missing_without_a_trace_are_logged(
    harness: BrokerHarness, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = send_all(harness, 9)
    harness.advance(5000)
    harness.send("T", b"later")
    harness.advance(5000)
    harness.stop()
    write(store / LOG, records[4].position, bytes((store / LOG).stat().st_size - records[4].position))
    (store / "config" / "snapshot").unlink()
    harness.start()
    assert harness.bodies("T") == bodies(4)
    assert "they are missing" in caplog.text


def test_a_missing_sector_of_the_last_properties_drops_the_record(harness: BrokerHarness, store: Path) -> None:
    send_all(harness, 9)
    harness.send("T", b"last", properties={"long": "x" * 2000})
    record = harness.read_queue("T")[-1]
    harness.crash()
    write(store / LOG, (record.position + 1024) // 512 * 512, bytes(512))
    harness.start()
    assert harness.bodies("T") == bodies(9)


def test_a_property_with_a_nul_is_rejected(harness: BrokerHarness) -> None:
    for properties in ({"a": "x\0y"}, {"a\0": "x"}):
        assert harness.send("T", properties=properties).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.bodies("T") == []


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


@pytest.mark.parametrize(
    "head",
    [struct.pack(">iI", -1, 0xDAA320A7), struct.pack(">iI", 1 << 30, 0xDAA320A7), b"\xff" * 8],
    ids=["negative", "huge", "ones"],
)
def test_a_hostile_first_record_gives_an_empty_log(
    stopped: tuple[BrokerHarness, list[Record]], store: Path, head: bytes
) -> None:
    harness, _ = stopped
    write(store / LOG, 0, head)
    harness.start()
    assert harness.broker.parts.store.log.end == 0
    assert harness.bodies("T") == []
    harness.send("T", b"after")
    assert harness.bodies("T") == [b"after"]
