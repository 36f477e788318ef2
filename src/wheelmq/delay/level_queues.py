"""The level queues: what waits in SCHEDULE_TOPIC_XXXX in a store of Apache's (RocketMQ: ScheduleMessageService).

The queue of a level, its id one less than the level, holds messages in the order in which they fall due; the tag
code of a unit is that time, and delayOffset.json says how many of a level are out. Our own levels go through the timer.
So what waits there is parked in the timer queue as the broker starts, each under an origin of its own, once, whatever
ends a start. Then delayOffset.json says that nothing waits, to Apache too.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np

from wheelmq.delay.copies import Waiting, delivered, read
from wheelmq.delay.done import DoneBits
from wheelmq.delay.levels import level_delay_ms
from wheelmq.delay.release import dead_letter
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import level_origin
from wheelmq.formats.disk.parked import DUE_DIGITS, due_text
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_TOPIC, slot_time
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.formats.wire.bodies import Body, DataVersion
from wheelmq.store import config_file
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import InternedNames, Rows
from wheelmq.store.store import PropertiesTooLong, Store
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

_DUE_MAX: Final = 10**DUE_DIGITS - 1
_KEPT: Final = [col.QUEUE_ID, col.QUEUE_OFFSET, col.POSITION, col.STORE_MS]
_QUEUE_ID, _QUEUE_OFFSET, _POSITION, _STORE_MS = range(4)
_DISPATCH_ROWS: Final = 10_000


class DelayOffsets(Body):
    """delayOffset.json: by level the queue offset of the first message that is not out."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, int] = {}


class Level(NamedTuple):
    """A message that waits in a level queue."""

    level: int
    queue_offset: QueueOffset
    position: LogPosition
    store_ms: Millis
    due_ms: Millis
    """By the level table; its queue unit may say otherwise."""


class LevelQueues:
    """What waits, from a walk over the log: feed `meet` with the rows of every record."""

    def __init__(self, disk: Disk, paths: StorePaths, levels_ms: tuple[Millis, ...]) -> None:
        self._disk = disk
        self._path = paths.config_file("delayOffset.json")
        self._levels_ms = levels_ms
        self._offsets = config_file.load(disk, self._path, DelayOffsets) or DelayOffsets()
        self._done = DoneBits()
        self._chunks: list[Rows] = []

    def meet(self, rows: Rows, names: InternedNames) -> None:
        """Note what the records queue, and what they settle."""
        self._done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        queued = rows[rows[:, col.TOPIC] == names.intern(SCHEDULE_TOPIC)][:, _KEPT]
        for queue_id in np.unique(queued[:, _QUEUE_ID]).tolist():
            first = self._offsets.offset_table.get(queue_id + 1, 0)
            mine = (queued[:, _QUEUE_ID] == queue_id) & (queued[:, _QUEUE_OFFSET] >= first)
            self._chunks.append(queued[mine])

    def waiting(self, files: MappedSequence, damaged: frozenset[LogPosition]) -> list[Level]:
        """What waits in the log that `files` hold, in log order.

        A record at a position in `damaged` is set aside. A copy behind a record tells that it is out, whenever it came:
        Apache's level table may have been another one.
        """
        kept = np.concatenate([np.empty((0, len(_KEPT)), np.int64), *self._chunks])
        found = []
        for queue_id, queue_offset, position, store_ms in kept[np.argsort(kept[:, _POSITION])].tolist():
            if position in damaged or level_origin(queue_id + 1, queue_offset) in self._done:
                continue
            due_ms = Millis(store_ms + level_delay_ms(self._levels_ms, queue_id + 1))
            found.append(Level(queue_id + 1, queue_offset, LogPosition(position), Millis(store_ms), due_ms))
        out = delivered(files, (Waiting(one.position, one.store_ms) for one in found))
        return [one for one in found if one.position not in out]

    def park(self, store: Store, timer: Timer) -> None:
        """Park what waits in the timer queue, all of it on disk before delayOffset.json says that it is out.

        Raises DiskFull, OSError.
        """
        waiting = self.waiting(store.log.files, store.log.damaged)
        if waiting:
            log.warning("timer: %d messages that wait in %s are parked in the timer", len(waiting), SCHEDULE_TOPIC)
        for number, one in enumerate(waiting, 1):
            _park(store, timer, one)
            reach("levels.parked")
            if number % _DISPATCH_ROWS == 0 or number == len(waiting):
                timer.take_journal(store.dispatch()[0])
        ends = dict(self._offsets.offset_table)
        for (topic, queue_id), queue in store.queues.items():
            if topic == SCHEDULE_TOPIC:
                ends[queue_id + 1] = queue.end
        if ends == self._offsets.offset_table:
            return
        store.flush()
        reach("levels.flushed")
        self._offsets.offset_table = ends
        config_file.save(self._disk, self._path, self._offsets)
        reach("levels.saved")


def _park(store: Store, timer: Timer, one: Level) -> None:
    """Append the record that settles `one`: parked in the timer, or a dead letter when that cannot be."""
    origin = level_origin(one.level, one.queue_offset)
    due_ms = _due_ms(store, one)
    record = read(store.log.files, one.position)
    real_queue = store.real_queue(record.message.properties)
    timer.count_pending(np.array([real_queue]))
    try:
        store.append(parked(record, due_ms, timer.settings.precision_ms), settles=origin, real_queue=real_queue)
    except PropertiesTooLong as error:
        log.error("timer: the message at %d of level %d is a dead letter: %s", one.queue_offset, one.level, error)
        store.append(dead_letter(record), settles=origin, real_queue=real_queue)


def _due_ms(store: Store, one: Level) -> Millis:
    """When the queue unit says that a message is due, as Apache takes it; by the level table without a unit."""
    queue = store.queues.find(SCHEDULE_TOPIC, one.level - 1)
    if queue is None or not queue.start <= one.queue_offset < queue.end:
        return one.due_ms
    due_ms = int(queue.read(one.queue_offset, 1)["tag_code"][0])
    return Millis(due_ms) if one.store_ms <= due_ms <= _DUE_MAX else one.due_ms


def parked(record: Record, due_ms: Millis, precision_ms: int) -> Message:
    """The message of a level queue as it is parked in the timer queue."""
    properties = dict(record.message.properties)
    for name in (*props.TIMER_REQUESTS, props.TIMER_DEL_UNIQKEY, *props.OWN):
        properties.pop(name, None)
    if props.DELAY in properties:
        properties[props.TIMER_DELAY_LEVEL] = properties.pop(props.DELAY)
    properties[props.TIMER_OUT_MS] = str(slot_time(due_ms, precision_ms))
    properties[props.WMQ_DUE] = due_text(due_ms)
    return record.message.again(TIMER_TOPIC, 0, properties)
