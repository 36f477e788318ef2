"""The room that the later records of a message need in the log.

A parked message is appended again when it is released, when it rolls, or when it becomes a dead letter. These records
are longer: the topic may be, and there are more properties. The broker checks the length of the longest record before
it accepts the message, so a release cannot fail because of a size.
"""

from __future__ import annotations

from typing import Final

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.origin import ORIGIN_PROPERTY_BYTES
from wheelmq.formats.disk.parked import ROOM_BYTES
from wheelmq.formats.names import CHECK_MAX_TIME_TOPIC, DEAD_LETTER_TOPIC, SCHEDULE_TOPIC

_LENGTH_BYTES: Final = 1
"""Extra bytes for the length of a topic with more than 127 characters."""


def release_growth_bytes(parked: Message) -> int:
    """Return the number of bytes by which the longest later record of `parked` may exceed its parked record."""
    room_bytes = ORIGIN_PROPERTY_BYTES if parked.topic == SCHEDULE_TOPIC else ROOM_BYTES
    return room_bytes + _topic_growth_bytes(parked, DEAD_LETTER_TOPIC)


def half_growth_bytes(half: Message, room_bytes: int) -> int:
    """Return the number of bytes by which the longest later record of a half message may exceed its first record.

    `room_bytes` is the length of the properties that the broker adds when it appends the half message again.
    """
    return room_bytes + _topic_growth_bytes(half, CHECK_MAX_TIME_TOPIC)


def _topic_growth_bytes(message: Message, last_topic: str) -> int:
    longest_bytes = max(len(message.properties[props.REAL_TOPIC].encode()), len(last_topic))
    return max(0, longest_bytes - len(message.topic)) + _LENGTH_BYTES
