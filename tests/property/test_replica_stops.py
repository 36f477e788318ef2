"""A stop of a replica at every failpoint that it passes: while it follows its master, and while its log is truncated.

It copies log and blocks of its master.

After each stop the replica starts again and follows. It then has the state of its master.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from wheelmq.broker.replication.truncation import cut_blocks_to, truncate
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import LogPosition
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import SLAVE, BlockCopy, copy_log
from wheelmq.testing.stops import Died, Stops

from .profiles import IS_LONG
from .test_replicas import COMMIT, LEVELS, Sender, state_of

SMALL_FILES: dict[str, Any] = {"log_file_bytes": 16_384, "queue_file_bytes": 20 * 8, "message_delay_level": LEVELS}
TRUNCATION = ("truncate.begun", "truncate.unflagged", "truncate.epochs", "truncate.cut")
POWER = pytest.mark.parametrize("power", [None, 0.0, 0.5], ids=["killed", "power cut", "power cut, some pages kept"])


class Pair:
    """A master and its replica, each with a disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.master = BrokerHarness(folder / "a", **SMALL_FILES)
        self.replica = BrokerHarness(folder / "b", clock=self.master.clock, **SMALL_FILES, **SLAVE)
        self.sender = Sender(self.master)
        self.randomness = Random(1)

    def send_some(self) -> None:
        """Send messages of all kinds to the master, and let some of them be released, cancelled and committed."""
        for i in range(12):
            self.sender.send("T", 0)
            self.sender.send("T", 400 * i, **{props.TIMER_DELAY_MS: str(400 * i + 1)})
            self.sender.send("U", 1000, **{props.DELAY: "1"})
            self.sender.send_half("U", 0)
            self.sender.send("U", 1000 * i + 1000, **{props.DELAY_IN_SECONDS: str(i + 1)})
        self.sender.cancel(33)
        for _ in range(5):
            self.sender.end(self.master, 0, COMMIT)
        self.master.advance(2500)

    def copy(self) -> None:
        copy_log(self.master, self.replica, self.randomness, piece_bytes_max=4000)
        cuts = self.copy_blocks()
        if cuts is not None:
            self.replica.crash()
            cut_blocks_to(self.replica.disk, self.replica.clock, self.replica.settings, cuts)
            self.replica.start()
            assert self.copy_blocks() is None

    def copy_blocks(self) -> Mapping[int, int] | None:
        """Copy the blocks. Returns the cuts that must be made first."""
        blocks = BlockCopy(self.master, self.replica)
        blocks.run()
        blocks.close()
        return blocks.link.cuts

    def check(self) -> None:
        self.copy()
        invariants.check(self.replica.broker)
        assert state_of(self.replica.broker) == state_of(self.master.broker)

    def swap(self) -> LogPosition:
        """Promote the replica; the master becomes a stopped replica. Returns the end of the log that both have.

        The former master gets some records more before it stops.
        """
        agreed = self.replica.broker.parts.store.log.end
        self.send_some()
        self.master.crash()
        self.replica.broker.parts.replication.promote("the test")
        self.master, self.replica = self.replica, self.master
        self.sender = Sender(self.master)
        self.send_some()
        return agreed

    def stop(self, power: float | None) -> None:
        """Stop the replica as a kill would, or cut its power and keep this share of the pages."""
        if self.replica.is_running:
            self.replica.crash()
        if power is not None:
            self.replica.disk.cut_power(self.replica.randomness, power)

    def close(self) -> None:
        for harness in (self.master, self.replica):
            if harness.is_running:
                harness.crash()


def follow(pair: Pair) -> None:
    """Copy a part of the log and the blocks that can do with it, start the replica again, and copy the rest."""
    copy_log(pair.master, pair.replica, pair.randomness, piece_bytes_max=4000, whole=False)
    pair.copy_blocks()
    pair.replica.restart(clean=False)
    pair.copy()


def truncated(pair: Pair, position: LogPosition) -> None:
    """Truncate the log of the stopped replica."""
    truncate(pair.replica.disk, pair.replica.settings, position)


def chosen(passed: list[str]) -> list[int]:
    """Return every passage in the long profile, else the first and the fourth of each name."""
    seen: Counter[str] = Counter()
    found = []
    for i, name in enumerate(passed):
        seen[name] += 1
        if IS_LONG or seen[name] in {1, 4}:
            found.append(i)
    return found


def following_passages() -> list[str]:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Pair(Path(folder))) as pair:
        pair.send_some()
        with Stops() as stops:
            follow(pair)
        pair.check()
        return stops.passed


def test_a_replica_passes_the_failpoints_of_following() -> None:
    assert set(following_passages()) >= {
        *("follow.written", "follow.taken", "dispatch.before", "dispatch.units"),
        *("copy.flagged", "copy.tail", "copy.written", "copy.appended"),
    }


@POWER
def test_a_replica_that_stops_anywhere_follows_again(power: float | None) -> None:
    for die_at in chosen(following_passages()):
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(Pair(Path(folder))) as pair:
            pair.send_some()
            with Stops(die_at) as stops, contextlib.suppress(Died):
                follow(pair)
            where = f"{die_at}: {stops.passed[-1]}"
            assert len(stops.passed) == die_at + 1, where
            try:
                pair.stop(power)
                pair.replica.start()
                pair.check()
            except Exception as error:
                raise AssertionError(f"after a stop at {where}") from error


def test_a_truncation_passes_its_failpoints() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Pair(Path(folder))) as pair:
        pair.send_some()
        pair.copy()
        agreed = pair.swap()
        with Stops() as stops:
            truncated(pair, agreed)
        assert set(stops.passed) >= set(TRUNCATION)
        pair.replica.start(**SLAVE)
        pair.check()


@POWER
@pytest.mark.parametrize("point", TRUNCATION)
def test_a_truncation_that_stops_anywhere_is_repeated(point: str, power: float | None) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Pair(Path(folder))) as pair:
        pair.send_some()
        pair.copy()
        agreed = pair.swap()
        with Stops() as stops, pytest.raises(Died):
            stops.arm_in(point)
            truncated(pair, agreed)
        pair.stop(power)
        pair.replica.disk.release_locks()
        truncated(pair, agreed)
        pair.replica.start(**SLAVE)
        pair.check()
