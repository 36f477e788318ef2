"""A slave follows the log of an Apache master, is promoted, and delivers each pending message once, on time.

The master's log and checkpoint files are those of a golden store. Bytes come in pieces of any size.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.crash.schedule import OF_APACHE
from tests.golden.conftest import SIZES, Golden
from tests.golden.test_adoption import everywhere, pending
from wheelmq.broker.replication.apache_checkpoints import ApacheCheckpoint
from wheelmq.broker.replication.apache_log import begin_apache_log, has_apache_log
from wheelmq.broker.replication.master_link import MasterLink, MasterWrong
from wheelmq.delay.offline import pending_in
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_CHECK
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import BodyError, TopicConfigTable
from wheelmq.formats.wire.replication import DATA, REPORT
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan
from wheelmq.system.disk import Disk
from wheelmq.testing import invariants
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE
from wheelmq.testing.stops import Died, Stops


class ApacheLog:
    """The log of a golden store, as frames of a master."""

    def __init__(self, store: Path) -> None:
        self._files = MappedSequence(Disk(), store / "commitlog", SIZES["log_file_bytes"])
        scan = LogScan(self._files, LogPosition(0))
        for _ in scan.chunks():
            pass
        self.end = scan.end

    def frame(self, at: int, count: int) -> bytes:
        """Return a frame with at most `count` bytes, which are in one file."""
        left = SIZES["log_file_bytes"] - at % SIZES["log_file_bytes"]
        count = min(count, left, self.end - at)
        return DATA.pack(at, count) + bytes(self._files.read(LogPosition(at), count))


class Slave:
    """A slave of an Apache master, with an empty store."""

    def __init__(self, folder: Path, golden: Golden) -> None:
        self.apache = ApacheLog(golden.store)
        self.harness = BrokerHarness(folder, clock=ManualClock(golden.life.ended_ms), **SIZES, **SLAVE)
        self.harness.stop()

    def start(self) -> None:
        """Prepare the store for an Apache master, start the broker, and connect."""
        harness = self.harness
        paths = StorePaths(harness.settings.store.path)
        if not has_apache_log(harness.disk, paths):
            begin_apache_log(harness.disk, paths, Random(0), "10.0.0.1:10911")
        harness.start()
        self.connect()

    @property
    def end(self) -> int:
        return self.harness.broker.parts.store.log.end

    def connect(self) -> None:
        """Connect to the master. It sends its log from the first report on."""
        parts = self.harness.broker.parts
        self.link = MasterLink(
            parts.store.log,
            parts.replica_log,
            parts.epochs,
            parts.settings.replication,
            self.harness.clock.monotonic_ms(),
            replica_id=None,
        )
        self.next = int(REPORT.unpack(self.link.greeting())["position"])

    def get(self, count: int) -> None:
        """Get a frame of at most `count` bytes, in two pieces."""
        frame = self.apache.frame(self.next, count)
        for piece in (frame[:5], frame[5:]):
            self.harness.broker.follow(self.link, piece)
            self.harness.settle()
        self.next += len(frame) - DATA.size

    def get_to(self, end: int, chance: Random, *, breaks: bool = False) -> None:
        """Get frames up to `end`. With `breaks`, some of them are the last ones of a connection or of a process."""
        while self.next < end:
            self.get(min(chance.choice([1, 90, 4000]), end - self.next))
            if breaks and chance.random() < 0.1:
                if chance.random() < 0.5:
                    self.harness.restart(clean=False)
                self.connect()

    def note(self, golden: Golden) -> None:
        """Take the topics and checkpoints of the golden store, as after a request to the master at its end."""
        config, parts = golden.store / "config", self.harness.broker.parts
        parts.topics.follow(bodies.read((config / "topics.json").read_bytes(), TopicConfigTable))
        parts.file_upkeep.apache_checkpoints.note(
            ApacheCheckpoint(
                timer_check=(config / "timercheck").read_bytes()[: TIMER_CHECK.size],
                timer_metrics=(config / "timermetrics").read_bytes(),
                delay_offsets=(config / "delayOffset.json").read_bytes(),
                log_end=self.apache.end,
                log_start=LogPosition(0),
            )
        )

    def promote(self) -> None:
        replication = self.harness.broker.parts.replication
        replication.promote("a test")
        assert replication.must_start_again
        self.harness.restart()
        assert self.harness.broker.parts.role.is_master


@pytest.fixture
def slave(golden: Golden, tmp_path: Path) -> Slave:
    slave = Slave(tmp_path / "slave", golden)
    slave.start()
    return slave


def follow_all(slave: Slave, golden: Golden) -> None:
    """Get the whole log, and the checkpoint of its end."""
    slave.get_to(slave.apache.end // 2, Random(3))
    slave.note(golden)
    slave.get_to(slave.apache.end, Random(4))
    slave.harness.settle()
    slave.harness.clock.advance(2000)
    slave.harness.settle()


def has_check(slave: Slave) -> bool:
    return slave.harness.broker.parts.paths.config_file("timercheck").exists()


@pytest.mark.parametrize("seed", range(4))
def test_a_promoted_slave_delivers_each_pending_message_once(golden: Golden, slave: Slave, seed: int) -> None:
    due = sorted((line.due_ms, line.unique_key) for line in pending_in(golden.store))
    harness = slave.harness
    slave.get_to(slave.apache.end, Random(seed), breaks=True)
    assert slave.end == slave.apache.end
    slave.note(golden)
    harness.settle()
    harness.clock.advance(2000)
    harness.settle()
    assert has_check(slave)
    before = everywhere(harness)
    assert before.total() > 10
    last_due_ms = max(due_ms for due_ms, _ in due)
    harness.clock.advance(last_due_ms - harness.now_ms + 24 * 3_600_000)
    harness.settle()
    assert everywhere(harness) == before, "a slave delivers nothing"
    harness.clock.step(golden.life.ended_ms - harness.now_ms)
    slave.promote()
    assert not has_apache_log(Disk(), harness.broker.parts.paths)
    for due_ms, _ in due:
        came = everywhere(harness)
        harness.clock.advance(due_ms - 1 - harness.now_ms)
        harness.settle()
        assert everywhere(harness) == came, "early"
        harness.clock.advance(1)
        harness.settle()
        assert (everywhere(harness) - came).total() == 1
    harness.restart(clean=False)
    harness.clock.advance(24 * 3_600_000)
    harness.settle()
    assert everywhere(harness) - before == Counter((one.topic, one.body) for one in pending(golden).values())
    invariants.check(harness.broker)


def test_a_checkpoint_is_written_once_the_slave_has_its_log(golden: Golden, slave: Slave) -> None:
    """It counts deliveries. Without their records, a promotion would lose the messages."""
    harness = slave.harness
    slave.get_to(slave.apache.end - 1, Random(0))
    slave.note(golden)
    for _ in range(20):
        harness.clock.advance(1000)
        harness.settle()
    assert not has_check(slave)
    slave.get(100)
    harness.clock.advance(2000)
    harness.settle()
    assert has_check(slave)
    shutil.copytree(harness.broker.parts.paths.root, golden.store.parent / "copy")
    assert {line.unique_key for line in pending_in(golden.store.parent / "copy")} == {
        line.unique_key for line in pending_in(golden.store)
    }


def test_a_checkpoint_that_cannot_be_read_is_rejected(golden: Golden, slave: Slave) -> None:
    good = ApacheCheckpoint(b"", b"", b'{"offsetTable":{}}', LogPosition(0), LogPosition(0))
    for bad in (
        good._replace(timer_check=b"short"),
        good._replace(delay_offsets=b"{"),
        good._replace(timer_metrics=b"["),
    ):
        with pytest.raises(BodyError):
            slave.harness.broker.parts.file_upkeep.apache_checkpoints.note(bad)
    slave.harness.settle()
    assert not has_check(slave)


def test_a_log_with_another_end_is_not_continued(golden: Golden, slave: Slave) -> None:
    """The master lost its last records in a power cut, and has others there now."""
    slave.get_to(slave.apache.end, Random(1))
    slave.connect()
    assert slave.next < slave.end, "the slave asks for its last record again"
    frame = bytearray(slave.apache.frame(slave.next, 4000))
    frame[-1] ^= 1
    with pytest.raises(MasterWrong, match="other bytes than this store"):
        slave.harness.broker.follow(slave.link, bytes(frame))
    assert slave.end == slave.apache.end


def test_bytes_of_another_position_are_rejected(golden: Golden, slave: Slave) -> None:
    slave.get_to(3000, Random(2))
    with pytest.raises(MasterWrong, match="was expected"):
        slave.harness.broker.follow(slave.link, slave.apache.frame(slave.next + 1, 100))


@pytest.mark.parametrize("power", [None, 0.0, 0.5], ids=["killed", "power cut", "power cut, some pages kept"])
@pytest.mark.parametrize("point", OF_APACHE)
def test_a_slave_that_stops_anywhere_follows_again(
    golden: Golden, tmp_path: Path, point: str, power: float | None
) -> None:
    slave = Slave(tmp_path / "slave", golden)
    harness = slave.harness
    with Stops() as stops:
        stops.arm_in(point)
        with pytest.raises(Died):
            slave.start()
            follow_all(slave, golden)
    if harness.is_running:
        harness.crash()
    if power is not None:
        harness.disk.cut_power(harness.randomness, power)
    slave.start()
    follow_all(slave, golden)
    before = everywhere(harness)
    slave.promote()
    harness.clock.advance(24 * 3_600_000)
    harness.settle()
    assert everywhere(harness) - before == Counter((one.topic, one.body) for one in pending(golden).values())
    [epoch] = harness.broker.parts.epochs.all
    assert epoch.start == 0
    invariants.check(harness.broker)
