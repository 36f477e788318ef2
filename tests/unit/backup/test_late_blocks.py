"""Blocks that reach a store after its log: a slave copies the two over connections of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.unit.backup.conftest import Ship
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.source import Source, SourceBlock
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_BLANK, FLAG_DONE
from wheelmq.formats.disk.message import decode_record
from wheelmq.formats.disk.origin import INDEX_MASK
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.properties import WMQ_ORIGIN
from wheelmq.testing.harness import BrokerHarness

MERGES = ShipSettings(merged_count=2, objects_of_points=2)
KEEP = ShipSettings(merged_count=2, objects_of_points=2, keep_ms=1000, expiry_interval_ms=0)
SENT = 9
FIRST = f"{0:020d}"


@dataclass
class Slave:
    """The store of a slave. A test decides when log and block reach it."""

    ship: Ship
    master: StorePaths

    @property
    def paths(self) -> StorePaths:
        return StorePaths(self.ship.root / "store")

    @property
    def done(self) -> list[int]:
        """The indexes of the messages that the block of the master flags as settled."""
        (folder,) = self.master.blocks.iterdir()
        units = np.fromfile(folder / "queue" / FIRST, BLOCK_UNIT.dtype)
        return np.flatnonzero(units["flags"] & FLAG_DONE).tolist()

    @property
    def pending(self) -> int:
        return SENT - len(self.done)

    def copy_log(self) -> None:
        """Copy all files but the block."""
        shutil.rmtree(self.paths.commit_log, ignore_errors=True)
        without_blocks = shutil.ignore_patterns(self.master.blocks.name)
        shutil.copytree(self.master.root, self.paths.root, ignore=without_blocks, dirs_exist_ok=True)

    def copy_block(self, count: int = SENT) -> None:
        """Copy the first messages of the block, with their units."""
        (theirs,) = self.master.blocks.iterdir()
        mine = self.paths.blocks / theirs.name
        shutil.copytree(theirs, mine, dirs_exist_ok=True)
        end = int(np.fromfile(theirs / "queue" / FIRST, BLOCK_UNIT.dtype)["position"][count]) if count < SENT else None
        for path, at in ((mine / "queue" / FIRST, count * BLOCK_UNIT.size), (mine / "log" / FIRST, end)):
            raw = path.read_bytes()
            path.write_bytes(raw[:at].ljust(len(raw), b"\0"))


def settle_some(harness: BrokerHarness) -> None:
    """Let a block with nine messages become due in part, and many records follow."""
    start_ms = harness.now_ms - harness.now_ms % 10_000 + 10_000
    harness.advance(start_ms - harness.now_ms)
    for i in range(1, 1 + SENT):
        harness.send("T", b"block %d" % i, properties={"delayInSeconds": str(i)})
    harness.advance(4000)
    for _ in range(300):
        harness.send("T", b"x" * 300)
    harness.advance(1500)


def expire_all(harness: BrokerHarness) -> None:
    """Let the log files expire. The last records that settle messages stay."""
    for _ in range(2):
        harness.broker.parts.file_upkeep.expiry.poll(at_once=True)
        harness.advance(700)
    assert harness.broker.parts.store.log.start > 0
    harness.broker.parts.store.flush()


@pytest.fixture
def slave(small: Callable[[str], BrokerHarness], ship: Ship, tmp_path: Path) -> Slave:
    """Return a slave with the log of a master, which begins after records that settle messages, and no block."""
    made = Slave(Ship(tmp_path / "slave", ship.target, ship.clock), StorePaths(tmp_path / "master"))
    with small("master") as harness:
        settle_some(harness)
        expire_all(harness)
    made.copy_log()
    assert 0 < made.pending < SENT
    return made


def check(slave: Slave, *times_ms: int | None) -> None:
    for at_ms in times_ms:
        assert slave.ship.check(at_ms).counts.in_blocks == slave.pending, at_ms
        assert slave.ship.restore(at_ms, f"at-{at_ms}").counts.in_blocks == slave.pending


@pytest.mark.parametrize("settings", [ShipSettings(), MERGES, KEEP])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_message_that_is_settled_before_it_is_copied_stays_settled(
    slave: Slave, first: int, settings: ShipSettings
) -> None:
    """The target has no record that settles it."""
    slave.ship.settings, clock = settings, slave.ship.clock
    if first:
        slave.copy_block(first)
    shipper = slave.ship.shipper()
    assert shipper.step().is_complete
    before_ms = clock.now_ms()
    clock.advance(500)
    slave.copy_block()
    assert shipper.step().is_complete
    check(slave, None, before_ms, before_ms + 100, before_ms + 500)
    for number in range(12):
        (slave.paths.config / "some.json").write_text(f"{number}")
        clock.advance(500)
        shipper = slave.ship.shipper(shipper.identity.history) if number == 6 else shipper
        shipper.step()
        assert slave.ship.check_all().counts.in_blocks == slave.pending
    check(slave, clock.now_ms())


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_record_that_expires_before_its_message_is_copied_counts(
    small: Callable[[str], BrokerHarness], ship: Ship, tmp_path: Path, is_restarted: bool
) -> None:
    """The target has it at first. Later `--keep` removes it, with the points before the block."""
    each_is_an_object = ShipSettings(small_bytes_max=0, objects_of_points=100, keep_ms=2000, expiry_interval_ms=0)
    ship = Ship(tmp_path / "slave", ship.target, ship.clock, each_is_an_object)
    slave = Slave(ship, StorePaths(tmp_path / "master"))
    with small("master") as harness:
        harness.send("T", b"first")
        slave.copy_log()
        shipper = slave.ship.shipper()
        assert shipper.step().is_complete
        settle_some(harness)
        for do in (lambda _: None, expire_all):
            do(harness)
            slave.copy_log()
            assert shipper.step().is_complete
    if is_restarted:
        shipper = slave.ship.shipper(shipper.identity.history)
    ship.clock.advance(500)
    slave.copy_block()
    assert shipper.step().is_complete
    for number in range(12):
        assert slave.ship.check_all().counts.in_blocks == slave.pending
        (slave.paths.config / "some.json").write_text(f"{number}")
        ship.clock.advance(500)
        shipper.step()
    assert all(chunk.start for point in slave.ship.points() for chunk in point.chunks if chunk.stream == "log")
    check(slave, None)


@pytest.mark.parametrize(("step_bytes_max", "piece_bytes"), [(1, 1), (1, 4 << 20), (32 << 20, 4 << 20)])
def test_a_message_that_the_log_settles_while_its_block_is_read_is_no_fact(
    slave: Slave, monkeypatch: pytest.MonkeyPatch, step_bytes_max: int, piece_bytes: int
) -> None:
    """A power cut or a failover may cut the record off, and then the message is pending again."""
    slave.ship.settings = ShipSettings(step_bytes_max=step_bytes_max, piece_bytes=piece_bytes)
    (path,) = slave.paths.commit_log.iterdir()
    whole, at = path.read_bytes(), 0
    while WMQ_ORIGIN not in (record := decode_record(whole[at:])).message.properties:
        at += record.size
    path.write_bytes(whole[:at] + bytes(len(whole) - at))
    shipper = slave.ship.shipper()
    while not shipper.step().is_complete:
        pass
    read_flags = Source.settled

    def receive_log_and_read_flags(source: Source, block: SourceBlock, first: int, stop: int | None = None) -> bytes:
        with path.open("r+b") as file:
            file.write(whole)
        return read_flags(source, block, first, stop)

    monkeypatch.setattr(Source, "settled", receive_log_and_read_flags)
    slave.copy_block()
    before = len(slave.ship.points())
    while not shipper.step().is_complete:
        pass
    points = slave.ship.points()[before:]
    assert piece_bytes == 1 or len(points[0].blocks) == 1, "the block is in the first capture"
    by_log = b"".join(chunk.settled for point in points for chunk in point.chunks)
    facts = [index for point in points if point.floor for raw in point.floor.settled.values() for index in indexes(raw)]
    assert by_log and sorted(facts + [index & INDEX_MASK for index in indexes(by_log)]) == slave.done
    check(slave, None)


def test_a_blank_is_no_fact(slave: Slave) -> None:
    """After a failover, another master can have a message with the index of a blank."""
    slave.copy_block()
    (folder,) = slave.paths.blocks.iterdir()
    units = np.fromfile(folder / "queue" / FIRST, BLOCK_UNIT.dtype)
    units["flags"][SENT] = FLAG_BLANK
    units.tofile(folder / "queue" / FIRST)
    shipper = slave.ship.shipper()
    shipper.step()
    assert shipper.history.floor is not None
    (raw,) = shipper.history.floor.settled.values()
    assert 0 < len(indexes(raw)) < len(slave.done) and set(indexes(raw)) < set(slave.done)


def indexes(raw: bytes) -> list[int]:
    found: list[int] = np.frombuffer(raw, ">i8").tolist()
    return found
