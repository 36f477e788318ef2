"""Numbers of delayed messages of all generations, by the real queue: pending, parked and settled ones."""

from __future__ import annotations

import numpy as np

from wheelmq.delay import intake
from wheelmq.delay.intake import Integers
from wheelmq.store.queues import QueueTable


class PendingCounts:
    """A table with a row for each queue of the store, and the columns of `intake`."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self.table: Integers = np.zeros((64, intake.COUNTS), np.int64)
        """The counts. Rows of new queues may be missing."""

    @property
    def by_queue(self) -> Integers:
        """Number of pending messages, by the row of their real queue."""
        return self.table[:, intake.PENDING]

    def grown_table(self) -> Integers:
        """Return the table, with a row for each queue that the store has by now."""
        have, need = len(self.table), len(self._queues)
        if need > have:
            more = np.zeros((max(need, 2 * have) - have, intake.COUNTS), np.int64)
            self.table = np.concatenate((self.table, more))
        return self.table

    def park(self, real_queue: int) -> None:
        """Count a parked message that is not in the journal. Without a real queue, `real_queue` is negative."""
        if real_queue >= 0:
            self.grown_table()[real_queue, [intake.PENDING, intake.PARKED]] += 1

    def park_many(self, real_queues: Integers) -> None:
        """Count parked messages that are not in the journal."""
        table, queues = self.grown_table(), real_queues[real_queues >= 0]
        for column in (intake.PENDING, intake.PARKED):
            np.add.at(table[:, column], queues, 1)

    def add(self, queue_rows: Integers) -> None:
        self.grown_table()
        np.add.at(self.by_queue, queue_rows[queue_rows >= 0], 1)

    def add_numbers(self, numbers: Integers) -> None:
        self.grown_table()
        self.by_queue[: len(numbers)] += numbers

    def correct(self, change: Integers) -> None:
        """Correct the numbers of pending messages, by the row of the real queue. No number falls below 0."""
        self.grown_table()
        pending = self.by_queue[: len(change)]
        np.maximum(pending + change, 0, out=pending)
