"""The fast path of a batch's rows: kernel calls measure the rows of a slice, and append their records after its mark.

It works on the store's own mapped log, queue table and journal. The plain code appends each slice with a row that the
kernel leaves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.broker.batches.cursor import RowCursor, TopicChunk
from wheelmq.broker.fast import batch_rows as kernel
from wheelmq.broker.fast import send_fields as fields
from wheelmq.broker.settings import BrokerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.batch import CHUNK_ROWS_MAX
from wheelmq.formats.disk.message import TOPIC_BYTES_MAX
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.arrays import read_only
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach

PIECE_ROWS: Final = 32
"""Rows that one call of the kernel appends, so that a failpoint can end the process amid a slice."""
_NO_LIMIT: Final = 1 << 31

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class _Run(NamedTuple):
    """Measured rows of one chunk: those from `first` to before `end` in the table."""

    chunk: TopicChunk
    first: int
    end: int


class MeasuredRows:
    """The rows of a slice, which the kernel can append. Valid until the next slice is measured."""

    def __init__(self, batch: FastBatch, runs: list[_Run], suffix: Bytes, state: Integers) -> None:
        self._batch, self._runs, self._suffix = batch, runs, suffix
        self.record_bytes = int(state[kernel.RECORD_BYTES])
        self.body_bytes = int(state[kernel.BODY_BYTES])
        self.place = (0, 0)
        """The place after the last row, as `RowCursor.move` takes it."""

    def __len__(self) -> int:
        return self._runs[-1].end

    @property
    def topic(self) -> str:
        return self._runs[0].chunk.topic

    @property
    def queue_id(self) -> int:
        return int(self._batch.table[0, kernel.QUEUE_ID])

    def keys(self) -> list[bytes]:
        """Return the unique key of each row."""
        found: list[bytes] = []
        for chunk, first, end in self._runs:
            rows, shift = chunk.chunk.rows, chunk.topic_bytes
            spans = self._batch.table[first:end, kernel.KEY : kernel.KEY_END + 1] - shift
            found += [rows[start:stop] for start, stop in spans.tolist()]
        return found

    def open_queues(self) -> None:
        """Find the queue of each row. Opens a queue at its first use."""
        for chunk, first, end in self._runs:
            self._batch.open_queues(chunk.topic, first, end)

    def append(self) -> None:
        """Append the records at the end of the log, which must have room for them in one file."""
        for chunk, first, end in self._runs:
            for start in range(first, end, PIECE_ROWS):
                self._batch.append(chunk, start, min(start + PIECE_ROWS, end), self._suffix)
                reach("batch.appended")


class FastBatch:
    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store, self._settings = store, settings
        self.table: Integers = np.zeros((CHUNK_ROWS_MAX, kernel.COLUMNS), np.int64)
        """The measured rows."""
        self._limits: Integers = np.zeros(kernel.LIMITS, np.int64)
        self._measured: Integers = np.zeros(kernel.MEASURED, np.int64)
        self._parameters: Integers = np.zeros(fields.PARAMETERS, np.int64)
        self._parameters[fields.STORE_IP] = int.from_bytes(store.host.address, "big")
        self._parameters[fields.STORE_PORT] = store.host.port
        self._fields: Integers = np.zeros(fields.FIELDS, np.int64)
        self._state: Integers = np.zeros(fields.STATE, np.int64)
        self.rows = 0
        """Rows that the kernel appended."""

    def accepts(self, chunk: TopicChunk, queues: int, more_bytes: int) -> bool:
        """Return whether the kernel can append all rows of a chunk to a topic of `queues` queues.

        Each record must leave `more_bytes` for others in its log file. False leaves the chunk to the plain code.
        """
        if not self._takes(chunk):
            return False
        limits = self._limits
        limits[kernel.QUEUES], limits[kernel.BODY_MAX] = queues, self._settings.requests.body_bytes_max
        limits[kernel.RECORD_MAX] = self._store.record_bytes_max - more_bytes
        limits[kernel.ROWS_MAX], limits[kernel.SIZE_MAX], limits[kernel.ROW_ROOM] = CHUNK_ROWS_MAX, 1 << 40, 0
        self._measured[:] = 0
        return self._measure(chunk, 0, self._suffix()) == kernel.CHUNK_ENDS

    def measure(self, cursor: RowCursor, rows_max: int, size_max: int, row_room: int) -> MeasuredRows | None:
        """Measure the next slice: at most `rows_max` rows, and `size_max` bytes of content with `row_room` for each.

        Returns None if a row of the slice is for the plain code, or if no row is left. Raises UploadWrong, OSError.
        """
        limits, state, suffix = self._limits, self._measured, self._suffix()
        limits[kernel.QUEUES] = limits[kernel.BODY_MAX] = limits[kernel.RECORD_MAX] = _NO_LIMIT
        limits[kernel.ROWS_MAX], limits[kernel.SIZE_MAX] = min(rows_max, CHUNK_ROWS_MAX), size_max
        limits[kernel.ROW_ROOM] = row_room
        state[:] = 0
        runs: list[_Run] = []
        at, i = cursor.at, 0
        place = (0, at)
        while (chunk := cursor.chunk(i)) is not None:
            if not self._takes(chunk):
                return None
            first = int(state[kernel.COUNT])
            outcome = self._measure(chunk, at, suffix)
            if outcome == kernel.NOT_MINE:
                return None
            count = int(state[kernel.COUNT])
            if count > first:
                runs.append(_Run(chunk, first, count))
                place = (i, int(state[kernel.AT]) - chunk.topic_bytes)
            if outcome == kernel.SLICE_ENDS:
                break
            i, at = i + 1, 0
        if not runs:
            return None
        measured = MeasuredRows(self, runs, suffix, state)
        measured.place = place
        return measured

    def _takes(self, chunk: TopicChunk) -> bool:
        """Return whether the kernel can write the topic and the hosts of the records."""
        addresses = (chunk.chunk.born_host.address, self._store.host.address)
        return jit.available() and chunk.topic_bytes <= TOPIC_BYTES_MAX and all(len(one) == 4 for one in addresses)

    def _measure(self, chunk: TopicChunk, at: int, suffix: Bytes) -> int:
        self._limits[kernel.TOPIC_BYTES] = chunk.topic_bytes
        self._measured[kernel.AT] = chunk.topic_bytes + at
        return kernel.measure_rows(chunk.raw, suffix, self._limits, self.table, self._measured)

    def _suffix(self) -> Bytes:
        """Return the properties that the broker adds to each row."""
        return read_only(np.frombuffer(props.encode(self._settings.broker.record_properties()), np.uint8))

    def open_queues(self, topic: str, first: int, end: int) -> None:
        """Write the queue rows of measured rows to the table, in the order in which the plain code opens the queues."""
        queue_ids = self.table[first:end, kernel.QUEUE_ID].tolist()
        rows = {queue_id: self._store.queues.row(topic, queue_id) for queue_id in dict.fromkeys(queue_ids)}
        self.table[first:end, kernel.QUEUE_ROW] = [rows[queue_id] for queue_id in queue_ids]

    def append(self, chunk: TopicChunk, first: int, end: int, suffix: Bytes) -> None:
        """Append measured rows of a chunk."""
        log, journal = self._store.log, self._store.journal
        journal.make_room(end - first)
        parameters, f, state = self._parameters, self._fields, self._state
        base = LogPosition(log.end - log.end % log.files.file_bytes)
        host = chunk.chunk.born_host
        parameters[fields.LOG_BASE] = base
        parameters[fields.STORE_MS] = store_ms = log.store_ms()
        parameters[fields.PEER_IP], parameters[fields.PEER_PORT] = int.from_bytes(host.address, "big"), host.port
        f[fields.TOPIC_END], f[fields.BORN_MS] = chunk.topic_bytes, chunk.chunk.born_ms
        state[fields.LOG_AT], state[fields.ROWS] = log.end - base, journal.count
        self.rows += kernel.append_rows(
            chunk.raw,
            self.table[first:end],
            log.files.file_at(log.end).array,
            self._store.queues.next_offset,
            journal.table,
            suffix,
            parameters,
            f,
            state,
        )
        log.advance(LogPosition(base + int(state[fields.LOG_AT])), store_ms)
        journal.count = int(state[fields.ROWS])
