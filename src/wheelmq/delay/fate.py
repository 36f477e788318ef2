"""What became of timers with a key: still pending, delivered, or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from wheelmq.delay.pending import Pending, State, describe
from wheelmq.delay.release import DEAD_LETTER_TOPIC
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import Origin, parse_origin, timer_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC


class End(StrEnum):
    """What settled a parked message."""

    RELEASED = "released"
    ROLLED = "rolled"
    """Parked again further on, under another queue offset."""
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead letter"
    """It could never be delivered."""
    SETTLED = "settled"
    """One of these: the message index has not come to it yet."""


class Fate(msgspec.Struct):
    """A parked message and what became of it."""

    message: Pending
    """Its state is the one it has, or had last."""
    end: End | None = None
    """None while it is pending."""
    ended_ms: int | None = None
    """Store time of the record that ended it, where that is one with its key."""
    end_position: int | None = None
    """And the log position of that."""


FindRecords = Callable[[str], Iterable[Record]]
"""The records of a topic that have the key asked for."""


def fates(timer: Timer, topic: str, key: str, find: FindRecords, *, is_indexed: bool) -> list[Fate]:
    """What became of the messages for `topic` that have `key` as their unique key or among their keys, oldest first.

    `is_indexed`: `find` knows every record there is.
    """
    parked: list[Record] = []
    ends: dict[Origin, tuple[Record, End]] = {}
    for place, end in ((TIMER_TOPIC, End.ROLLED), (topic, End.RELEASED), (DEAD_LETTER_TOPIC, End.DEAD_LETTER)):
        for record in find(place):
            properties = record.message.properties
            deletes = props.TIMER_DEL_UNIQKEY in properties
            origin = parse_origin(properties.get(props.WMQ_ORIGIN, ""))
            if origin is not None:
                ends[origin] = record, End.CANCELLED if deletes else end
            if place == TIMER_TOPIC and not deletes and _has(properties, key):
                parked.append(record)
    unseen = End.CANCELLED if is_indexed else End.SETTLED
    mine = (record for record in parked if record.message.properties.get(props.REAL_TOPIC) == topic)
    return [_fate(timer, record, ends.get(timer_origin(record.queue_offset)), unseen) for record in mine]


def _has(properties: dict[str, str], key: str) -> bool:
    return properties.get(props.UNIQ_KEY) == key or key in properties.get(props.KEYS, "").split()


def _fate(timer: Timer, record: Record, end: tuple[Record, End] | None, unseen: End) -> Fate:
    if record.queue_offset not in timer.done:
        return Fate(describe(record, timer.state_of(record.queue_offset)))
    message = describe(record, State.INDEXED if record.queue_offset < timer.indexed_to else State.PARKED)
    if end is None:
        return Fate(message, unseen)
    return Fate(message, end[1], end[0].store_ms, end[0].position)
