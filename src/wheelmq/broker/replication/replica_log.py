"""The log of a replica: bytes of the master go in, and all that follows from its records is updated."""

from __future__ import annotations

from wheelmq.broker.engine import Engine
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.units import LogPosition
from wheelmq.store.follower import LogFollower, MasterLogDamaged


class ReplicaLog:
    """Takes the bytes of the master's log.

    `take` adds whole records to the journal. Then the dispatch writes their queue units, notes their timers and wakes
    held pulls, as after sends.
    """

    def __init__(self, engine: Engine, transactions: Transactions) -> None:
        self._store = engine.store
        self._generations = engine.generations
        self._pending = engine.timer.pending
        self._transactions = transactions
        self._knows_pending = engine.knows_pending
        settlement = engine.block_parts.settlement
        self._follower = LogFollower(engine.store, self._real_queue_of, settlement.lacks, settlement.may_differ)
        self._is_fresh = False
        """Whether `take` has not seen the last received bytes, or stopped at its limit."""
        self.damage: MasterLogDamaged | None = None
        """The error of `take` that only other bytes of the master can end."""

    @property
    def received_to(self) -> LogPosition:
        """End of the received bytes. The log may end before it, within an incomplete record."""
        return self._follower.received_to

    @property
    def last_position(self) -> LogPosition | None:
        """Position of the last record that is in a queue; None without one."""
        return self._store.last_position

    def begin_at(self, position: LogPosition) -> None:
        """Let an empty log begin at `position`, the start of a file of the master."""
        self._follower.begin_at(position)

    def write(self, position: LogPosition, data: Buffer) -> None:
        """Append received bytes. Raises NotNext, DiskFull."""
        self._follower.write(position, data)
        self._is_fresh = True

    def drop_incomplete(self) -> None:
        """Zero the received bytes after the last whole record."""
        self._follower.drop_incomplete()
        self.damage = None

    def has_more(self) -> bool:
        """Return whether `take` may find records. It waits for the dispatch of earlier ones."""
        is_fresh = self._is_fresh and self.damage is None
        return self._follower.has_records and not self._store.journal.count and is_fresh

    def take(self) -> int:
        """Add the next whole records to the journal. Requires `has_more`. Returns their number.

        Raises MasterLogDamaged, DiskFull.
        """
        journal = self._store.journal
        try:
            count = self._follower.take_records()
        except MasterLogDamaged as error:
            self.damage = error
            raise
        self._is_fresh = count > 0
        if count:
            if self._knows_pending:
                settled = journal.rows()[:, row.SETTLES]
                self._pending.done.update(settled[settled != 0])
            self._transactions.followed_ends.on_rows(self._follower.taken, self._follower.names)
        return count

    def _real_queue_of(self, origin: Origin) -> int:
        if not self._knows_pending:
            return -1
        record = self._generations.of(origin).record_of(origin)
        return -1 if record is None else self._store.real_queue(record.message.properties)
