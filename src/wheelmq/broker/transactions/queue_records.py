"""The records of a transaction queue in order."""

from __future__ import annotations

from collections.abc import Iterator

from wheelmq.broker.transactions.halves import HALF_QUEUE
from wheelmq.formats.disk.message import Record
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.store import Store


def queue_records(store: Store, topic: str, offset: int) -> Iterator[tuple[int, Record | None]]:
    """Yield queue offset and record of each entry from `offset` on, with None for a missing or damaged record."""
    queue = store.queues.find(topic, HALF_QUEUE)
    if queue is None:
        return
    at = max(offset, queue.start)
    while at < queue.end:
        for position in queue.read(QueueOffset(at), queue.units_per_file)["position"].tolist():
            yield at, _record_at(store, topic, at, LogPosition(position))
            at += 1


def queue_record(store: Store, topic: str, offset: int) -> Record | None:
    """Return the record at `offset`, or None if it is missing or damaged. `offset` is before the end of the queue."""
    queue = store.queues.find(topic, HALF_QUEUE)
    if queue is None or not queue.start <= offset < queue.end:
        return None
    position = LogPosition(int(queue.read(QueueOffset(offset), 1)["position"][0]))
    return _record_at(store, topic, offset, position)


def _record_at(store: Store, topic: str, offset: int, position: LogPosition) -> Record | None:
    record = store.log.record_at(position)
    if record is None or record.message.topic != topic or record.queue_offset != offset:
        return None
    return record
