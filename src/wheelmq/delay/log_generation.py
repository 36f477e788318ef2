"""The methods that the generations in the commit log share: levels and timers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wheelmq.delay.api import Found, Wanted
from wheelmq.delay.done import DoneBits
from wheelmq.delay.queue_listing import Known, find_in_queue
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import Origin, Stream, origin_index, origin_stream
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.store import Store


def record_in(store: Store, queue: ConsumeQueue, index: int) -> Record | None:
    """Return the record that the unit at `index` names. Returns None when it has expired or is damaged."""
    if index < queue.start:  # the message was settled long ago, and its record has expired
        return None
    return store.log.record_at(LogPosition(int(queue.read(QueueOffset(index), 1)["position"][0])))


class LogGeneration(ABC):
    """A generation whose streams are consume queues of `topic`."""

    topic: str

    def __init__(self, store: Store, done: DoneBits) -> None:
        self._store = store
        self._done = done

    @abstractmethod
    def queue_of(self, stream: Stream) -> ConsumeQueue: ...

    @abstractmethod
    def _known(self, stream: Stream, first: int, stop: int) -> Known:
        """Return the function that yields the due times without a read of records."""

    def files_of(self, stream: Stream) -> MappedSequence:
        return self._store.log.files

    def record_of(self, origin: Origin) -> Record | None:
        return record_in(self._store, self.queue_of(origin_stream(origin)), origin_index(origin))

    def record_at(self, origin: Origin, position: LogPosition) -> Record | None:
        record = self._store.log.record_at(position)
        if record is None:
            return None
        is_there = record.message.topic == self.topic and record.queue_offset == origin_index(origin)
        return record if is_there and self._has_queue_id(origin_stream(origin), record.message.queue_id) else None

    def _has_queue_id(self, stream: Stream, queue_id: int) -> bool:
        """Return whether a record with `queue_id` can be of `stream`. A scan takes any queue of the timer topic."""
        return True

    def find(self, stream: Stream, first: int, stop: int, wanted: Wanted, until_s: float) -> Found:
        queue, done = self.queue_of(stream), self._done.of(stream)
        return find_in_queue(self._store, queue, done, first, stop, wanted, self._known(stream, first, stop))
