"""Count the records of a store, and the pending messages in it, from the rows of scans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.done_bits import StreamBits
from wheelmq.formats.disk.origin import KIND_LEVEL, KIND_SHIFT, KIND_TIMER, block_stream, origin_of
from wheelmq.formats.kernels import scan as col
from wheelmq.store.recovery import Rows


class StoreCounts(NamedTuple):
    """Numbers of records and of pending messages."""

    records: int
    block_records: int
    blocks: int
    timers: int
    """Pending messages in the timer queue."""
    in_levels: int
    """Pending messages in level queues."""
    in_blocks: int
    """Pending messages in blocks."""


class Tally:
    """Counts. The rows of the commit log come before those of the blocks."""

    def __init__(self, done: tuple[StreamBits, ...] = ()) -> None:
        """`done` are messages that no record settles, because Apache RocketMQ delivered them."""
        self._done = DoneBits()
        self._done.add_packed(done)
        self._parked: list[Rows] = []
        self._records = self._block_records = self._blocks = self._in_blocks = 0

    def add_log(self, rows: Rows) -> None:
        """Count records of the commit log, in order."""
        self._records += len(rows)
        self._done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        is_cancel = (rows[:, col.FLAGS] & (col.FLAG_DECIDED | col.FLAG_DELETES)) != 0
        parked = rows[~is_cancel & (rows[:, col.PARKS] != 0), col.PARKS]
        if len(parked):
            self._parked.append(parked)

    def add_settled(self, number: int, settled: bytes) -> None:
        """Note settled messages of block `number`, as a floor stores them."""
        indexes = np.frombuffer(settled, ">i8").astype(np.int64)
        self._done.update(indexes | origin_of(block_stream(number), 0))

    def add_block(self, number: int, rows: Rows) -> None:
        """Count records of block `number`."""
        self._block_records += len(rows)
        origins = rows[:, col.QUEUE_OFFSET] | origin_of(block_stream(number), 0)
        self._in_blocks += int(np.count_nonzero(~self._done.get(origins)))

    def end_block(self) -> None:
        """Count a block whose records have been added."""
        self._blocks += 1

    def counts(self) -> StoreCounts:
        parked = np.concatenate([np.empty(0, np.int64), *self._parked])
        parked = parked[~self._done.get(parked)]
        kinds = parked >> KIND_SHIFT
        return StoreCounts(
            self._records,
            self._block_records,
            self._blocks,
            int(np.count_nonzero(kinds == KIND_TIMER)),
            int(np.count_nonzero(kinds == KIND_LEVEL)),
            self._in_blocks,
        )
