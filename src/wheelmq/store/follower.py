"""Follow the log of a master: append its bytes, and add its records to the journal.

The bytes come in pieces that may begin and end inside a record. The log ends after the last whole record. The journal
gets the rows that the master's own appends would have added, so all later work is that of a master.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk.message import BLANK_BYTES, RECORD_BYTES_MIN
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.disk.paths import file_name
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.names import DEAD_LETTER_TOPIC, SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.journal import Rows
from wheelmq.store.recovery import InternedNames, LogDamaged, LogScan
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach

ROWS_MAX: Final = 4096
"""Records that one step adds to the journal."""
_SCANNED: Final = {
    row.QUEUE: col.TOPIC,
    row.QUEUE_OFFSET: col.QUEUE_OFFSET,
    row.POSITION: col.POSITION,
    row.SIZE: col.SIZE,
    row.TAG_CODE: col.TAG_CODE,
    row.STORE_MS: col.STORE_MS,
    row.DUE_MS: col.DUE_MS,
    row.SETTLES: col.SETTLES,
    row.KEY_HASH: col.KEY_HASH,
    row.FLAGS: col.FLAGS,
    row.REAL_QUEUE: col.REAL_QUEUE_ID,
    row.PARKS: col.PARKS,
}
"""The column of a scanned row for each column of a journal row. Queue, flags and real queue have other values."""
_COLUMNS: Final = np.array([_SCANNED[column] for column in range(row.COLUMNS)])
_SPECIAL: Final = np.array([col.SETTLES, col.PARKS])
"""Columns that are zero in a record of a plain message."""


class NotNext(ValueError):
    """The bytes do not continue the log: their position is another one than the end of the received bytes."""


class MasterLogDamaged(LogDamaged):
    """The master sent bytes for the log position `position` that are no record."""

    def __init__(self, position: LogPosition, file: str) -> None:
        super().__init__(
            errno.EIO,
            f"the bytes that the master sent for log position {position} are no record. Stop the master and put a good "
            f"copy of its file commitlog/{file} in place, or promote a slave that has the record",
        )
        self.position = position


class LogFollower:
    """Appends bytes of a master's log to a store that takes no other messages.

    `real_queue_of` returns the row of the real queue of a parked message, by its origin, or -1. `lacks` returns which
    messages are stored outside of the log, and are not counted in this store. `may_differ` returns which of them may
    have come from another master.
    """

    def __init__(
        self,
        store: Store,
        real_queue_of: Callable[[Origin], int],
        lacks: Callable[[Rows], npt.NDArray[np.bool_]],
        may_differ: Callable[[Rows], npt.NDArray[np.bool_]],
    ) -> None:
        self._store = store
        self._real_queue_of = real_queue_of
        self._lacks = lacks
        self._may_differ = may_differ
        self.names = InternedNames()
        """The topics of `taken`."""
        self._rows: Rows = np.zeros((ROWS_MAX, col.COLUMNS), np.int64)
        self.taken: Rows = self._rows[:0]
        """The scanned rows of the last step. They are valid until the next one."""
        self.received_to = store.log.end
        """End of the received bytes. It is after the end of the log while a record is incomplete."""

    @property
    def has_records(self) -> bool:
        """Whether bytes wait that `take_records` has not seen, or that did not fit into one step."""
        return self.received_to > self._store.log.end

    def begin_at(self, position: LogPosition) -> None:
        """Let an empty log begin at `position`, the start of a file of the master."""
        log = self._store.log
        assert log.files.start == log.files.end, "the log is not empty"
        log.files.grow(position)
        log.end = log.synced = self._store.dispatched_to = self._store.units_synced_to = self.received_to = position

    def write(self, position: LogPosition, data: Buffer) -> None:
        """Append received bytes. Raises NotNext, DiskFull."""
        if position != self.received_to:
            raise NotNext(f"bytes for log position {position} came, but the received bytes end at {self.received_to}")
        files = self._store.log.files
        done = 0
        while done < len(data):
            at = self.received_to % files.file_bytes
            count = min(len(data) - done, files.file_bytes - at)
            files.grow(self.received_to, count).view[at : at + count] = data[done : done + count]
            done += count
            self.received_to = LogPosition(self.received_to + count)
        reach("follow.written")

    def drop_incomplete(self) -> None:
        """Zero the received bytes after the end of the log. The next record, of any origin, begins there."""
        log = self._store.log
        for _, file, start, stop in log.files.pieces(log.end, self.received_to):
            file.array[start:stop] = 0
        self.received_to = log.end

    def take_records(self) -> int:
        """Add the next whole records to the journal, at most ROWS_MAX. Returns their number.

        Raises MasterLogDamaged if the bytes at the end of the log are no record.
        """
        store = self._store
        log = store.log
        self.taken = self._rows[:0]
        if not self.has_records:
            return 0
        scan = LogScan(log.files, log.end, stop=self.received_to, names=self.names)
        count, _ = scan.fill(self._rows, 0)
        end = scan.end
        if end > self.received_to:  # a blank, of which only the head has come
            last = self._rows[count - 1]
            end = LogPosition(int(last[col.POSITION] + last[col.SIZE])) if count else log.end
        rows = self.taken = self._rows[:count]
        journal = self._journal_rows(rows[(rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0])
        store.journal.add(journal)
        store.queues.next_offset[journal[:, row.QUEUE]] = journal[:, row.QUEUE_OFFSET] + 1
        log.advance(end, Millis(int(rows[-1, col.STORE_MS])) if count else log.last_store_ms)
        if not count and end < self.received_to:  # else the next step checks it
            self._check_incomplete(end)
        reach("follow.taken")
        return count

    def _check_incomplete(self, end: LogPosition) -> None:
        """Check that the bytes from `end` on can become a record once more bytes come. Raises MasterLogDamaged."""
        files = self._store.log.files
        left = files.file_bytes - end % files.file_bytes
        came = min(self.received_to - end, left)
        if came < 8:
            return
        size = int.from_bytes(files.read(end, 4), "big")
        if RECORD_BYTES_MIN <= size <= left - BLANK_BYTES and came < size:
            return
        if size == left and came < size:
            return  # a blank
        raise MasterLogDamaged(end, file_name(files.base_of(end)))

    def _journal_rows(self, rows: Rows) -> Rows:
        """Return the journal rows of scanned records."""
        store, names = self._store, self.names
        found: Rows = rows.take(_COLUMNS, axis=1)
        if not len(rows):
            return found
        found[:, row.QUEUE] = store.queue_rows(rows[:, col.TOPIC], rows[:, col.QUEUE_ID], names)
        in_level = rows[:, col.TOPIC] == names.intern(SCHEDULE_TOPIC)
        if in_level.any():
            dues_ms = store.level_dues_ms(rows[in_level])
            found[in_level, row.DUE_MS] = found[in_level, row.TAG_CODE] = dues_ms
        found[:, row.FLAGS] = np.where(rows[:, col.FLAGS] & col.FLAG_DELETES, row.FLAG_DELETE, 0)
        found[:, row.REAL_QUEUE] = self._real_queues(rows, found[:, row.QUEUE])
        return found

    def _real_queues(self, rows: Rows, queues: Rows) -> Rows:
        """Return the row of the real queue of each message that a record parks or settles, and -1 for the others.

        A released record is in its real queue. A cancel, a roll and a dead letter are in the queue of another topic. So
        may be the message of a former master with the same origin, which is counted until its block is checked. A
        message that is not here, or is damaged here, is not counted. So it has no real queue.
        """
        names = self.names
        if not rows.take(_SPECIAL, axis=1).any():
            return np.full(len(rows), -1)
        parks, settles = rows[:, col.PARKS] != 0, rows[:, col.SETTLES] != 0
        found = np.where(settles, queues, -1)
        if parks.any():
            found[parks] = self._store.queue_rows(rows[parks, col.REAL_TOPIC], rows[parks, col.REAL_QUEUE_ID], names)
        elsewhere = parks | (rows[:, col.TOPIC] == names.intern(DEAD_LETTER_TOPIC))
        elsewhere |= self._may_differ(rows[:, col.SETTLES])
        for i in np.flatnonzero(settles & elsewhere).tolist():
            found[i] = self._settled_queue(Origin(int(rows[i, col.SETTLES])), rows, found)
        found[self._lacks(rows[:, col.SETTLES])] = row.NOT_COPIED
        return found

    def _settled_queue(self, origin: Origin, rows: Rows, real_queues: Rows) -> int:
        """Return the row of the real queue of the message `origin`, which may be parked by the same rows."""
        mine = np.flatnonzero(rows[:, col.PARKS] == origin)
        if len(mine):
            return int(real_queues[mine[0]])
        waiting = self._store.journal.rows()
        mine = np.flatnonzero(waiting[:, row.PARKS] == origin)
        return int(waiting[mine[0], row.REAL_QUEUE]) if len(mine) else self._real_queue_of(origin)
