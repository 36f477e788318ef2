"""The transactions of a broker: the pending ones and the ended ones, by the log and the saved progress (`progress`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.replication.role import Role
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.transactions import halves
from wheelmq.broker.transactions.append_retry import AppendRetry
from wheelmq.broker.transactions.counts import TransactionCounts
from wheelmq.broker.transactions.followed_ends import FollowedEnds
from wheelmq.broker.transactions.halves import HALF_QUEUE
from wheelmq.broker.transactions.loading import Ends, load
from wheelmq.broker.transactions.ops import Ops
from wheelmq.broker.transactions.pending import PendingHalves, Place
from wheelmq.broker.transactions.progress import TransactionProgress
from wheelmq.broker.transactions.recovered_ends import RecoveredEnds
from wheelmq.formats.disk.message import SYS_TRANSACTION, SYS_TRANSACTION_COMMIT, Message, Record
from wheelmq.formats.disk.properties import REAL_TOPIC, fitting
from wheelmq.formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.store import Appended, Store
from wheelmq.system.failpoint import reach
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

COMMIT: Final = SYS_TRANSACTION_COMMIT
ROLLBACK: Final = SYS_TRANSACTION
"""The outcome of a transaction, as the transaction bits of a record's system flag."""
ENDS_REMEMBERED: Final = 10_000
"""Number of recent outcomes remembered, so that a repeated commit or rollback is answered consistently."""
OP_ROOM_BYTES: Final = 512
"""Bytes that an op message leaves free in a log file, for the rest of its record and its last offset."""


class Transactions:
    """Runs in the broker's ticks. Times of the ticks are monotonic milliseconds."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        consumer_offsets: ConsumerOffsets,
        settings: BrokerSettings,
        role: Role,
        recovered_ends: RecoveredEnds,
        worker: Worker,
    ) -> None:
        self._store = store
        self._topics = topics
        self._settings = settings
        self._role = role
        self._worker = worker
        self._progress = TransactionProgress(store, consumer_offsets)
        self._ends: dict[int, int] = {}
        self._load(recovered_ends)
        self.retry = AppendRetry()
        """A failed append of op messages or of a check pauses both."""
        if store.queues.end(CHECK_MAX_TIME_TOPIC, 0):
            topics.create_for_group(CHECK_MAX_TIME_TOPIC, 1)  # a kill came before the topic was on disk

    def _load(self, ends: Ends) -> None:
        store, settings = self._store, self._settings.transactions
        self.counts = TransactionCounts(store)
        self._ops = Ops(
            store,
            settings.op_interval_ms,
            min(settings.op_message_bytes_max, store.record_bytes_max - OP_ROOM_BYTES),
        )
        in_ops = self._ops.load(self._progress.saved(OP_HALF_TOPIC))
        loaded = load(store, self._progress.saved(HALF_TOPIC), in_ops, ends)
        self.pending: PendingHalves = loaded.pending
        self.followed_ends = FollowedEnds(store, loaded.unwritten)
        """On a replica, the ends that come with the master's log."""
        if self._role.is_master:  # the op messages of a slave come with the log
            for offset in loaded.unwritten:
                self._ops.add(offset, store.clock.monotonic_ms())
        for topic in loaded.topics:
            self.counts.add(topic, 1)

    def take_over(self) -> None:
        """Load the transactions of the former master again, from the log that this replica followed."""
        self._load(self.followed_ends)

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
        self._topics.create_for_group(CHECK_MAX_TIME_TOPIC, 1)
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
        return self._ends.get(halves.origin_of(half)) == outcome

    def _settle(self, half: Record) -> None:
        self.pending.settle(halves.origin_of(half), half.queue_offset)
        self._ops.add(half.queue_offset, self._store.clock.monotonic_ms())

    # Ticks ---------------------------------------------------------------------------------------------------------

    def tick(self, monotonic_ms: int, is_snapshot_due: Callable[[int], bool]) -> int:
        """Save the progress, and write op messages if they are due. Returns their number. Raises OSError.

        Before a snapshot, all ends are written, because a start does not read the log before it. `is_snapshot_due`
        returns whether the next snapshot may be taken at a monotonic time.
        """
        if not self._role.is_master:
            return 0
        self._move_on()
        due_ms = self._ops.next_ms()
        if due_ms is None or not (due_ms <= monotonic_ms or is_snapshot_due(monotonic_ms)):
            return 0
        return self.retry.run(monotonic_ms, self._ops.write)

    def next_ms(self) -> int | None:
        """Return the time of the next work, or None if it is unknown."""
        return self.retry.next_ms(self._ops.next_ms()) if self._role.is_master else None

    @property
    def has_unwritten_ends(self) -> bool:
        """Whether the log has ends that no op message names yet. A later snapshot would hide them."""
        if self._ops.next_ms() is not None:
            return True  # also while a master hands over, which writes no op messages
        return not self._role.is_master and not self.followed_ends.is_empty

    def needed_from(self) -> LogPosition:
        """Return the log position from which log files hold pending half messages."""
        queue = self._store.queues.find(HALF_TOPIC, HALF_QUEUE)
        first = self.pending.first if self._role.is_master else self._progress.saved(HALF_TOPIC)
        if queue is None or not queue.start <= first < queue.end:
            return self._store.log.end
        return LogPosition(int(queue.read(QueueOffset(first), 1)["position"][0]))

    def _move_on(self) -> None:
        self._progress.move_on(self.pending.first, self._ops)

    def save_counts(self) -> None:
        run_in_background(self.counts.save_job(), self._worker)

    def write_ends(self) -> int:
        """Write all ends in op messages, for a clean stop. A slave has none.

        A master that hands over writes them too. It may start as the master again. Return the number of op messages.
        Raises OSError.
        """
        return self._ops.write()

    def close(self) -> None:
        """Flush the log, and save the progress and the counts, for a clean stop."""
        job = self.counts.save_job()
        try:
            self._store.flush()
            if self._role.is_master:
                self._move_on()
                self._move_on()
            if job is not None:
                job()
        except OSError as error:
            log.error(
                "transactions: the broker could not save their progress, and the next start finds it again: %s", error
            )
