"""What became of delayed messages with a key: still pending, delivered, or cancelled.

Those of the timer queue and of the levels are found by the message index, for they are parked in the commit log. What
waits in blocks is not there: it is looked for in the blocks' own logs (blocks.search), and behind what the index finds
of its end when its block is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.pending import PendingMessage, State, describe
from wheelmq.delay.room import DEAD_LETTER_TOPIC
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    KIND_BLOCK,
    Origin,
    level_origin,
    origin_index,
    origin_stream,
    parse_origin,
    stream_kind,
    stream_number,
    timer_origin,
)
from wheelmq.formats.disk.parked import delete_key, delete_keys
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import SCHEDULE_TOPIC


class DelayEnd(StrEnum):
    """What settled a parked message."""

    RELEASED = "released"
    ROLLED = "rolled"
    """Parked again further on, under another queue offset."""
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead letter"
    """It could never be delivered."""
    SETTLED = "settled"
    """One of these, which the message index does not tell (yet), or delivered by Apache RocketMQ before."""


class DeliveryState(msgspec.Struct):
    """A parked message and what became of it."""

    message: PendingMessage
    """Its state is the one it has, or had last."""
    end: DelayEnd | None = None
    """None while it is pending."""
    ended_ms: int | None = None
    """Store time of the record that ended it, where that was found."""
    end_position: int | None = None
    """And the log position of that."""


class KeyQuery(NamedTuple):
    """Messages for a topic that have a key as their unique key or among their keys."""

    topic: str
    key: str

    def has(self, properties: dict[str, str]) -> bool:
        """Whether a parked record with these properties is one of them."""
        return (
            properties.get(props.REAL_TOPIC) == self.topic
            and props.TIMER_DEL_UNIQKEY not in properties
            and (properties.get(props.UNIQ_KEY) == self.key or self.key in properties.get(props.KEYS, "").split())
        )


FindRecords = Callable[[str, str], Iterable[Record]]
"""The newest records of a topic (first) that have a key (second)."""

_PLACES: Final = ((TIMER_TOPIC, DelayEnd.ROLLED), (DEAD_LETTER_TOPIC, DelayEnd.DEAD_LETTER))


def delivery_states(timer: Timer, blocks: Blocks, asked: KeyQuery, find: FindRecords) -> list[DeliveryState]:
    """What became of what the message index finds: timers and levels, oldest first, then what was in blocks that are
    gone."""
    found = [record for place in (SCHEDULE_TOPIC, TIMER_TOPIC) for record in find(place, asked.key)]
    parked = [record for record in found if asked.has(record.message.properties)]
    parked.sort(key=lambda record: record.position)
    return [
        *(_delivery_state(timer, _origin(record), record, asked, find) for record in parked),
        *_gone(blocks, asked, find),
    ]


def _origin(record: Record) -> Origin:
    if record.message.topic == SCHEDULE_TOPIC:
        return level_origin(record.message.queue_id + 1, record.queue_offset)
    return timer_origin(record.queue_offset)


def _delivery_state(timer: Timer, origin: Origin, record: Record, asked: KeyQuery, find: FindRecords) -> DeliveryState:
    due_ms = timer.due_of(origin)
    if origin not in timer.done:
        return DeliveryState(describe(record, timer.state_of(origin), due_ms))
    message = describe(record, timer.place_of(origin), due_ms)
    for last, end in _ends(asked.topic, message.unique_key or asked.key, find):
        if _settles(last) == origin:
            return DeliveryState(message, end, last.store_ms, last.position)
    return DeliveryState(message, DelayEnd.SETTLED)


def _ends(topic: str, key: str, find: FindRecords) -> Iterator[tuple[Record, DelayEnd]]:
    """The records that may have ended a message for `topic` with `key`, each with what it says then."""
    for place, end in ((topic, DelayEnd.RELEASED), *_PLACES):
        for last in find(place, key):
            yield last, DelayEnd.CANCELLED if props.TIMER_DEL_UNIQKEY in last.message.properties else end


def _settles(record: Record) -> Origin | None:
    return parse_origin(record.message.properties.get(props.WMQ_ORIGIN, ""))


# Blocks ------------------------------------------------------------------------------------------------------------


def _gone(blocks: Blocks, asked: KeyQuery, find: FindRecords) -> Iterator[DeliveryState]:
    """What ended messages of blocks that are gone, as the records that ended them tell; of a cancelled one that is its
    cancel, which has its key and, mostly, its time."""
    for last, end in _ends(asked.topic, asked.key, find):
        origin, properties = _settles(last), last.message.properties
        if origin is None or stream_kind(origin_stream(origin)) != KIND_BLOCK:
            continue
        number = stream_number(origin_stream(origin))
        is_it = asked.has(properties)
        if end is DelayEnd.CANCELLED:
            is_it = delete_key(asked.topic, asked.key) in delete_keys(properties)
        if is_it and blocks.get(number) is None:
            message = describe(last, State.BLOCK)
            message.queue_offset, message.block = origin_index(origin), number
            if end is DelayEnd.CANCELLED:
                message.unique_key, message.keys, message.body_bytes = asked.key, None, 0
            yield DeliveryState(message, end, last.store_ms, last.position)


def delivery_states_of(timer: Timer, asked: KeyQuery, find: FindRecords, origins: list[Origin]) -> list[DeliveryState]:
    """What became of messages of blocks that a search found, of those that are asked for."""
    records = ((origin, timer.record_elsewhere(origin)) for origin in origins)
    return [
        _delivery_state(timer, origin, record, asked, find)
        for origin, record in records
        if record is not None and asked.has(record.message.properties)
    ]
