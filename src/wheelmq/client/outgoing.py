"""A message to be sent: how what the caller says becomes properties, and messages become a batch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec

from wheelmq.formats import names
from wheelmq.formats.disk import properties as props

_INNER_HEAD = struct.Struct(">iiiii")  # size, magic, body crc, flag, body size; magic and crc are not looked at


class OutgoingMessage(msgspec.Struct, kw_only=True):
    """A body and what goes with it. A key names the message in a business sense; several are given as a list."""

    body: bytes
    keys: str | Sequence[str] = ()
    tags: str | None = None
    properties: Mapping[str, str] = {}


def properties_of(message: OutgoingMessage, unique_key: str) -> dict[str, str]:
    """The properties of `message`; a UNIQ_KEY that the caller set stays. Raises ValueError."""
    found: dict[str, str] = {}
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if keys:
        found[props.KEYS] = keys
    if message.tags:
        found[props.TAGS] = message.tags
    found[props.UNIQ_KEY] = unique_key
    found.update(message.properties)
    for name, value in found.items():
        if not name or not value:
            raise ValueError(f"property {name!r} is {value!r}: brokers drop a property without a name or a value")
        if any(sign in name or sign in value for sign in (props.NAME_END, props.PAIR_END)):
            raise ValueError(f"property {name!r}: the characters \\x01 and \\x02 stand between properties")
    return found


def add_delay(
    properties: dict[str, str], delay_ms: int | None, deliver_at_ms: int | None, delay_in_seconds: int | None = None
) -> None:
    """Ask for a later delivery: after a delay, which the broker counts, or at a time. Raises ValueError.

    `delay_in_seconds` is granted by WheelMQ's brokers alone: others deliver at once.
    """
    if sum(asked is not None for asked in (delay_ms, deliver_at_ms, delay_in_seconds)) > 1:
        raise ValueError("a message has a delay or a time of delivery, not both")
    if delay_in_seconds is not None and delay_in_seconds < 0:
        raise ValueError(f"a delay of {delay_in_seconds} s lies in the past")
    if delay_ms is not None and delay_ms < 0:
        raise ValueError(f"a delay of {delay_ms} ms lies in the past")
    if delay_ms:
        properties[props.TIMER_DELAY_MS] = str(delay_ms)
    elif deliver_at_ms is not None:
        properties[props.TIMER_DELIVER_MS] = str(deliver_at_ms)
    elif delay_in_seconds:
        properties[props.DELAY_IN_SECONDS] = str(delay_in_seconds)


def check_topic(topic: str) -> None:
    """Raises ValueError when `topic` is no name of a topic."""
    problem = names.topic_problem(topic)
    if problem is not None:
        raise ValueError(f"{topic!r} is no topic: {problem}")


def check_group(group: str) -> None:
    """Raises ValueError when `group` is no name of a group."""
    problem = names.group_problem(group)
    if problem is not None:
        raise ValueError(f"{group!r} is no group: {problem}")


def encode_batch(messages: Sequence[tuple[bytes, dict[str, str]]]) -> bytes:
    """The body of a batch, from bodies and properties (RocketMQ: MessageDecoder.encodeMessages)."""
    parts = []
    for body, properties in messages:
        block = props.encode(properties)
        if len(block) > props.PROPERTIES_BYTES_MAX:
            raise ValueError(f"{len(block)} bytes of properties; {props.PROPERTIES_BYTES_MAX} fit")
        size = _INNER_HEAD.size + len(body) + 2 + len(block)
        parts += [_INNER_HEAD.pack(size, 0, 0, 0, len(body)), body, len(block).to_bytes(2, "big"), block]
    return b"".join(parts)
