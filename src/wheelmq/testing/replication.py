"""Copy log and blocks of a broker to a replica in a test, without sockets."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from wheelmq.broker.replication.block_link import BlockLink
from wheelmq.broker.replication.epochs import consistent_point
from wheelmq.broker.replication.truncation import cut_blocks_to, truncate
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import Ask, BrokerHarness

SLAVE: Final[dict[str, Any]] = {"broker_id": 1, "broker_role": "SLAVE"}


def copy_log(
    master: BrokerHarness,
    replica: BrokerHarness,
    randomness: Random,
    *,
    piece_bytes_max: int = 1 << 16,
    whole: bool = True,
) -> None:
    """Copy the bytes that the replica lacks, in pieces of random sizes, or with `whole=False` a random part of them.

    The replica ticks after some of the pieces.
    """
    log, target = master.broker.parts.store.log, replica.broker.parts.replica_log
    replica.broker.parts.epochs.follow(list(master.broker.parts.epochs.all))
    stop = log.end
    if not whole:
        stop = LogPosition(randomness.randint(min(target.received_to, stop), stop))
    while target.received_to < stop:
        at = target.received_to
        left_in_file = log.files.file_bytes - at % log.files.file_bytes
        count = min(randomness.randint(1, piece_bytes_max), stop - at, left_in_file)
        target.write(at, bytes(log.read(at, count)))
        if randomness.random() < 0.3:
            replica.tick(by_event=False)
    replica.settle()


class BlockCopy:
    """One connection by which a replica copies the blocks of a master."""

    def __init__(self, master: BrokerHarness, replica: BrokerHarness) -> None:
        self._master, self._replica = master, replica
        parts = replica.broker.parts
        self.link = BlockLink(
            parts.engine,
            parts.block_copies,
            parts.clock,
            replica_id=parts.role.broker_id,
            epoch=master.broker.parts.replication.epoch,
        )
        parts.replication.block_link = self.link
        self._connection = master.connect()
        self._request: Command | None = None
        self._asked: Ask | None = None
        self._is_applying = False

    def step(self) -> bool:
        """Send the next request, or take its answer. Returns False if the master holds it, or the parts must wait."""
        if self._is_applying:
            self._replica.settle(by_event=False)
            if self.link.failure is not None:
                raise self.link.failure
            if self._is_applying or self.link.cuts is not None:
                return False
        if self._asked is None:
            self._request = self.link.next_request()
            self._asked = self._master.submit(self._request, self._connection)
        self._master.tick(by_event=False)
        if self._asked.answer is None:
            return False
        assert self._request is not None
        self.link.take(self._request, self._asked.answer)
        self._asked, self._is_applying = None, True
        self.link.when_applied(self._applied)
        return True

    def _applied(self) -> None:
        self._is_applying = False

    def run(self) -> None:
        """Copy until the replica has all, or must wait for the log."""
        while self.step():
            pass

    def close(self) -> None:
        """Lose the connection."""
        self._replica.broker.parts.replication.block_link = None
        self._master.lose(self._connection)


def rejoin(former: BrokerHarness, master: BrokerHarness, *, log_first: Random | None = None) -> tuple[int, int]:
    """Let a former master follow its successor: truncate its log and cut its blocks as its shell would.

    With `log_first`, it copies the whole log before the blocks. Otherwise blocks that only the log can end remain.
    Returns the removed bytes of the log, and the number of blocks that were cut.
    """
    if former.is_running:
        former.crash()
    former.start(**SLAVE)
    parts, theirs = former.broker.parts, master.broker.parts
    end = parts.store.log.end
    point = consistent_point(parts.epochs.all, end, theirs.epochs.all, theirs.store.log.end)
    assert point is not None, "the logs have no epoch in common"
    if point < end:
        former.crash()
        truncate(former.disk, parts.settings, point)
        former.start()
    if log_first is not None:
        copy_log(master, former, log_first)
    copy = BlockCopy(master, former)
    copy.run()
    cuts = copy.link.cuts
    copy.close()
    if cuts is not None:
        settings = former.broker.parts.settings
        former.crash()
        cut_blocks_to(former.disk, former.clock, settings, cuts)
        former.start()
    return end - point, len(cuts or ())
