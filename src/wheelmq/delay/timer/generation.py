"""The third generation of delayed messages: timers."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.api import EVERYTHING, Integers, Wanted
from wheelmq.delay.due_times import due_times
from wheelmq.delay.log_generation import LogGeneration
from wheelmq.delay.pending_message import State
from wheelmq.delay.queue_listing import Known
from wheelmq.delay.rebuild import rebuild
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import TIMER_STREAM, Origin, Stream, origin_index
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.consume_queue import ConsumeQueue


class TimerGeneration(LogGeneration):
    topic = TIMER_TOPIC

    def __init__(self, timer: Timer) -> None:
        super().__init__(timer.store, timer.pending.done)
        self._timer = timer

    def streams(self, wanted: Wanted = EVERYTHING) -> list[Stream]:
        return [TIMER_STREAM]

    def queue_of(self, stream: Stream) -> ConsumeQueue:
        return self._timer.queue

    def queue_id_of(self, stream: Stream) -> int:
        return 0

    def due_of(self, origin: Origin, record: Record, now_ms: Millis) -> Millis:
        return due_of(record.message.properties, record.store_ms)

    def state_of(self, origin: Origin) -> State:
        return State.INDEXED if origin_index(origin) < self._timer.indexed_to else State.PARKED

    def rebuild(self, record: Record, *, enqueue_ms: int, now_ms: Millis, rolls: bool) -> Message:
        return rebuild(record, enqueue_ms=enqueue_ms, now_ms=now_ms, rolls=rolls)

    def needed_from(self) -> LogPosition:
        return self._timer.needed_from()

    def _known(self, stream: Stream, first: int, stop: int) -> Known:
        def known(offsets: Integers, tags: Integers) -> tuple[Integers, Integers, Integers]:
            if not len(offsets):
                return offsets, offsets, offsets
            times = due_times(self._timer, first, stop)
            due_ms = times.due_ms[offsets - first]
            return due_ms, times.topic_hashes[offsets - first], np.flatnonzero(due_ms == 0)

        return known
