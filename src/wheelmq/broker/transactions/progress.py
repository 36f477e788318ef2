"""The progress of transactions on disk: the consumer offsets of CID_RMQ_SYS_TRANS.

They advance only when the records that end all transactions before them are on disk. So if a power cut loses a commit,
its half message is pending again.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.transactions.halves import HALF_QUEUE
from wheelmq.broker.transactions.ops import Ops
from wheelmq.formats.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach


class _Staged(NamedTuple):
    """A queue offset of the half queue that becomes valid once the log is on disk up to `position`."""

    half: int
    position: LogPosition


class TransactionProgress:
    """Saves how far the half queue and the op queue are settled."""

    def __init__(self, store: Store, consumer_offsets: ConsumerOffsets) -> None:
        self._store = store
        self._consumer_offsets = consumer_offsets
        self._staged: _Staged | None = None
        self._last = (-1, -1)

    def saved(self, topic: str) -> int:
        queue = self._store.queues.find(topic, HALF_QUEUE)
        offset = self._consumer_offsets.get(TRANSACTION_GROUP, topic, HALF_QUEUE) or 0
        return 0 if queue is None else min(max(offset, queue.start), queue.end)

    def move_on(self, first: int, ops: Ops) -> None:
        """Save the progress once the log is on disk. `first` is the queue offset of the first pending half message."""
        log, offsets = self._store.log, self._consumer_offsets
        if self._staged is not None and log.synced >= self._staged.position:
            half = self._staged.half
            offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE, half)
            offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, HALF_QUEUE, ops.needed_from(half))
            self._staged = None
            reach("transaction.moved_on")
        now = (first, ops.end)
        if self._staged is None and now != self._last and now != (0, 0):
            self._staged, self._last = _Staged(first, log.end), now
