"""The ended transactions of a master that no op message names yet, as a replica follows its log.

A replica that becomes the master needs them, because its half queue alone does not show them (`recovered_ends`).
"""

from __future__ import annotations

from collections.abc import Iterable

from wheelmq.broker.transactions.halves import HALF_QUEUE, offsets_in
from wheelmq.broker.transactions.recovered_ends import Rows, ends_in
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.names import HALF_TOPIC, OP_HALF_TOPIC
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.recovery import InternedNames
from wheelmq.store.store import Store


class FollowedEnds:
    """Log positions of ended half messages."""

    def __init__(self, store: Store, unwritten: Iterable[int]) -> None:
        """Begin with the ended half messages at the queue offsets `unwritten`."""
        self._store = store
        self._unwritten = {position for offset in unwritten if (position := self._position_of(offset)) is not None}
        self._ops: list[LogPosition] = []
        """Op messages that were not read yet: the units of their half messages may not be written."""

    def on_rows(self, rows: Rows, names: InternedNames) -> None:
        """Take the next scanned rows. The queue units of all earlier ones are written."""
        self._read_ops()
        for ends in ends_in(self._store.log.files, rows):
            self._unwritten.update(ends.tolist())
        is_op = rows[:, col.TOPIC] == names.intern(OP_HALF_TOPIC)
        self._ops += map(LogPosition, rows[is_op, col.POSITION].tolist())

    def ended_from(self, position: LogPosition) -> set[int]:
        """Return the positions of ended half messages, from `position` on. The queue units of all rows are written."""
        self._read_ops()
        return {one for one in self._unwritten if one >= position}

    @property
    def is_empty(self) -> bool:
        """Whether op messages name all ends. The queue units of all rows are written."""
        self._read_ops()
        return not self._unwritten

    def _read_ops(self) -> None:
        ops, self._ops = self._ops, []
        for position in ops:
            record = self._store.log.record_at(position)
            for offset in [] if record is None else offsets_in(record.message):
                self._unwritten.discard(self._position_of(offset) or -1)

    def _position_of(self, offset: int) -> int | None:
        """Return the log position of the half message at a queue offset, or None if it has expired."""
        queue = self._store.queues.find(HALF_TOPIC, HALF_QUEUE)
        if queue is None or not queue.start <= offset < queue.end:
            return None
        return int(queue.read(QueueOffset(offset), 1)["position"][0])
