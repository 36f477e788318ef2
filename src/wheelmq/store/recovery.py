"""Recovery: what the files say after a stop of any kind.

The log is walked from its first record to the first bytes that are none; there it ends. The walk hands out rows of
integers (columns of `formats.kernels.scan`), many records at a time: the kernel fills them, and the plain code here
fills those for the records that the kernel leaves, and all of them where kernels are off.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    SYS_TRANSACTION,
    SYS_TRANSACTION_COMMIT,
    Record,
    RecordError,
    decode_record,
)
from wheelmq.formats.disk.parked import delay_facts
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.java import java_long, tag_code
from wheelmq.formats.kernels import jit, topics
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import MappedFile

CHUNK_ROWS = 50_000

Rows = npt.NDArray[np.int64]


class InternedNames:
    """Topic names by row, in the arrays that kernels look names up in and add them to."""

    def __init__(self) -> None:
        self.slots: Rows = np.full(1 << 10, -1, np.int64)
        self.rows: Rows = np.zeros((1 << 9, 2), np.int64)
        self.names: npt.NDArray[np.uint8] = np.zeros(1 << 15, np.uint8)
        self.used: Rows = np.zeros(2, np.int64)

    def name(self, row: int) -> str:
        """The name of a row."""
        at, size = self.rows[row].tolist()
        return bytes(self.names[at : at + size]).decode("utf-8", "replace")

    def intern(self, name: str) -> int:
        """The row of a name."""
        raw = name.encode()
        while (row := self._intern(np.frombuffer(raw, np.uint8))) < 0:
            self.grow()
        return row

    def _intern(self, raw: npt.NDArray[np.uint8]) -> int:
        if jit.available():
            return int(topics.intern_topic(self.slots, self.rows, self.names, self.used, raw, 0, len(raw)))
        wanted = bytes(raw)
        for row in range(int(self.used[0])):
            at, size = self.rows[row].tolist()
            if bytes(self.names[at : at + size]) == wanted:
                return row
        row, at = self.used.tolist()
        if row == len(self.rows) or at + len(wanted) > len(self.names):
            return -1
        self.names[at : at + len(wanted)] = raw
        self.rows[row] = (at, len(wanted))
        self.used[:] = (row + 1, at + len(wanted))
        return int(row)

    def grow(self) -> None:
        """Make room for twice as many names."""
        known = [self.name(row) for row in range(int(self.used[0]))]
        self.slots = np.full(2 * len(self.slots), -1, np.int64)
        self.rows = np.zeros((2 * len(self.rows), 2), np.int64)
        self.names = np.zeros(2 * len(self.names), np.uint8)
        self.used[:] = 0
        for name in known:
            self.intern(name)


class LogScan:
    """One walk over the log. After `chunks` is through, `end` is where the log ends."""

    def __init__(self, files: MappedSequence, start: LogPosition, *, check_bodies: bool = True) -> None:
        self._files = files
        self._check_bodies = check_bodies
        self.names = InternedNames()
        self.end = start

    def chunks(self) -> Iterator[Rows]:
        """Rows of the records from the start on, in order. A row counts until the next ones are asked for.

        A record counts when its sizes agree, it names its own position, and its body has its checksum.
        """
        rows = np.zeros((CHUNK_ROWS, col.COLUMNS), np.int64)
        while self.end < self._files.end:
            count, more = self._fill(rows)
            if count:
                yield rows[:count]
            if not more:
                return

    def _fill(self, rows: Rows) -> tuple[int, bool]:
        """Fill `rows` as far as they or the log go: how many, and whether the log goes on."""
        count = 0
        while count < len(rows) and self.end < self._files.end:
            file = self._files.file_at(self.end)
            base = self.end - self.end % self._files.file_bytes
            if jit.available():
                count = self._run_kernel(file, base, rows, count)
                if count == len(rows):
                    return count, True
            at = self.end - base
            if self._at_blank(file, at):
                self.end = LogPosition(base + self._files.file_bytes)
                continue
            if at >= self._files.file_bytes - BLANK_BYTES or not self._read_plain(file, at, rows[count]):
                return count, False
            self.end = LogPosition(self.end + int(rows[count, col.SIZE]))
            count += 1
        return count, True

    def _run_kernel(self, file: MappedFile, base: int, rows: Rows, count: int) -> int:
        state = np.array([self.end - base, count], np.int64)
        names = self.names
        while True:
            outcome = col.scan_log(
                file.array, base, self._check_bodies, names.slots, names.rows, names.names, names.used, rows, state
            )
            if outcome != col.NAMES_FULL:
                break
            names.grow()
        self.end = LogPosition(base + int(state[col.AT]))
        return int(state[col.ROWS])

    @staticmethod
    def _at_blank(file: MappedFile, at: int) -> bool:
        left = file.size - at
        return left >= BLANK_BYTES and BLANK.unpack_from(file.view, at) == (left, BLANK_MAGIC)

    def _read_plain(self, file: MappedFile, at: int, row: Rows) -> bool:
        """Fill one row from the record at byte `at` of a file; False when there is none."""
        try:
            record = decode_record(file.view[at:])
        except RecordError:
            return False
        if record.position != self.end or (self._check_bodies and not record.body_is_intact):
            return False
        self._describe(record, row)
        return True

    def _describe(self, record: Record, row: Rows) -> None:
        message = record.message
        facts = delay_facts(message.topic, message.properties, record.store_ms)
        dispatched = message.sys_flag & SYS_TRANSACTION in (0, SYS_TRANSACTION_COMMIT)
        parked = message.topic == TIMER_TOPIC
        real_topic = message.properties.get(props.REAL_TOPIC) if parked else None
        real_queue_id = java_long(message.properties.get(props.REAL_QID, "")) if parked else 0
        row[:] = 0
        row[col.POSITION], row[col.SIZE], row[col.STORE_MS] = record.position, record.size, record.store_ms
        row[col.QUEUE_ID], row[col.QUEUE_OFFSET] = message.queue_id, record.queue_offset
        row[col.TAG_CODE] = tag_code(message.properties.get(props.TAGS))
        row[col.TOPIC] = self.names.intern(message.topic)
        row[col.DUE_MS], row[col.SETTLES], row[col.KEY_HASH] = facts.due_ms, facts.settles, facts.key_hash
        row[col.FLAGS] = (
            (col.FLAG_DISPATCHED if dispatched else 0)
            | (col.FLAG_DELETES if facts.deletes else 0)
            | (col.FLAG_DECIDED if facts.decided else 0)
        )
        row[col.REAL_TOPIC] = self.names.intern(real_topic) if real_topic else -1
        row[col.REAL_QUEUE_ID] = -1 if real_queue_id is None else real_queue_id
