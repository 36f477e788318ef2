"""Random runs of a master, a slave, and a shipper on the slave: the target has the pending messages of the slave."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.unit.backup.conftest import SMALL_FILES, Ship
from tests.unit.broker.block_pairs import Pair, waiting
from wheelmq.backup.settings import ShipSettings
from wheelmq.backup.shipper import Shipper
from wheelmq.backup.target import FolderTarget
from wheelmq.system.disk import Disk
from wheelmq.testing.replication import copy_log

RELEASED_TWICE = (4, 81)
"""Seeds of runs in which a late message was pending again."""
STEPS = 40


class SlaveRun:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.pair = Pair(folder, **SMALL_FILES)
        (folder / "slave").mkdir()
        (folder / "slave" / "store").symlink_to(folder / "replica")
        settings = ShipSettings(
            merged_count=self.random.choice((2, 3, 100)),
            objects_of_points=self.random.choice((2, 100)),
            small_bytes_max=self.random.choice((0, 2 << 20)),
            step_bytes_max=self.random.choice((2000, 32 << 20)),
            piece_bytes=self.random.choice((500, 4 << 20)),
            keep_ms=self.random.choice((None, 3000, 20_000)),
            expiry_interval_ms=0,
        )
        target = FolderTarget(Disk(), folder / "target")
        self.ship = Ship(folder / "slave", target, self.pair.master.clock, settings)
        self.shipper: Shipper | None = None
        self.known: str | None = None

    def run(self) -> None:
        operations = (self.send, self.advance, self.copy_log, self.copy_blocks, self.expire, self.step, self.restart)
        for _ in range(STEPS):
            (operation,) = self.random.choices(operations, (5, 3, 2, 2, 3, 3, 1))
            operation()
        for _ in range(2):
            self.pair.connect_again()
            self.pair.copy_all()
        while not self.step():
            pass
        self.ship.check_all()

    def send(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            if self.random.random() < 0.7:
                seconds = str(self.random.choice((1, 2, 3, 9, 15, 3600)))
                self.pair.master.send("T", b"later", properties={"delayInSeconds": seconds})
            else:
                for _ in range(4):
                    self.pair.master.send("T", bytes(self.random.randrange(3000)))

    def advance(self) -> None:
        self.pair.master.advance(self.random.choice((100, 1000, 3000)))
        self.pair.replica.settle()

    def copy_log(self) -> None:
        copy_log(self.pair.master, self.pair.replica, self.random, whole=self.random.random() < 0.5)

    def copy_blocks(self) -> None:
        """Copy some parts of blocks. A connection over which the slave was silent for long is lost."""
        self.pair.connect_again()
        for _ in range(self.random.randrange(1, 6)):
            self.pair.copy.step()

    def expire(self) -> None:
        """Let the log files of the slave expire that have no pending message of the slave."""
        replica = self.pair.replica
        self.pair.copy_log()
        replica.advance(5000)
        replica.broker.parts.store.flush()
        for _ in range(3):
            replica.broker.parts.file_upkeep.expiry.poll(at_once=True)
            replica.advance(700)

    def step(self) -> bool:
        """Make one step. Returns whether it reached the end of the store. The target is right then."""
        if self.shipper is None:
            self.shipper = self.ship.shipper(self.known)
            self.known = self.shipper.identity.history
        if not self.shipper.step().is_complete:
            return False
        assert self.ship.check().counts.in_blocks == waiting(self.pair.replica)
        return True

    def restart(self) -> None:
        self.shipper = None

    def close(self) -> None:
        self.pair.master.crash()
        self.pair.replica.crash()


@pytest.mark.parametrize("seed", [0, 1, 2, *RELEASED_TWICE])
def test_the_target_of_a_slave_has_its_pending_messages(tmp_path: Path, seed: int) -> None:
    run = SlaveRun(tmp_path, seed)
    try:
        run.run()
    finally:
        run.close()
