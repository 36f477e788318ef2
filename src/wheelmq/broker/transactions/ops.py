"""Op messages, which name the half messages that have ended (RocketMQ: TransactionalOpBatchService).

One op message covers many ends, so the last ends may have none yet. A start finds these by their commits in the log
(`recovered_ends`), which it reads from a snapshot on. So all waiting ends are written before a snapshot.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from wheelmq.broker.transactions.halves import HALF_QUEUE, offsets_in, op_message
from wheelmq.broker.transactions.queue_records import queue_records
from wheelmq.formats.names import OP_HALF_TOPIC
from wheelmq.formats.units import QueueOffset
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach


class _Op(NamedTuple):
    """An op message that a start may still need."""

    queue_offset: int
    last: int
    """The greatest queue offset of a half message in it."""


class Ops:
    """Writes op messages, and knows the first one that is still needed. Times are monotonic milliseconds."""

    def __init__(self, store: Store, interval_ms: int, bytes_max: int) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self._bytes_max = bytes_max
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._last_waiting = -1
        self._due_ms: int | None = None
        self._written: deque[_Op] = deque()

    def load(self, offset: int) -> set[int]:
        """Read the op messages from `offset` on. Return the offsets of the half messages that they name."""
        ended: set[int] = set()
        for queue_offset, record in queue_records(self._store, OP_HALF_TOPIC, offset):
            found = [] if record is None else offsets_in(record.message)
            ended.update(found)
            self._written.append(_Op(queue_offset, max(found, default=-1)))
        return ended

    @property
    def end(self) -> int:
        """Return the end of the op queue, including messages of the running tick."""
        queues = self._store.queues
        if queues.find(OP_HALF_TOPIC, HALF_QUEUE) is None:
            return 0
        return int(queues.next_offset[queues.row(OP_HALF_TOPIC, HALF_QUEUE)])

    def add(self, offset: int, now_ms: int) -> None:
        text = f"{offset},"
        self._waiting.append(text)
        self._waiting_bytes += len(text)
        self._last_waiting = max(self._last_waiting, offset)
        if self._due_ms is None:
            self._due_ms = now_ms + self._interval_ms
        if self._waiting_bytes > self._bytes_max:
            self._due_ms = now_ms

    def next_ms(self) -> int | None:
        return self._due_ms

    def write(self) -> int:
        """Write the waiting ends. Return the number of op messages. Raises OSError: the others keep waiting."""
        count = 0
        while self._waiting:
            self._append(self._front())
            count += 1
        self._due_ms, self._last_waiting = None, -1
        return count

    def _front(self) -> int:
        """Return the number of ends that fill the next op message."""
        size = 0
        for count, text in enumerate(self._waiting, 1):
            size += len(text)
            if size >= self._bytes_max:
                return count
        return len(self._waiting)

    def _append(self, count: int) -> None:
        texts = [self._waiting[i] for i in range(count)]
        self._written.append(_Op(self.append_op("".join(texts)), self._last_waiting))
        for text in texts:
            self._waiting.popleft()
            self._waiting_bytes -= len(text)

    def append_op(self, offsets: str) -> QueueOffset:
        """Append an op message. Return its queue offset. Raises OSError."""
        store = self._store
        appended = store.append(op_message(offsets, store.clock.now_ms(), store.host))
        reach("transaction.op")
        return appended.queue_offset

    def needed_from(self, first: int) -> int:
        """Return the first op message that is still needed when all half messages before `first` are gone."""
        while self._written and self._written[0].last < first:
            self._written.popleft()
        return self._written[0].queue_offset if self._written else self.end
