"""The pending messages of blocks: their numbers by real queue, and their delete keys."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import Origins
from wheelmq.delay.intake import Integers
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.kernels.journal import NOT_COPIED


class PendingInBlocks:
    """Counts the pending messages of blocks, also in the table of all generations."""

    def __init__(self, pending: PendingTable) -> None:
        self._pending = pending
        self._counts: Counter[int] = Counter()
        """Number of messages by the row of their real queue. Messages without a real queue have a negative row."""

    @property
    def total(self) -> int:
        return self._counts.total()

    def park(self, origin: Origin, key_hash: int, real_queue: int) -> None:
        """Add a message that was put into a block."""
        self._counts[real_queue] += 1
        self._pending.counts.park(real_queue)
        self._pending.keys.add_elsewhere(np.array([key_hash]), np.array([origin]), self._pending.done)

    def park_copies(self, origins: Origins, key_hashes: Origins, real_queues: Integers) -> None:
        """Add messages that a replica has got from its master."""
        self._counts.update(real_queues.tolist())
        self._pending.counts.park_many(real_queues)
        self._pending.keys.add_elsewhere(key_hashes, origins, self._pending.done)

    def add_found(self, origins: Origins, key_hashes: Origins, real_queues: Integers) -> None:
        """Add messages that a start found. They were parked before it."""
        self._counts.update(real_queues.tolist())
        self._pending.counts.add(real_queues)
        self._pending.keys.add_elsewhere(key_hashes, origins, self._pending.done)

    def settle(self, real_queues: Integers) -> None:
        """Subtract settled messages, by their real queues. Their done bits are set."""
        if len(real_queues):
            self._counts.subtract(real_queues[real_queues != NOT_COPIED].tolist())
            self._pending.keys.drop_settled_elsewhere(len(real_queues), self.total, self._pending.done)

    def outside_blocks(self) -> npt.NDArray[np.int64]:
        """Return the numbers of pending messages in the timer and level queues, by the row of the real queue."""
        waiting = self._pending.counts.by_queue.copy()
        for real_queue, count in self._counts.items():
            if real_queue >= 0:
                waiting[real_queue] -= count
        return waiting
