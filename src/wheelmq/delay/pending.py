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
    """How far a parked message has come."""

    LEVEL = "level"
    """In a level queue, and not staged."""
    PARKED = "parked"
    """In the timer queue, not indexed yet."""
    INDEXED = "indexed"
    """In the timer wheel."""
    BLOCK = "block"
    """In a block."""
    ARMED = "armed"
    """In memory, to be released at its millisecond."""


class PendingMessage(msgspec.Struct):
    """A pending message; times in milliseconds since 1970."""

    queue_offset: int
    """In the timer queue; of what is in a level queue or a block, there."""
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
    """Of what is in a block, in that block's log."""
    level: int | None = None
    """Of what is in a level queue."""
    block: int | None = None
    """Number of the block that it is in."""


def describe(record: Record, state: State, due_ms: Millis | None = None) -> PendingMessage:
    """The listing's line for a parked record, due when the record says if not at `due_ms`."""
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
