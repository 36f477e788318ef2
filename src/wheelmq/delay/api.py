"""The interface of the generations of delayed messages, and the table that finds the generation of an origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wheelmq.delay.armed import Armed
from wheelmq.delay.done import DoneBits
from wheelmq.delay.pending_message import PendingMessage, State, describe
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import KIND_SHIFT, STREAM_BITS, Origin, Stream
from wheelmq.formats.units import NEVER_MS, LogPosition, Millis, QueueOffset
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.clock import Clock

Integers = npt.NDArray[np.int64]


class Wanted(NamedTuple):
    """The messages to find: those of one topic or of all, due from `from_ms` to before `to_ms`."""

    topic: str | None = None
    from_ms: Millis = Millis(0)
    to_ms: Millis = NEVER_MS


EVERYTHING = Wanted()


class Found(NamedTuple):
    """Pending messages of one stream. `stop` is the index after the last place that was read."""

    indices: Integers
    due_ms: Integers
    stop: int


class ParkedQueue(Protocol):
    """The units of one stream. A message is at the index of its origin."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def read(self, offset: QueueOffset, count: int, /) -> npt.NDArray[Any]:
        """Return at most `count` units from `offset` on. They have the fields `position` and `size`."""


class Generation(Protocol):
    """One generation of delayed messages. A stream or an origin in a call belongs to it."""

    def streams(self, wanted: Wanted = EVERYTHING) -> list[Stream]:
        """Return the streams that may have wanted messages."""

    def queue_of(self, stream: Stream) -> ParkedQueue:
        """Return the queue of a stream. `files_of` returns files for this stream."""

    def files_of(self, stream: Stream) -> MappedSequence | None:
        """Return the log that has the records of a stream, or None if the log is deleted."""

    def queue_id_of(self, stream: Stream) -> int:
        """Return the queue id in the records of a stream."""

    def record_of(self, origin: Origin) -> Record | None:
        """Return the record of a parked message, or None if it has expired or is damaged."""

    def record_at(self, origin: Origin, position: LogPosition) -> Record | None:
        """Return the record of a parked message, expected at `position`, or None if it is not there."""

    def due_of(self, origin: Origin, record: Record, now_ms: Millis) -> Millis:
        """Return the due time of the parked message `record`."""

    def state_of(self, origin: Origin) -> State:
        """Return the state of a message that is not armed."""

    def rebuild(self, record: Record, *, enqueue_ms: int, now_ms: Millis, rolls: bool) -> Message:
        """Return the message of `record` for its real topic, or for the timer queue to roll it. Raises Unreleasable.

        `enqueue_ms` and `now_ms` become properties of the message, except in a message of a level. Only timers roll.
        """

    def find(self, stream: Stream, first: int, stop: int, wanted: Wanted, until_s: float) -> Found:
        """Find wanted pending messages from index `first` to before `stop`. May stop at monotonic time `until_s`."""

    def needed_from(self) -> LogPosition:
        """Return the position of the first record in the commit log that the generation still needs."""


class Generations:
    def __init__(self, armed: Armed, done: DoneBits, clock: Clock, by_kind: Mapping[int, Generation]) -> None:
        self._armed = armed
        self.done = done
        self._clock = clock
        self._by_kind = by_kind

    def of(self, origin: Origin) -> Generation:
        return self._by_kind[origin >> KIND_SHIFT]

    def of_stream(self, stream: Stream) -> Generation:
        return self._by_kind[stream >> STREAM_BITS]

    def streams(self, wanted: Wanted = EVERYTHING) -> list[Stream]:
        return sorted(stream for one in self._by_kind.values() for stream in one.streams(wanted))

    def state_of(self, origin: Origin) -> State:
        """Return the state of a parked message: the present or the last one."""
        is_armed = origin not in self.done and self._armed.was_armed(np.array([origin]))[0]
        return State.ARMED if is_armed else self.of(origin).state_of(origin)

    def describe(self, origin: Origin, record: Record) -> PendingMessage:
        return describe(record, self.state_of(origin), self.of(origin).due_of(origin, record, self._clock.now_ms()))

    def needed_from(self) -> LogPosition:
        return min(one.needed_from() for one in self._by_kind.values())
