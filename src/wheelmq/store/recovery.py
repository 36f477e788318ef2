"""Recovery: finds the end of the log and its records after any kind of stop.

The scan starts at the first record, or at the end of the snapshot. The log ends at the first bytes that are not a
record. If the checkpoint says that later records were on disk, the log is damaged.

The scan returns many records at a time as rows (columns of `formats.kernels.scan`). The plain code here handles the
records that the kernel skips, and all records if kernels are off.
"""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.checkpoint import CHECKPOINT
from wheelmq.formats.disk.message import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    SYS_TRANSACTION,
    SYS_TRANSACTION_COMMIT,
    Record,
    RecordError,
    decode_record,
    is_written_out,
)
from wheelmq.formats.disk.origin import NO_ORIGIN, origin_of
from wheelmq.formats.disk.parked import delay_facts, fnv
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.java import java_long, tag_code
from wheelmq.formats.kernels import jit, topics
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.names import BLOCK_TOPIC
from wheelmq.formats.units import LogPosition
from wheelmq.store.spans import NEAR_BYTES, joined
from wheelmq.system.disk import Disk
from wheelmq.system.mapped_file import Bytes

log = logging.getLogger(__name__)

CHUNK_ROWS = 50_000
UNITS_LATE_MS = 3000
AHEAD_BYTES = 8 << 20
"""Bytes per scan step. The bytes of the next step are read from disk meanwhile."""
AT_ONCE_BYTES = 64 << 10
"""A scan of fewer bytes reads nothing ahead: a replica scans bytes that it has just written."""
AHEAD_SPANS = 256
"""Number of spans that are read from disk at the same time."""

Rows = npt.NDArray[np.int64]


class Checkpoint(NamedTuple):
    """The file `checkpoint`: store times up to which data is on disk. Zeros without a file."""

    log_ms: int = 0
    """Store time of a record that is on disk with all records before it."""
    queues_ms: int = 0
    index_ms: int = 0

    @property
    def redo_from_ms(self) -> int:
        """The units of records stored before this time are on disk (RocketMQ: 3 s before the checkpoint)."""
        return min(self.log_ms, self.queues_ms) - UNITS_LATE_MS


def load_checkpoint(disk: Disk, paths: StorePaths) -> Checkpoint:
    raw = disk.read(paths.checkpoint)
    if raw is None or len(raw) < CHECKPOINT.size:
        return Checkpoint()
    fields = CHECKPOINT.unpack(raw)
    return Checkpoint(int(fields["log_ms"]), int(fields["queues_ms"]), int(fields["index_ms"]))


class InternedNames:
    """Topic names by row, in arrays that the kernels search and extend."""

    def __init__(self) -> None:
        self.slots: Rows = np.full(1 << 10, -1, np.int64)
        self.rows: Rows = np.zeros((1 << 9, 2), np.int64)
        self.names: npt.NDArray[np.uint8] = np.zeros(1 << 15, np.uint8)
        self.used: Rows = np.zeros(2, np.int64)
        self._names: dict[int, str] = {}
        self._interned: dict[str, int] = {}

    def name(self, row: int) -> str:
        name = self._names.get(row)
        if name is None:
            at, size = self.rows[row].tolist()
            name = self._names[row] = bytes(self.names[at : at + size]).decode("utf-8", "replace")
        return name

    def intern(self, name: str) -> int:
        known = self._interned.get(name)
        if known is not None:
            return known
        raw = np.frombuffer(name.encode(), np.uint8)
        while (row := self._intern(raw)) < 0:
            self.grow()
        self._interned[name] = row
        return row

    def _intern(self, raw: npt.NDArray[np.uint8]) -> int:
        if jit.available():
            return int(topics.intern_topic(self.slots, self.rows, self.names, self.used, raw, 0, len(raw)))
        return self._intern_plain(bytes(raw))

    def _intern_plain(self, raw: bytes) -> int:
        """Do the same to the same arrays: the kernels may take over at any time."""
        mask = len(self.slots) - 1
        place = fnv(raw) & mask
        while (row := int(self.slots[place])) >= 0:
            at, size = self.rows[row].tolist()
            if self.names[at : at + size].tobytes() == raw:
                return row
            place = (place + 1) & mask
        row, at = self.used.tolist()
        if 2 * row >= len(self.slots) or row >= len(self.rows) or at + len(raw) > len(self.names):
            return -1
        self.slots[place] = row
        self.names[at : at + len(raw)] = np.frombuffer(raw, np.uint8)
        self.rows[row] = (at, len(raw))
        self.used[:] = (row + 1, at + len(raw))
        return int(row)

    def grow(self) -> None:
        known = [self.name(row) for row in range(int(self.used[0]))]
        self.slots = np.full(2 * len(self.slots), -1, np.int64)
        self.rows = np.zeros((2 * len(self.rows), 2), np.int64)
        self.names = np.zeros(2 * len(self.names), np.uint8)
        self.used[:] = 0
        self._interned.clear()
        for name in known:
            self.intern(name)


