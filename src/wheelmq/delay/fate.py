"""What became of timers with a key: still pending, delivered, or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from wheelmq.delay.pending import Pending, describe
from wheelmq.delay.release import DEAD_LETTER_TOPIC
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import Origin, level_origin, parse_origin, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import SCHEDULE_TOPIC


class End(StrEnum):
    """What settled a parked message."""

    RELEASED = "released"
    ROLLED = "rolled"
    """Parked again further on, under another queue offset."""
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead letter"
    """It could never be delivered."""
    SETTLED = "settled"
    """One of these, which the message index does not tell (yet), or delivered by Apache RocketMQ before."""


class Fate(msgspec.Struct):
    """A parked message and what became of it."""

    message: Pending
    """Its state is the one it has, or had last."""
    end: End | None = None
    """None while it is pending."""
    ended_ms: int | None = None
    """Store time of the record that ended it, where that was found."""
    end_position: int | None = None
    """And the log position of that."""


FindRecords = Callable[[str, str], Iterable[Record]]
"""The newest records of a topic (first) that have a key (second)."""

_PLACES = ((TIMER_TOPIC, End.ROLLED), (DEAD_LETTER_TOPIC, End.DEAD_LETTER))


def fates(timer: Timer, topic: str, key: str, find: FindRecords) -> list[Fate]:
    """What became of the messages for `topic` that have `key` as their unique key or among their keys, oldest first."""
    found = [record for place in (SCHEDULE_TOPIC, TIMER_TOPIC) for record in find(place, key)]
    parked = [record for record in found if _is_asked_for(record.message.properties, topic, key)]
    return [_fate(timer, record, find) for record in sorted(parked, key=lambda record: record.position)]


def _is_asked_for(properties: dict[str, str], topic: str, key: str) -> bool:
    return (
        properties.get(props.REAL_TOPIC) == topic
        and props.TIMER_DEL_UNIQKEY not in properties
        and (properties.get(props.UNIQ_KEY) == key or key in properties.get(props.KEYS, "").split())
    )


def _origin(record: Record) -> Origin:
    if record.message.topic == SCHEDULE_TOPIC:
        return level_origin(record.message.queue_id + 1, record.queue_offset)
    return timer_origin(record.queue_offset)


def _fate(timer: Timer, record: Record, find: FindRecords) -> Fate:
    origin = _origin(record)
    due_ms = timer.due_of(origin)
    if origin not in timer.done:
        return Fate(describe(record, timer.state_of(origin), due_ms))
    message = describe(record, timer.place_of(origin), due_ms)
    for place, end in ((message.topic, End.RELEASED), *_PLACES):
        for last in find(place, message.unique_key or ""):
            properties = last.message.properties
            if parse_origin(properties.get(props.WMQ_ORIGIN, "")) == origin:
                how = End.CANCELLED if props.TIMER_DEL_UNIQKEY in properties else end
                return Fate(message, how, last.store_ms, last.position)
    return Fate(message, End.SETTLED)
