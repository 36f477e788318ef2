"""Delivery states of delayed messages with a key: pending, delivered or cancelled.

The message index finds messages parked in the commit log, and a search (blocks.search) those in blocks' logs. After the
block of a message is gone, the index finds the record that settled it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from wheelmq.delay.api import Generations
from wheelmq.delay.pending_message import PendingMessage, describe
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.origin import (
    Origin,
    level_origin,
    origin_index,
    origin_stream,
    parse_origin,
    stream_number,
    timer_origin,
)
from wheelmq.formats.disk.parked import delete_key, delete_keys
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.names import DEAD_LETTER_TOPIC, SCHEDULE_TOPIC


class DelayEnd(StrEnum):
    """The way in which a parked message was settled."""

    RELEASED = "released"
    ROLLED = "rolled"
    """Parked again in the timer queue, under another queue offset."""
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead letter"
    """The message could never be delivered."""
    SETTLED = "settled"
    """One of the other ends that the message index does not show (yet), or an earlier delivery by Apache RocketMQ."""


class DeliveryState(msgspec.Struct):
    message: PendingMessage
    """Its state is the present or the last one."""
    end: DelayEnd | None = None
    """None while the message is pending."""
    ended_ms: int | None = None
    """Store time of the record that settled the message, if that record was found."""
    end_position: int | None = None
    """Log position of that record."""


class KeyQuery(NamedTuple):
    """Messages for a topic that have a key as their unique key or among their keys."""

    topic: str
    key: str

    def has(self, properties: dict[str, str]) -> bool:
        return (
            properties.get(props.REAL_TOPIC) == self.topic
            and props.TIMER_DEL_UNIQKEY not in properties
            and (properties.get(props.UNIQ_KEY) == self.key or self.key in properties.get(props.KEYS, "").split())
        )


FindRecords = Callable[[str, str], Iterable[Record]]
"""Returns the newest records of a topic (first argument) that have a key (second argument)."""

_PLACES: Final = ((TIMER_TOPIC, DelayEnd.ROLLED), (DEAD_LETTER_TOPIC, DelayEnd.DEAD_LETTER))


def delivery_states(generations: Generations, asked: KeyQuery, find: FindRecords) -> list[DeliveryState]:
    """Return the states of the messages that the message index finds, those of timers and levels first."""
    found = [record for place in (SCHEDULE_TOPIC, TIMER_TOPIC) for record in find(place, asked.key)]
    parked = [record for record in found if asked.has(record.message.properties)]
    parked.sort(key=lambda record: record.position)
    return [
        *(_delivery_state(generations, _origin(record), record, asked, find) for record in parked),
        *_gone(generations, asked, find),
    ]


def delivery_states_of(
    generations: Generations, asked: KeyQuery, find: FindRecords, origins: list[Origin]
) -> list[DeliveryState]:
    """Return the states of the messages of blocks that a search found and that match `asked`."""
    records = ((origin, generations.of(origin).record_of(origin)) for origin in origins)
    return [
        _delivery_state(generations, origin, record, asked, find)
        for origin, record in records
        if record is not None and asked.has(record.message.properties)
    ]


def _origin(record: Record) -> Origin:
    if record.message.topic == SCHEDULE_TOPIC:
        return level_origin(record.message.queue_id + 1, record.queue_offset)
    return timer_origin(record.queue_offset)


def _delivery_state(
    generations: Generations, origin: Origin, record: Record, asked: KeyQuery, find: FindRecords
) -> DeliveryState:
    message = generations.describe(origin, record)
    if origin not in generations.done:
        return DeliveryState(message)
    for last, end in _ends(asked.topic, message.unique_key or asked.key, find):
        if _settles(last) == origin:
            return DeliveryState(message, end, last.store_ms, last.position)
    return DeliveryState(message, DelayEnd.SETTLED)


def _ends(topic: str, key: str, find: FindRecords) -> Iterator[tuple[Record, DelayEnd]]:
    """Yield the records that may have settled a message for `topic` with `key`, each with the end that it implies."""
    for place, end in ((topic, DelayEnd.RELEASED), *_PLACES):
        for last in find(place, key):
            yield last, DelayEnd.CANCELLED if props.TIMER_DEL_UNIQKEY in last.message.properties else end


def _settles(record: Record) -> Origin | None:
    return parse_origin(record.message.properties.get(props.WMQ_ORIGIN, ""))


def _gone(generations: Generations, asked: KeyQuery, find: FindRecords) -> Iterator[DeliveryState]:
    """Yield the states of messages of gone blocks, from the records that settled them: their cancels, too."""
    for last, end in _ends(asked.topic, asked.key, find):
        origin, properties = _settles(last), last.message.properties
        is_it = asked.has(properties)
        if end is DelayEnd.CANCELLED:
            is_it = delete_key(asked.topic, asked.key) in delete_keys(properties)
        if origin is None or not is_it:
            continue
        generation, stream = generations.of(origin), origin_stream(origin)
        if generation.files_of(stream) is None:
            message = describe(last, generation.state_of(origin))
            message.queue_offset, message.block = origin_index(origin), stream_number(stream)
            if end is DelayEnd.CANCELLED:
                message.unique_key, message.keys, message.body_bytes = asked.key, None, 0
            yield DeliveryState(message, end, last.store_ms, last.position)
