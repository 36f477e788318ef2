"""The first generation of delayed messages: levels."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.api import EVERYTHING, Integers, Wanted
from wheelmq.delay.levels.queues import LevelQueues
from wheelmq.delay.log_generation import LogGeneration
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.pending_message import State
from wheelmq.delay.queue_listing import Known
from wheelmq.delay.rebuild import real_queue
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import Origin, Stream, origin_index, origin_stream, stream_number
from wheelmq.formats.disk.parked import level_due_time
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.store import Store


class LevelGeneration(LogGeneration):
    """The messages in the queues of the levels. The unit of a message has its due time."""

    topic = SCHEDULE_TOPIC

    def __init__(self, store: Store, pending: PendingTable) -> None:
        super().__init__(store, pending.done)
        self._levels: LevelQueues = pending.levels

    def streams(self, wanted: Wanted = EVERYTHING) -> list[Stream]:
        return [level.stream for level in self._levels]

    def queue_of(self, stream: Stream) -> ConsumeQueue:
        return self._levels.of(stream).queue

    def queue_id_of(self, stream: Stream) -> int:
        return stream_number(stream) - 1

    def _has_queue_id(self, stream: Stream, queue_id: int) -> bool:
        return queue_id == self.queue_id_of(stream)

    def due_of(self, origin: Origin, record: Record, now_ms: Millis) -> Millis:
        """Return the due time in the message's unit. If the unit has expired, `record` and the level give it."""
        level, offset = self._levels.of(origin_stream(origin)), QueueOffset(origin_index(origin))
        if not level.queue.start <= offset < level.queue.end:
            return Millis(level_due_time(record.message.properties, record.store_ms, level.delay_ms))
        return level.due_of(offset, now_ms)

    def state_of(self, origin: Origin) -> State:
        return State.LEVEL

    def rebuild(self, record: Record, *, enqueue_ms: int, now_ms: Millis, rolls: bool) -> Message:
        """Return the message for its real topic, with its level (RocketMQ: messageTimeUp). Raises Unreleasable."""
        properties = props.without_origin(record.message.properties)
        return record.message.again(*real_queue(properties), properties)

    def needed_from(self) -> LogPosition:
        return self._levels.needed_from()

    def _known(self, stream: Stream, first: int, stop: int) -> Known:
        latest_ms = (now_ms := self._store.clock.now_ms()) + self._levels.of(stream).delay_ms

        def known(offsets: Integers, tags: Integers) -> tuple[Integers, Integers, Integers]:
            due_ms = np.where(tags > latest_ms, now_ms, tags)  # as delay.levels.table.deliver_at_ms
            return due_ms, np.zeros(len(offsets), np.int64), np.arange(len(offsets))

        return known
