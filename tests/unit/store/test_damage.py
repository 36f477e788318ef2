"""Damaged records of the log, and their effects on starts and pulls."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.unit.store.conftest import LOG, bodies, send_all, write
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.store import recovery
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness


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
