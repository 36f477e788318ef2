"""The transactions of a broker: the pending ones, the ended ones, and the progress that is on disk.

All of it follows from the log and from the consumer offsets of CID_RMQ_SYS_TRANS. These offsets advance only when the
records that end all transactions before them are on disk. So if a power cut loses a commit, its half message is
pending again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.transactions import halves
from wheelmq.broker.transactions.checks import Checks
from wheelmq.broker.transactions.counts import TransactionCounts
from wheelmq.broker.transactions.halves import HALF_QUEUE
from wheelmq.broker.transactions.loading import load
from wheelmq.broker.transactions.ops import Ops
from wheelmq.broker.transactions.pending import PendingHalves, Place
from wheelmq.broker.transactions.recovered_ends import RecoveredEnds
from wheelmq.formats.disk.message import SYS_TRANSACTION, SYS_TRANSACTION_COMMIT, Message, Record
from wheelmq.formats.disk.properties import REAL_TOPIC, fitting
from wheelmq.formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.store import Appended
from wheelmq.system.failpoint import reach

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

COMMIT: Final = SYS_TRANSACTION_COMMIT
ROLLBACK: Final = SYS_TRANSACTION
"""The outcome of a transaction, as the transaction bits of a record's system flag."""
ENDS_REMEMBERED: Final = 10_000
"""Number of recent outcomes remembered, so that a repeated commit or rollback is answered consistently."""
OP_ROOM_BYTES: Final = 512
"""Bytes that an op message leaves free in a log file, for the rest of its record and its last offset."""
REST_MS: Final = 100
"""Pause after a failed append."""


class _Progress(NamedTuple):
    """A queue offset of the half queue that becomes valid once the log is on disk up to `position`."""

    half: int
    position: LogPosition


