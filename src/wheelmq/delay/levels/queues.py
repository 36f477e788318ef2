"""The level queues: the messages parked in SCHEDULE_TOPIC_XXXX (RocketMQ: ScheduleMessageService).

The queue id of a level is the level minus one. Its queue is in the order of due times, which are the tag codes of the
units. A message is staged when it is below the offset `staged_to`. A turn stages and arms the messages due within the
lead, and the tick those due within a second. After the clock was set back, a message can be due before an earlier
message of its queue. The broker notes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.armed import Armed
from wheelmq.delay.done import DoneBits
from wheelmq.delay.levels.table import deliver_at_ms, level_delay_ms
from wheelmq.delay.refs import Refs, by_fire_time
from wheelmq.formats.disk.origin import (
    LEVELS_MAX,
    Stream,
    by_stream,
    is_level,
    level_stream,
    origin_of,
    stream_number,
)
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import NEVER_MS, LogPosition, Millis, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue, Units
from wheelmq.store.store import Store

UNITS_AT_ONCE: Final = 512
"""Units of a queue that are read in one step."""
TURN_ROWS_MAX: Final = 50_000
"""Maximum number of messages of a level in one turn."""

Integers = npt.NDArray[np.int64]


class LevelSpan(NamedTuple):
    """The queue offset of the first message of a level that is not settled, and the end of the level's queue."""

    level: int
    first: int
    end: int


class LevelQueue:
    """The queue of one level, and the offset up to which it is staged."""

    def __init__(self, stream: Stream, queue: ConsumeQueue, delay_ms: Millis) -> None:
        self.stream = stream
        self.queue = queue
        self.delay_ms = delay_ms
        self.staged_to = queue.start
        """Each message below this offset is armed, settled or noted."""
        self.head_ms: int = NEVER_MS
        """Due time of the message at `staged_to`, from its unit. NEVER_MS without a message."""
        self._latest_ms = 0

    def advance(self, offset: QueueOffset) -> None:
        first = QueueOffset(max(offset, self.staged_to, self.queue.start))
        self.staged_to = self.queue.skip_blanks(first)
        self.head_ms = NEVER_MS
        if self.staged_to < self.queue.end:
            self.head_ms = int(self.queue.read(self.staged_to, 1)["tag_code"][0])

    def grow(self, dues_ms: Integers) -> npt.NDArray[np.bool_]:
        """Note new units of messages due at `dues_ms`. Returns which are due before an earlier message of the queue."""
        latest = np.maximum.accumulate(np.concatenate(([self._latest_ms], dues_ms)))
        self._latest_ms = int(latest[-1])
        if self.head_ms == NEVER_MS:
            self.advance(self.staged_to)
        return np.asarray(dues_ms < latest[:-1])

    def has_due(self, now_ms: Millis, until_ms: int) -> bool:
        return self.head_ms <= until_ms or now_ms + self.delay_ms < self.head_ms < NEVER_MS

    def due(
        self, now_ms: Millis, until_ms: int, count_max: int, durable: LogPosition | None = None
    ) -> Iterator[tuple[QueueOffset, Units, Integers]]:
        """Yield the messages that are due by `until_ms` and not staged: offset, units and due times.

        There are about `count_max` messages. With `durable`, all their records end before that log position. The
        messages end before a blank, which `advance` skips.
        """
        offset = QueueOffset(max(self.staged_to, self.queue.start))
        stop = min(self.queue.end, QueueOffset(offset + count_max))
        while offset < stop:
            units = self.queue.read(offset, min(UNITS_AT_ONCE, stop - offset))
            is_blank = units["size"] == BLANK_SIZE
            if is_blank.any():
                units, stop = units[: is_blank.argmax()], offset
            tags = units["tag_code"].astype(np.int64)
            dues_ms = np.where(tags > now_ms + self.delay_ms, now_ms, tags)  # as delay.levels.table.deliver_at_ms
            count = int(np.searchsorted(np.maximum.accumulate(dues_ms), until_ms, "right"))
            if durable is not None:
                count = min(count, int(np.searchsorted(units["position"] + units["size"], durable, "right")))
            if count:
                yield offset, units[:count], dues_ms[:count]
            if count < len(units):
                return
            offset = QueueOffset(offset + count)

    def due_of(self, offset: QueueOffset, now_ms: Millis) -> Millis:
        return deliver_at_ms(int(self.queue.read(offset, 1)["tag_code"][0]), now_ms, self.delay_ms)

    def refs(self, offset: QueueOffset, units: Units, dues_ms: Integers) -> Refs:
        origins = origin_of(self.stream, offset) + np.arange(len(units))
        return ref.build(dues_ms, origins, units["position"], units["size"], ref.is_long(self.delay_ms))


