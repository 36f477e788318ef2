"""One pending message, as the listings show it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.parked import due_of
from wheelmq.formats.java import java_long
from wheelmq.formats.names import BLOCK_TOPIC, SCHEDULE_TOPIC
from wheelmq.formats.units import Millis


class State(StrEnum):
    LEVEL = "level"
    """In a level queue, and not armed."""
    PARKED = "parked"
    """In the timer queue, not indexed yet."""
    INDEXED = "indexed"
    """In the timer wheel."""
    BLOCK = "block"
    """In a block."""
    ARMED = "armed"
    """In memory, ready for release at its due time."""


class PendingMessage(msgspec.Struct):
    """A pending message. Times are in milliseconds since 1970."""

    queue_offset: int
    """Offset in the timer queue, the level queue or the queue of the block."""
    topic: str
    queue_id: int | None
    due_ms: int
    stored_ms: int
    state: State
    unique_key: str | None
    keys: str | None
    tags: str | None
    body_bytes: int
    log_position: int
    """For a message in a block, the position in that block's log."""
    level: int | None = None
    """The level of a message in a level queue."""
    block: int | None = None
    """The number of the block of a message in a block."""


def describe(record: Record, state: State, due_ms: Millis | None = None) -> PendingMessage:
    """Return the listing's line for a parked record. Without `due_ms`, the record has the due time."""
    properties = record.message.properties
    return PendingMessage(
        queue_offset=record.queue_offset,
        topic=properties.get(props.REAL_TOPIC, ""),
        queue_id=java_long(properties.get(props.REAL_QID, "")),
        due_ms=due_of(properties, record.store_ms) if due_ms is None else due_ms,
        stored_ms=record.store_ms,
        state=state,
        unique_key=properties.get(props.UNIQ_KEY),
        keys=properties.get(props.KEYS),
        tags=properties.get(props.TAGS),
        body_bytes=len(record.message.body),
        log_position=record.position,
        level=record.message.queue_id + 1 if record.message.topic == SCHEDULE_TOPIC else None,
        block=record.message.queue_id if record.message.topic == BLOCK_TOPIC else None,
    )