class Transactions:
    """Runs in the broker's ticks. Times of the ticks are monotonic milliseconds."""

    def __init__(self, broker: Broker, recovered_ends: RecoveredEnds) -> None:
        self._broker = broker
        self._store = broker.store
        settings = broker.settings
        self.counts = TransactionCounts(broker.store)
        op_bytes_max = min(settings.transaction_op_msg_max_size, broker.store.record_bytes_max - OP_ROOM_BYTES)
        self._ops = Ops(broker.store, settings.transaction_op_batch_interval, op_bytes_max)
        self.pending: PendingHalves = self._load(recovered_ends)
        self._ends: dict[int, int] = {}
        self._saved = (-1, -1)
        self._rests_to_ms = 0
        self._staged: _Progress | None = None
        self._checks = Checks(broker, self)
        if self._store.queues.end(CHECK_MAX_TIME_TOPIC, 0):
            broker.topics.create_for_group(CHECK_MAX_TIME_TOPIC, 1)  # a kill came before the topic was on disk
        broker.periodic_tasks.every(settings.transaction_metric_flush_interval, self._save_counts)

    def _load(self, recovered_ends: RecoveredEnds) -> PendingHalves:
        in_ops = self._ops.load(self._stored(OP_HALF_TOPIC))
        loaded = load(self._store, self._stored(HALF_TOPIC), in_ops, recovered_ends)
        for offset in loaded.unsaid:
            self._ops.add(offset, self._broker.clock.monotonic_ms())
        for topic in loaded.topics:
            self.counts.add(topic, 1)
        return loaded.pending

    def _stored(self, topic: str) -> int:
        """Return the saved progress in a queue."""
        queue = self._store.queues.find(topic, HALF_QUEUE)
        offset = self._broker.consumer_offsets.get(TRANSACTION_GROUP, topic, HALF_QUEUE) or 0
        return 0 if queue is None else min(max(offset, queue.start), queue.end)

    # Records -------------------------------------------------------------------------------------------------------

    def prepare(self, half: Message) -> Appended:
        """Append a half message. Raises OSError, PropertiesTooLong, RecordTooLong."""
        if self._store.log.end == 0:
            self._ops.append_op("")  # no half message may be at position 0: it means "ends none"
        appended = self._store.append(half)
        self.counts.add(half.properties[REAL_TOPIC], 1)
        reach("transaction.half")
        return appended

    def find(self, half: Record) -> Record | None:
        """Return the last half message of the same transaction in the queue, or None if the transaction has ended."""
        place = self.pending.find(halves.origin_of(half), Place(half.queue_offset, half.position))
        if place is None:
            return None
        return half if place.position == half.position else self._store.log.record_at(place.position)

    def put_back(self, half: Record, *, checked: bool) -> Appended:
        """Append a pending half message again. Raises PropertiesTooLong, RecordTooLong, OSError."""
        appended = self._store.append(halves.put_back(half, checked=checked))
        self.pending.move(halves.origin_of(half), Place(appended.queue_offset, appended.position))
        self.pending.drop(half.queue_offset)
        reach("transaction.put_back")
        return appended

    def discard(self, half: Record) -> None:
        """Move a pending half message to the topic of transactions that are checked no more.

        The last properties are left out if a log file has no room for them. Raises OSError, RecordTooLong.
        """
        self._broker.topics.create_for_group(CHECK_MAX_TIME_TOPIC, 1)
        message = halves.given_up(half)
        message.properties = fitting(message.properties, self._store.properties_room(message))
        self._store.append(message)
        self.counts.note_discarded(half.message.properties.get(REAL_TOPIC, ""))
        self._settle(half)
        reach("transaction.given_up")

    def end(self, half: Record, outcome: int) -> None:
        """Record the end of the pending transaction of `half`. The record of its commit is in the log already."""
        topic = half.message.properties.get(REAL_TOPIC, "")
        if outcome == COMMIT:
            self.counts.commit(topic, half.message.born_ms)
        else:
            self.counts.roll_back(topic)
        self._settle(half)
        self._ends[halves.origin_of(half)] = outcome
        if len(self._ends) > ENDS_REMEMBERED:
            del self._ends[next(iter(self._ends))]
        reach("transaction.ended")

    def has_ended_as(self, half: Record, outcome: int) -> bool:
        """Return whether the transaction of `half` is known to have ended with this outcome."""
        return self._ends.get(halves.origin_of(half)) == outcome

    def _settle(self, half: Record) -> None:
        self.pending.settle(halves.origin_of(half), half.queue_offset)
        self._ops.add(half.queue_offset, self._broker.clock.monotonic_ms())

    # Ticks ---------------------------------------------------------------------------------------------------------

    def tick(self, monotonic_ms: int) -> int:
        """Ask producers, write op messages and advance. Return the number of appended records. Raises OSError.

        Before a snapshot, all ends are written as op messages, because a start does not read the log before the
        snapshot.
        """
        self._move_on()
        if monotonic_ms < self._rests_to_ms:
            return 0
        try:
            appended = self._checks.tick(monotonic_ms) if self._broker.settings.is_master else 0
            due_ms = self._ops.next_ms()
            if due_ms is not None and (due_ms <= monotonic_ms or self._broker.snapshots.is_due(monotonic_ms)):
                appended += self._ops.write()
        except OSError:
            self._rests_to_ms = monotonic_ms + REST_MS
            raise
        return appended

    def next_ms(self) -> int | None:
        """Return the time of the next work, or None if it is unknown."""
        times_ms = (self._ops.next_ms(), self._checks.next_ms() if self._broker.settings.is_master else None)
        known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
        return max(self._rests_to_ms, min(known_ms)) if known_ms else None

    @property
    def has_unsaid_ends(self) -> bool:
        """Whether the log has ends that no op message names yet. A later snapshot would hide them."""
        return self._ops.next_ms() is not None

    def needed_from(self) -> LogPosition:
        """Return the log position from which log files hold pending half messages."""
        queue = self._store.queues.find(HALF_TOPIC, HALF_QUEUE)
        if queue is None or not queue.start <= self.pending.first < queue.end:
            return self._store.log.end
        return LogPosition(int(queue.read(QueueOffset(self.pending.first), 1)["position"][0]))

    def _move_on(self) -> None:
        """Save the progress in the queues once the log is on disk up to the required position."""
        commit_log, offsets = self._store.log, self._broker.consumer_offsets
        if self._staged is not None and commit_log.synced >= self._staged.position:
            half = self._staged.half
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE, half)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, HALF_QUEUE, self._ops.needed_from(half))
            self._staged = None
            reach("transaction.moved_on")
        now = (self.pending.first, self._ops.end)
        if self._staged is None and now != self._saved and now != (0, 0):
            self._staged, self._saved = _Progress(self.pending.first, commit_log.end), now

    def _save_counts(self) -> None:
        run_in_background(self.counts.save_job(), self._broker.workers.background)

    def say_all(self) -> int:
        """Write all ends in op messages, for a clean stop. Return the number of op messages. Raises OSError."""
        return self._ops.write()

    def close(self) -> None:
        """Flush the log, and save the progress and the counts, for a clean stop."""
        job = self.counts.save_job()
        try:
            self._store.flush()
            self._move_on()
            self._move_on()
            if job is not None:
                job()
        except OSError as error:
            log.error(
                "transactions: the broker could not save their progress, and the next start finds it again: %s", error
            )
