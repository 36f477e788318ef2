"""An outgoing message, its properties, and the encoding of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import msgspec

from wheelmq.client import delays
from wheelmq.client.delays import DurationMs, DurationS, TimeMs
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.headers.sending import BATCH_HEAD

Selector = Callable[[Sequence[QueueName]], QueueName]
"""Selects one of a topic's queues. The queues are in the order that all RocketMQ clients use."""


class MessageOptions(TypedDict, total=False):
    """The options of a message, besides its topic and its body.

    - `keys`: one or more business keys of the message; `tags`: one word by which consumers filter;
    - `properties`: the sender's own properties;
    - `queue_id`: a queue id, at any broker; `order_key`: all messages with this key go to one queue, whose consumers
      receive them in order; `select`: a function that chooses the queue;
    - at most one of `delay_level` (1 to 18), `delay_ms`, `deliver_at_ms` and `delay_in_seconds`. Apache RocketMQ and
      WheelMQ have the first three. Only WheelMQ's brokers have `delay_in_seconds` (up to a year): others deliver at
      once. `deliver_at_ms` is a datetime with a time zone, or milliseconds since 1970. A time more than 10 seconds in
      the past raises ValueError. `delay_ms` and `delay_in_seconds` are a timedelta, or a number of their unit.
    """

    keys: str | Sequence[str]
    tags: str | None
    properties: Mapping[str, str] | None
    queue_id: int | None
    order_key: str | None
    select: Selector | None
    delay_level: int | None
    delay_ms: DurationMs | None
    deliver_at_ms: TimeMs | None
    delay_in_seconds: DurationS | None


class OutgoingMessage(msgspec.Struct, kw_only=True):
    """A body and its options, as in MessageOptions."""

    body: bytes | str
    keys: str | Sequence[str] = ()
    tags: str | None = None
    properties: Mapping[str, str] | None = None
    queue_id: int | None = None
    order_key: str | None = None
    select: Selector | None = None
    delay_level: int | None = None
    delay_ms: DurationMs | None = None
    deliver_at_ms: TimeMs | None = None
    delay_in_seconds: DurationS | None = None

    @property
    def content(self) -> bytes:
        """The body as bytes. Raises TypeError."""
        return delays.content(self.body)

    @property
    def asked_delay_ms(self) -> int | None:
        """The relative delay in milliseconds; None without one, and for a level, which only the broker knows."""
        if self.delay_ms is not None:
            return delays.whole("delay_ms", self.delay_ms)
        return None if self.delay_in_seconds is None else 1000 * delays.whole("delay_in_seconds", self.delay_in_seconds)

    @property
    def asked_time_ms(self) -> int | None:
        """The due time that the sender chose; None without one."""
        return None if self.deliver_at_ms is None else delays.whole("deliver_at_ms", self.deliver_at_ms)

    @property
    def is_placed(self) -> bool:
        return self.order_key is not None or self.select is not None


def properties_of(message: OutgoingMessage, unique_key: str, now_ms: int) -> dict[str, str]:
    """Return the properties of `message`. A UNIQ_KEY that the caller set is kept.

    Raises ValueError for a message that cannot be sent, and TypeError for a field of a wrong type.
    """
    delays.content(message.body)
    found = _undelayed(message, unique_key)
    for name, value in found.items():
        delays.check_property_types(name, value)
        if not name or not value:
            raise ValueError(f"property {name!r} is {value!r}: brokers drop a property without a name or a value")
        if any(sign in name or sign in value for sign in (props.NAME_END, props.PAIR_END)):
            raise ValueError(f"property {name!r}: the characters \\x01 and \\x02 separate properties")
    found |= delays.delay_property(
        level=message.delay_level,
        delay_ms=message.delay_ms,
        deliver_at_ms=message.deliver_at_ms,
        seconds=message.delay_in_seconds,
        now_ms=now_ms,
    )
    return found


def _undelayed(message: OutgoingMessage, unique_key: str) -> dict[str, str]:
    """Return the properties of `message` without its delay. They are not checked."""
    found: dict[str, str] = {}
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if keys:
        found[props.KEYS] = keys
    if message.tags:
        found[props.TAGS] = message.tags
    found[props.UNIQ_KEY] = unique_key
    found.update(message.properties or {})
    return found


def is_delayed(properties: Mapping[str, str]) -> bool:
    return any(name in properties for name in (*props.TIMER_REQUESTS, props.DELAY, props.DELAY_IN_SECONDS))


def check_topic(topic: str) -> None:
    problem = names.topic_problem(topic)
    if problem is not None:
        raise ValueError(f"{topic!r} is not a valid topic: {problem}")


def check_group(group: str) -> None:
    problem = names.group_problem(group)
    if problem is not None:
        raise ValueError(f"{group!r} is not a valid group: {problem}")


def encode_batch(messages: Sequence[tuple[bytes, dict[str, str]]]) -> bytes:
    """Return the body of a batch (RocketMQ: MessageDecoder.encodeMessages). Raises ValueError."""
    parts = []
    for body, properties in messages:
        block = encode_properties(properties)
        size = BATCH_HEAD.size + len(body) + 2 + len(block)
        parts += [BATCH_HEAD.pack(size, 0, 0, 0, len(body)), body, len(block).to_bytes(2, "big"), block]
    return b"".join(parts)


def batched_bytes(message: OutgoingMessage) -> int:
    """Return the bytes of `message` in the body of a batch. Its properties have its unique key.

    A broker's `maxMessageSize` limits the whole body of a batch.
    """
    return BATCH_HEAD.size + len(message.body) + 2 + len(props.encode(_undelayed(message, "")))


def encode_properties(properties: Mapping[str, str]) -> bytes:
    block = props.encode(properties)
    if len(block) > props.PROPERTIES_BYTES_MAX:
        raise ValueError(f"{len(block)} bytes of properties; the limit is {props.PROPERTIES_BYTES_MAX}")
    return block
