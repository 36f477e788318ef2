"""All consume queues of a store. Each has a row number, which kernels and the journal use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import QUEUE_UNIT
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import units as kernel
from wheelmq.formats.kernels.journal import POSITION, QUEUE, QUEUE_OFFSET, SIZE, TAG_CODE
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.journal import Rows
from wheelmq.store.mapped import MappedFiles, MappedSequence
from wheelmq.system.disk import Disk

STEP_BYTES: Final = 1 << 16
"""Disk space that a queue's file gets at a time: 3,276 units."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class QueueTable:
    """The queues by row. A queue keeps its row. About `mapped_files_max` files of them are mapped.

    `next_offset[row]` is the queue offset of the queue's next record. Within a tick it is ahead of the queue's units.
    """

    def __init__(self, disk: Disk, paths: StorePaths, queue_file_bytes: int, mapped_files_max: int = 4096) -> None:
        self._disk = disk
        self._paths = paths
        self._file_bytes = queue_file_bytes - queue_file_bytes % QUEUE_UNIT.size
        self.mapped = MappedFiles(mapped_files_max)
        self._rows: dict[QueueKey, int] = {}
        self._queues: list[ConsumeQueue] = []
        self._keys: list[QueueKey] = []
        self.next_offset: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self._place: npt.NDArray[np.int64] = np.zeros(0, np.int64)  # buffers of the kernel, reused and grown
        self._groups: npt.NDArray[np.int64] = np.empty((0, kernel.GROUP_COLUMNS), np.int64)
        self._encoded: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def load(self) -> None:
        for topic in self._disk.list(self._paths.consume_queues):
            for queue_id in self._disk.list(self._paths.consume_queues / topic):
                if queue_id.isdigit():
                    self.row(topic, int(queue_id))

    def row(self, topic: str, queue_id: int) -> int:
        """Return the row of a queue. Opens the queue at its first use."""
        key = (topic, queue_id)
        row = self._rows.get(key)
        return self._open(key) if row is None else row

    def known_row(self, topic: str, queue_id: int) -> int | None:
        return self._rows.get((topic, queue_id))

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        row = self._rows.get((topic, queue_id))
        return None if row is None else self._queues[row]

    def end(self, topic: str, queue_id: int) -> QueueOffset:
        queue = self.find(topic, queue_id)
        return QueueOffset(0) if queue is None else queue.end

    def __len__(self) -> int:
        return len(self._queues)

    def __getitem__(self, row: int) -> ConsumeQueue:
        return self._queues[row]

    def key(self, row: int) -> QueueKey:
        return self._keys[row]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues)

    def items(self) -> Iterator[tuple[QueueKey, ConsumeQueue]]:
        return zip(self._keys, self._queues, strict=True)

    def by_topic(self, counts: npt.NDArray[np.int64]) -> dict[str, int]:
        """Return the sums of `counts`, an array by queue row, by topic. Topics with a sum of 0 are omitted."""
        found: Counter[str] = Counter()
        for row in np.flatnonzero(counts).tolist():
            found[self._keys[row][0]] += int(counts[row])
        return dict(found)

    def _open(self, key: QueueKey) -> int:
        folder = self._paths.consume_queue(*key)
        files = MappedSequence(self._disk, folder, self._file_bytes, step_bytes=STEP_BYTES, mapped=self.mapped)
        queue = ConsumeQueue(files)
        row = len(self._queues)
        if row == len(self.next_offset):
            self.next_offset = np.concatenate((self.next_offset, np.zeros_like(self.next_offset)))
        self._rows[key] = row
        self._queues.append(queue)
        self._keys.append(key)
        self.next_offset[row] = queue.end
        return row

    def drop_before(self, log_start: LogPosition) -> Iterator[Callable[[], None] | None]:
        """Set every queue's start to its first record in the log. Yields the jobs that remove the files before it."""
        return (queue.drop_before(log_start) for queue in self._queues if queue.start < queue.end)

    def remove_topic(self, topic: str) -> Iterator[Callable[[], None] | None]:
        """Delete the messages of every queue of a topic. Yields the jobs that remove the files. Raises DiskFull."""
        return (queue.remove() for (name, _), queue in self.items() if name == topic)

    def write(self, rows: Rows) -> dict[int, int]:
        """Write the units of journal `rows`. Returns the bytes of new records by the row of their queue.

        Raises DiskFull. Writing again is harmless.
        """
        if jit.available():
            return self._write_quick(rows)
        grown = {}
        queue_rows = rows[:, QUEUE]
        order = np.argsort(queue_rows, kind="stable")
        bounds = np.flatnonzero(np.diff(queue_rows[order])) + 1
        for part in np.split(order, bounds) if len(order) else ():
            mine = rows[part]
            units = np.empty(len(mine), QUEUE_UNIT.dtype)
            units["position"] = mine[:, POSITION]
            units["size"] = mine[:, SIZE]
            units["tag_code"] = mine[:, TAG_CODE]
            row = int(mine[0, QUEUE])
            self._queues[row].write(QueueOffset(int(mine[0, QUEUE_OFFSET])), units)
            grown[row] = int(mine[:, SIZE].sum())
        return grown

    def write_again(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Write the units of scanned records again. Returns a mask of the rows with impossible offsets, without units.

        Offsets of a queue may have gaps: a record between them is damaged, or the topic was created again. A gap is
        possible only if the log between the two records has room for the missing ones. Raises DiskFull.
        """
        left_out = np.zeros(len(rows), np.bool_)
        order = np.argsort(rows[:, QUEUE], kind="stable")
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (np.diff(rows[order, QUEUE]) != 0) | (np.diff(rows[order, QUEUE_OFFSET]) != 1)
        firsts = np.flatnonzero(begins)
        heads = rows[order[firsts]]
        ends = np.array([self._queues[row].end for row in heads[:, QUEUE]], np.int64)
        if len(np.unique(heads[:, QUEUE])) == len(heads) and (heads[:, QUEUE_OFFSET] <= ends).all():
            self.write(rows)
            return left_out
        for part in np.split(order, firsts[1:]):
            row, offset, position = rows[part[0], [QUEUE, QUEUE_OFFSET, POSITION]].tolist()
            if self._queues[row].may_go_on_at(QueueOffset(offset), LogPosition(position)):
                self.write(rows[part])
            else:
                left_out[part] = True
        return left_out

    def _write_quick(self, rows: Rows) -> dict[int, int]:
        if len(self._place) < len(self.next_offset):
            self._place = np.zeros_like(self.next_offset)
        if len(self._groups) < len(rows):
            self._groups = np.empty((2 * len(rows), kernel.GROUP_COLUMNS), np.int64)
            self._encoded = np.empty(2 * len(rows) * QUEUE_UNIT.size, np.uint8)
        count = kernel.by_queue(rows, self._place, self._groups, self._encoded)
        grown = {}
        start = 0
        for row, offset, end, size in self._groups[:count].tolist():
            self._queues[row].write_encoded(QueueOffset(offset), self._encoded[start:end])
            start = end
            grown[row] = size
        return grown