class LogDamaged(OSError):
    """Bytes inside the log are not a record. Ending the log there would lose records after them that were on disk."""


def log_damaged(position: LogPosition) -> None:
    log.critical("the record at log position %d has changed since it was stored: no consumer receives it", position)


def clear_row(row: Rows) -> None:
    """Clear the row of a record that is not delivered, except position, size, store time, topic and settled origin."""
    columns = [col.POSITION, col.SIZE, col.STORE_MS, col.TOPIC, col.SETTLES]
    kept = row[columns]
    row[:] = 0
    row[columns] = kept
    row[col.REAL_TOPIC] = -1


class ScannedFile(Protocol):
    """The bytes of one file of a log, as `MappedFile` has them."""

    path: Path
    size: int
    array: Bytes
    view: memoryview

    def read_ahead(self, start: int, stop: int) -> None: ...


class ScannedFiles(Protocol):
    """The files of a log, as `MappedSequence` has them."""

    file_bytes: int

    @property
    def end(self) -> int: ...

    def base_of(self, position: int) -> int: ...

    def file_at(self, position: int) -> ScannedFile: ...

    def pieces(self, position: int, end: int) -> Sequence[tuple[int, ScannedFile, int, int]]: ...


class LogScan:
    """One scan of the log. After `chunks` is exhausted, `end` is the end of the log.

    `whole_before_ms` is a store time of the checkpoint: the log has a record of this time or later, and all records
    before it were on disk. `last_ms` is the store time of the record before the start.
    """

    def __init__(
        self,
        files: ScannedFiles,
        start: LogPosition,
        *,
        check_bodies: bool = True,
        whole_before_ms: int = 0,
        last_ms: int = 0,
        stop: LogPosition | None = None,
        names: InternedNames | None = None,
    ) -> None:
        """Create a scan from `start` to `stop`, or to the end of the files. It adds topics to `names`."""
        self._files = files
        self._check_bodies = check_bodies
        self._whole_before_ms = whole_before_ms
        self._last_ms = last_ms
        self._stop = files.end if stop is None else stop
        self.names = names or InternedNames()
        self.end = start
        self.damaged: set[LogPosition] = set()
        """Positions of records whose bodies have changed since they were on disk."""

    def chunks(self) -> Iterator[Rows]:
        """Yield rows of the records from the start on, in order. A chunk is valid until the next one is requested.

        Raises LogDamaged. A record is valid if all of these hold:

        - its sizes agree, and it contains its own position;
        - its queue offset is possible for the length of the log before it;
        - its body matches its checksum, and its end was written.

        A record that was on disk is valid even with a changed body; an impossible queue offset clears its row.
        """
        rows = np.zeros((CHUNK_ROWS, col.COLUMNS), np.int64)
        while self.end < self._stop:
            count, more = self.fill(rows, 0)
            if count:
                self._last_ms = int(rows[count - 1, col.STORE_MS])
                yield rows[:count]
            if not more:
                return

    def records_at(self, positions: Rows, sizes: Rows) -> Iterator[Rows]:
        """Yield rows of the records at `positions`, in order, by the rules of `chunks`. All of them were on disk.

        Raises LogDamaged if a record is missing.
        """
        rows = np.zeros((CHUNK_ROWS, col.COLUMNS), np.int64)
        count = 0
        spans = joined(positions, positions + sizes, self._files.file_bytes, NEAR_BYTES)
        for start, stop in self._read_ahead_of(spans):
            self.end, self._stop = LogPosition(start), stop
            while self.end < stop:
                count, more = self.fill(rows, count)
                if not more:
                    raise LogDamaged(errno.EIO, f"the log ends at {self.end}, before a record that a queue points to")
                if count == len(rows):
                    yield rows[_are_in(rows[:, col.POSITION], positions)]
                    count = 0
        yield rows[:count][_are_in(rows[:count, col.POSITION], positions)]

    def _read_ahead_of(self, spans: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the same spans. Up to AHEAD_SPANS of them are read from disk before the first is returned."""
        while chosen := list(itertools.islice(spans, AHEAD_SPANS)):
            for start, stop in chosen:
                at = start % self._files.file_bytes
                self._files.file_at(start).read_ahead(at, at + stop - start)
            yield from chosen

    def set_aside(self, row: Rows) -> None:
        position = LogPosition(int(row[col.POSITION]))
        log_damaged(position)
        self.damaged.add(position)
        clear_row(row)

    def fill(self, rows: Rows, count: int) -> tuple[int, bool]:
        """Fill `rows` after the first `count`, until they are full or the log ends.
        Returns the number of rows and whether the log continues."""
        while count < len(rows) and self.end < self._stop:
            file = self._files.file_at(self.end)
            base = self._files.base_of(self.end)
            if jit.available():
                count = self._run_kernel(file, base, rows, count)
                if count == len(rows) or self.end == self._stop:
                    return count, True
            at = self.end - base
            if self._at_blank(file, at):
                self.end = LogPosition(base + file.size)
                continue
            last_ms = int(rows[count - 1, col.STORE_MS]) if count else self._last_ms
            if not self._read_plain(file, at, rows[count], is_known=last_ms < self._whole_before_ms):
                return count, False
            self.end = LogPosition(self.end + int(rows[count, col.SIZE]))
            count += 1
        return count, True

    def _run_kernel(self, file: ScannedFile, base: int, rows: Rows, count: int) -> int:
        """Fill `rows` by the kernel, for at most one scan step. Returns the number of rows."""
        at = self.end - base
        stop = min(self._stop - base, file.size, at + AHEAD_BYTES)
        last = min(self._stop - base, file.size, stop + AHEAD_BYTES)
        if last - at > AT_ONCE_BYTES:
            file.read_ahead(at, last)
        state = np.array([at, count], np.int64)
        names = self.names
        while True:
            outcome = col.scan_log(
                read_only(file.array[:stop]),
                base,
                self._check_bodies,
                self._whole_before_ms,
                names.slots,
                names.rows,
                names.names,
                names.used,
                rows,
                state,
            )
            if outcome != col.NAMES_FULL:
                break
            names.grow()
        self.end = LogPosition(base + int(state[col.AT]))
        return int(state[col.ROWS])

    @staticmethod
    def _at_blank(file: ScannedFile, at: int) -> bool:
        left = file.size - at
        return left < BLANK_BYTES or BLANK.unpack_from(file.view, at) == (left, BLANK_MAGIC)

    def _read_plain(self, file: ScannedFile, at: int, row: Rows, *, is_known: bool) -> bool:
        """Fill one row from the record at byte `at` of a file. Returns False without a record.

        If the bytes were on disk (`is_known`), raises LogDamaged without a record, unless the rest of the log is zero.
        """
        record = self._record_at(file, at)
        if record is not None and self._is_whole(file, at, record, is_known=is_known):
            self._describe(record, row)
            return True
        if not is_known:
            return False
        if record is not None and self._goes_on(file, at + record.size):
            log_damaged(self.end)
            self.damaged.add(self.end)
            self._describe(record, row)
            return True
        if not self._is_empty_behind():
            raise LogDamaged(
                errno.EIO,
                f"no record at byte {at}, but records after it were on disk: put a good copy in its place, or "
                "remove the file `checkpoint` to end the log there",
                str(file.path),
            )
        return False

    def _record_at(self, file: ScannedFile, at: int) -> Record | None:
        """Return the record at byte `at` of a file if it is well-formed and contains its own position."""
        if at >= file.size - BLANK_BYTES:
            return None
        try:
            record = decode_record(file.view[at:])
        except RecordError:
            return None
        return record if record.position == self._files.base_of(self.end) + at else None

    def _is_whole(self, file: ScannedFile, at: int, record: Record, *, is_known: bool) -> bool:
        if (self._check_bodies and not record.body_is_intact) or not record.offset_is_possible:
            return False
        return is_known or is_written_out(file.view, at, record)

    def _goes_on(self, file: ScannedFile, at: int) -> bool:
        return self._at_blank(file, at) or self._record_at(file, at) is not None

    def _is_empty_behind(self) -> bool:
        pieces = self._files.pieces(self.end, self._files.end)
        return not any(file.array[start:stop].any() for _, file, start, stop in pieces)

    def _describe(self, record: Record, row: Rows) -> None:
        message = record.message
        facts = delay_facts(message.topic, message.queue_id, message.properties, record.store_ms)
        if not record.offset_is_possible:
            row[[col.POSITION, col.SIZE, col.STORE_MS]] = record.position, record.size, record.store_ms
            row[col.TOPIC], row[col.SETTLES] = self.names.intern(message.topic), facts.settles
            clear_row(row)
            return
        dispatched = message.sys_flag & SYS_TRANSACTION in (0, SYS_TRANSACTION_COMMIT)
        parked = facts.stream != 0
        has_real_queue = parked or message.topic == BLOCK_TOPIC
        real_topic = message.properties.get(props.REAL_TOPIC) if has_real_queue else None
        real_queue_id = java_long(message.properties.get(props.REAL_QID, "")) if has_real_queue else 0
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
        row[col.PARKS] = origin_of(facts.stream, record.queue_offset) if parked and dispatched else NO_ORIGIN


def _are_in(values: Rows, known: Rows) -> npt.NDArray[np.bool_]:
    at = np.searchsorted(known, values)
    found: npt.NDArray[np.bool_] = at < len(known)
    found[found] = known[at[found]] == values[found]
    return found
