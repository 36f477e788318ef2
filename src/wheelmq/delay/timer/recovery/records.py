"""Collect the pending messages from the records that a scan reads."""

from __future__ import annotations

import errno
from typing import Final

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.refs import Flags, Integers, ParkedRows
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import NEVER_MS, LogPosition
from wheelmq.store.recovery import CHUNK_ROWS, InternedNames, LogDamaged, LogScan, Rows

NO_PENDING: Final = np.empty((0, ref.PARKED_COLUMNS), np.int64)


class PendingRecords:
    """The parked messages in scanned records. From time to time it drops those that the log has settled."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.chunks: list[ParkedRows] = []
        self._rows_max = 2 * CHUNK_ROWS
        """When the chunks have more rows than this, the rows that were settled meanwhile are dropped."""

    def add(self, rows: Rows, names: InternedNames) -> None:
        """Note the messages that the records park and settle. Keep those parked messages that are still pending."""
        done = self._timer.pending.done
        done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        parked = rows[rows[:, col.PARKS] != 0]
        decided = (parked[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        done.update(parked[decided, col.PARKS])
        parked = parked[~decided]
        if len(parked):
            topics, queue_ids = parked[:, col.REAL_TOPIC], parked[:, col.REAL_QUEUE_ID]
            self.chunks.append(ref.parked_rows(parked, self._timer.store.queue_rows(topics, queue_ids, names)))
        if sum(map(len, self.chunks)) > self._rows_max:
            self.chunks = [self._pending()]
            self._rows_max = 2 * len(self.chunks[0]) + 2 * CHUNK_ROWS

    def _pending(self) -> ParkedRows:
        rows = self.chunks[0] if len(self.chunks) == 1 else np.concatenate([NO_PENDING, *self.chunks])
        return without(rows, self._timer.pending.done.get(rows[:, ref.ORIGIN]))

    def take_pending(self) -> ParkedRows:
        """Remove and return the rows of the pending messages, in the order of the log."""
        pending, self.chunks = self._pending(), []
        return pending

    def take_all(self) -> ParkedRows:
        rows, self.chunks = np.concatenate([NO_PENDING, *self.chunks]), []
        return rows

    def read(self, units: Integers) -> frozenset[LogPosition]:
        """Process the records of `units`, pending in the snapshot. Returns the positions of damaged records.

        Raises LogDamaged when a record is not where its unit says.
        """
        scan = LogScan(self._timer.store.log.files, self._timer.store.log.start, whole_before_ms=NEVER_MS)
        met = [np.empty(0, np.int64)]
        self._rows_max = len(units) + 2 * CHUNK_ROWS
        for rows in scan.records_at(units[:, ref.POSITION], units[:, ref.SIZE]):
            met.append(rows[rows[:, col.PARKS] != 0, col.PARKS])
            self.add(rows, scan.names)
        if not np.array_equal(np.concatenate(met), units[:, ref.ORIGIN]):
            raise LogDamaged(errno.EIO, "units of parked messages point to records of other messages")
        return frozenset(scan.damaged)


def without(rows: ParkedRows, left_out: Flags) -> ParkedRows:
    """Return `rows` without those left out. Mostly there are none, and a copy of all pending rows takes seconds."""
    return rows[~left_out] if left_out.any() else rows
