"""Make a replica the master of its broker name."""

from __future__ import annotations

from wheelmq.broker.engine import Engine
from wheelmq.broker.record_dispatch import RecordDispatch
from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.replication.replica_log import ReplicaLog
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.role import Role
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.delay.blocks.copies import BlockCopies


class Promotion:
    """Changes the role of a running replica. Its next tick releases the messages that are due."""

    def __init__(
        self,
        engine: Engine,
        role: Role,
        epochs: Epochs,
        replica_log: ReplicaLog,
        block_copies: BlockCopies,
        records: RecordDispatch,
        transactions: Transactions,
        topics: Topics,
        consumer_offsets: ConsumerOffsets,
        replicas: Replicas,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._block_role = engine.block_parts.role
        self._block_copies = block_copies
        self._role = role
        self._epochs = epochs
        self._topics = topics
        self._consumer_offsets = consumer_offsets
        self._replicas = replicas
        self._replica_log = replica_log
        self._records = records
        self._transactions = transactions

    def promote(self, epoch: int) -> None:
        """Take over as the master of `epoch`, which begins at the end of the log. Raises OSError.

        Log and blocks are on disk then, because a former master with SYNC_FLUSH has answered for them. After an error,
        this broker is still a replica. Bytes of an incomplete record at the end are dropped. So are received
        parts of blocks that wait for the log. The master's offsets of consumers may be ahead of its log.
        """
        while self._replica_log.has_more():
            self._replica_log.take()
            self._records.run()
        self._replica_log.drop_incomplete()
        self._block_copies.end()
        self._store.flush()
        self._engine.blocks.flush()
        self._epochs.begin(epoch, self._store.log.end)
        try:
            self._block_role.take_over(epoch)
            self._role.become_master()
        except OSError:
            self._block_role.follow()
            raise
        self._replicas.take_over()
        self._transactions.take_over()
        self._records.run()  # so the queues end with the log
        self._consumer_offsets.lower_to_ends(self._store.queues.end)
        self._topics.begin_epoch(epoch, queues_with_messages(self._engine))


def queues_with_messages(engine: Engine) -> list[tuple[str, int]]:
    """Return the queues that have messages, or get a pending one once it is due."""
    pending = engine.timer.pending.counts.by_queue
    return [
        key
        for row, (key, queue) in enumerate(engine.store.queues.items())
        if queue.end > queue.start or (row < len(pending) and pending[row] > 0)
    ]
