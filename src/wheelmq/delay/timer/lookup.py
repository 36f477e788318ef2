"""Find parked messages by their delete key: in the table of keys, the message index, and the running tick's journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wheelmq.delay.api import Generations
from wheelmq.delay.log_generation import record_in
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.index import IndexDamaged
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    LEVELS_MAX,
    TIMER_STREAM,
    Origin,
    level_stream,
    origin_index,
    origin_of,
    origin_stream,
)
from wheelmq.formats.disk.parked import delete_key, delete_keys, due_of, key_hash, unique_key_of
from wheelmq.formats.disk.properties import REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis, QueueOffset


class FoundTimer(NamedTuple):
    """A pending message that a delete key names."""

    origin: Origin
    real_queue: int
    """Row of its real queue in the table of queues."""
    due_ms: Millis
    has_slot: bool
    """Whether the message is in the timer queue. Only such a message has a slot of the wheel."""
    unique_key: str
    out_ms: str | None
    """TIMER_OUT_MS of its record: the slot in which Apache RocketMQ looks for its cancel. None without one."""


def find_cancelled(timer: Timer, generations: Generations, cancel: dict[str, str]) -> tuple[list[FoundTimer], bool]:
    """Find the pending messages that a parked cancel with the properties `cancel` names, as `find_parked` does."""
    for key in delete_keys(cancel):
        pending, settled = find_parked(timer, generations, key)
        if pending or settled:
            return pending, settled
    return [], False


def find_parked(timer: Timer, generations: Generations, key: str) -> tuple[list[FoundTimer], bool]:
    """Find the pending messages that the delete key, in its long form, names.

    Returns them, and whether the key also names a settled message that the store still has. Raises IndexDamaged,
    ChainTooLong when the message index cannot answer.
    """
    return _choose(timer, key, _with_key(timer, generations, key))


def find_among(timer: Timer, key: str, origins: Iterable[Origin]) -> list[FoundTimer]:
    """Find the pending messages that the delete key names, among `origins` and the messages in the table of keys.

    All of them are in the commit log, because a start adds the keys of messages in blocks later.
    """
    chosen = sorted({*origins, *timer.pending.keys.find(key_hash(key))})
    queues = ((origin, timer.queue_of(origin_stream(origin))) for origin in chosen)
    records = ((origin, record_in(timer.store, queue, origin_index(origin))) for origin, queue in queues)
    return _choose(timer, key, ((origin, record) for origin, record in records if record is not None))[0]


def _choose(timer: Timer, key: str, found: Iterable[tuple[Origin, Record]]) -> tuple[list[FoundTimer], bool]:
    """Return the pending messages of `found` that the delete key names, and whether it names a settled one."""
    pending: list[FoundTimer] = []
    settled = False
    for origin, record in found:
        properties = record.message.properties
        if delete_key(properties.get(REAL_TOPIC, ""), properties.get(UNIQ_KEY, "")) != key:
            continue
        if origin in timer.pending.done:
            settled = True
        else:
            due_ms = due_of(properties, record.store_ms)
            real_queue, has_slot = timer.store.real_queue(properties), record.message.topic == TIMER_TOPIC
            slot = properties.get(TIMER_OUT_MS)
            pending.append(FoundTimer(origin, real_queue, due_ms, has_slot, properties[UNIQ_KEY], slot))
    return pending, settled


def _with_key(timer: Timer, generations: Generations, key: str) -> Iterator[tuple[Origin, Record]]:
    """Yield origin and record of each message that may have the delete key: indexed ones first, the oldest first."""
    code = key_hash(key)
    found = {origin: generations.of(origin).record_of(origin) for origin in timer.pending.keys.find(code)}
    found |= _in_message_index(timer, key)
    rows = timer.store.journal.rows()
    running = {
        Origin(int(parked[row.PARKS])): timer.store.log.record_at(LogPosition(int(parked[row.POSITION])))
        for parked in rows[rows[:, row.KEY_HASH] == code]
    }
    for origin, record in (*sorted(found.items(), key=lambda one: one[0]), *running.items()):
        if record is not None:
            yield origin, record


def _in_message_index(timer: Timer, key: str) -> dict[Origin, Record]:
    """Look up a delete key in the message index. The topic in a delete key has no `+`."""
    index, log, unique_key = timer.pending.keys.index, timer.store.log, unique_key_of(key)
    found: dict[Origin, Record] = {}
    if index is None or not unique_key:
        return found
    for topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        for position in index.find_all(topic, unique_key, timer.needed_in_log):
            record = log.record_at(position)
            if record is None:
                if position in log.damaged:
                    continue
                raise IndexDamaged(f"the message index names log position {position}, which has no record")
            origin = _origin_of(timer, record)
            if origin is not None:
                found[origin] = record
    return found


def _origin_of(timer: Timer, record: Record) -> Origin | None:
    """Return the origin of a parked message's record. Returns None for a cancel and for any other record."""
    message = record.message
    if message.topic == TIMER_TOPIC and message.queue_id == 0 and TIMER_DEL_UNIQKEY not in message.properties:
        stream = TIMER_STREAM
    elif message.topic == SCHEDULE_TOPIC and 0 <= message.queue_id < LEVELS_MAX:
        stream = level_stream(message.queue_id + 1)
    else:
        return None
    queue = timer.queue_of(stream)
    if not queue.start <= record.queue_offset < queue.end:
        return None
    unit = queue.read(QueueOffset(record.queue_offset), 1)[0]
    return origin_of(stream, record.queue_offset) if unit["position"] == record.position else None