class LevelQueues:
    """The queues of the levels. Each is opened at its first use."""

    def __init__(self, store: Store, done: DoneBits) -> None:
        self._store = store
        self._done = done
        self._levels: dict[Stream, LevelQueue] = {}
        self._seen_ms = 0
        """The wall clock's time at the last call of `follow_clock`."""

    def __iter__(self) -> Iterator[LevelQueue]:
        return iter(self._levels.values())

    def of(self, stream: Stream) -> LevelQueue:
        found = self._levels.get(stream)
        if found is None:
            assert is_level(stream), stream
            level, queues = stream_number(stream), self._store.queues
            queue = queues[queues.row(SCHEDULE_TOPIC, level - 1)]
            delay_ms = level_delay_ms(self._store.levels_ms, level)
            found = self._levels[stream] = LevelQueue(stream, queue, delay_ms)
        return found

    def open_all(self) -> None:
        keys = [key for key, _ in self._store.queues.items()]
        for topic, queue_id in keys:
            if topic == SCHEDULE_TOPIC and queue_id < LEVELS_MAX:
                self.of(level_stream(queue_id + 1))

    def spans(self) -> list[LevelSpan]:
        found = []
        for level in self:
            first = self._done.of(level.stream).first_unset(level.queue.end)
            end = int(level.queue.end)
            found.append(LevelSpan(stream_number(level.stream), max(first, int(level.queue.start)), end))
        return sorted(found)

    def offsets(self) -> dict[int, int]:
        return {span.level: span.first for span in self.spans()}

    def count_pending(self) -> int:
        return sum(self._done.of(level.stream).count_unset(level.queue.end) for level in self)

    def needed_from(self) -> LogPosition:
        """Return the position of the first record that a level may still read: one that is not settled."""
        pending = ((level.queue, self._done.of(level.stream).first_unset(level.queue.end)) for level in self)
        otherwise = self._store.dispatched_to
        return min((queue.position_from(first, otherwise) for queue, first in pending), default=otherwise)

    def note(self, refs: Refs) -> Refs:
        """Note that the units of `refs` were written. Returns those that their level's queue does not stage in time."""
        kept = np.ones(len(refs), np.bool_)
        for stream, mine in by_stream(refs[:, ref.ORIGIN]):
            if is_level(stream):
                kept[mine] = self.of(stream).grow(refs[mine, ref.FIRE_MS])
        return refs if kept.all() else refs[kept]

    def next_ms(self) -> int:
        """Return the least due time at the head of a level, or NEVER_MS when all messages are staged."""
        return min(level.head_ms for level in self._levels.values()) if self._levels else NEVER_MS

    def have_due(self, now_ms: Millis, until_ms: int) -> bool:
        return any(level.has_due(now_ms, until_ms) for level in self)

    def count_due(self, now_ms: Millis, until_ms: int) -> int:
        return sum(end - first for _, first, end in self.ranges(now_ms, until_ms))

    def take_due(self, now_ms: Millis, until_ms: int, count_max: int) -> Refs | None:
        """Stage messages due by `until_ms`, about `count_max` per level. Returns references by fire time, or None."""
        taken: list[Refs] = []
        for level in self._levels.values():
            if level.has_due(now_ms, until_ms):
                end = level.staged_to
                for offset, units, dues_ms in level.due(now_ms, until_ms, count_max):
                    taken.append(level.refs(offset, units, dues_ms))
                    end = QueueOffset(offset + len(units))
                level.advance(end)
        return by_fire_time(np.concatenate(taken)) if taken else None

    def advance(self, queues: list[tuple[int, int, int]]) -> None:
        """Note that the messages of `queues`, a result of `ranges`, are staged."""
        for stream, _, end in queues:
            self.of(Stream(stream)).advance(QueueOffset(end))

    def follow_clock(self, now_ms: Millis, armed: Armed) -> None:
        """If the clock was set back since the last call, bring armed messages of levels forward.

        If the first message of a level is now further away than the level's delay, all armed messages of the level fire
        at once. For messages that are not staged, delay.levels.table.deliver_at_ms does the same.
        """
        if now_ms < self._seen_ms:
            for stream, first_ms in armed.first_by_stream().items():
                if is_level(stream) and first_ms > now_ms + self.of(stream).delay_ms:
                    armed.bring_forward(stream, now_ms)
        self._seen_ms = now_ms

    def ranges(self, now_ms: Millis, until_ms: int, durable: LogPosition | None = None) -> list[tuple[int, int, int]]:
        """Return the ranges (stream, first, end) of messages that are due by `until_ms` and not staged, by level.

        A range has about TURN_ROWS_MAX messages at most, and is never empty. With `durable`, the records of all
        messages end before that log position.
        """
        found: list[tuple[int, int, int]] = []
        for level in sorted(self._levels.values(), key=lambda level: level.stream):
            if level.has_due(now_ms, until_ms):
                parts = [
                    (offset, len(units)) for offset, units, _ in level.due(now_ms, until_ms, TURN_ROWS_MAX, durable)
                ]
                if parts:
                    found.append((level.stream, parts[0][0], sum(parts[-1])))
        return found
