"""A received message (RocketMQ: MessageExt, MessageDecoder)."""

from __future__ import annotations

import msgspec

from wheelmq.client.compression import CompressionError, expand
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.java import java_long
from wheelmq.formats.units import LogPosition, Millis, QueueOffset


class MessageError(ValueError):
    """The message cannot be decoded. The text gives the reason."""


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Times are milliseconds since 1970."""

    topic: str
    """The topic that it was sent to, also if it comes from the group's retry topic."""
    body: bytes
    properties: dict[str, str]
    message_id: str
    broker_name: str
    queue_topic: str
    """The topic of the queue that it was pulled from."""
    queue_id: int
    queue_offset: QueueOffset
    log_position: LogPosition
    born_ms: Millis
    stored_ms: Millis
    received_ms: Millis
    """When this client received it."""
    reconsume_times: int
    due_ms: Millis | None
    """The due time. None for a message without a delay, or if the due time is unknown."""

    @property
    def keys(self) -> list[str]:
        return self.properties.get(props.KEYS, "").split()

    @property
    def tags(self) -> str | None:
        return self.properties.get(props.TAGS)

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(props.UNIQ_KEY)

    @property
    def lateness_ms(self) -> int | None:
        """Receive time minus due time; negative for an early message."""
        return None if self.due_ms is None else self.received_ms - self.due_ms


def read_records(buffer: bytes | memoryview) -> list[Record]:
    """Decode the consecutive records in the body of a pull answer. Raises RecordError."""
    records = []
    at = 0
    while at < len(buffer):
        record = decode_record(buffer, at)
        records.append(record)
        at += record.size
    return records


def received(record: Record, broker_name: str, received_ms: Millis) -> ReceivedMessage:
    """Return the message of a record from `broker_name`. Raises MessageError."""
    message = record.message
    is_retry = message.topic.startswith(names.RETRY_PREFIX)
    return ReceivedMessage(
        topic=message.properties.get(props.RETRY_TOPIC, message.topic) if is_retry else message.topic,
        body=_body(record),
        properties=message.properties,
        message_id=offset_message_id(record.store_host, record.position),
        broker_name=broker_name,
        queue_topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=record.queue_offset,
        log_position=record.position,
        born_ms=message.born_ms,
        stored_ms=record.store_ms,
        received_ms=received_ms,
        reconsume_times=message.reconsume_times,
        due_ms=_due_ms(message.properties, message.born_ms),
    )


def _body(record: Record) -> bytes:
    message = record.message
    if not record.body_is_intact:
        raise MessageError("the body does not match its stored checksum")
    try:
        return expand(message.body, message.sys_flag)
    except CompressionError as error:
        raise MessageError(str(error)) from None


def _due_ms(properties: dict[str, str], born_ms: Millis) -> Millis | None:
    """Return the due time from the properties of a delivered message.

    WheelMQ keeps the exact due time. Apache RocketMQ keeps a time, or a delay from about the message's birth.
    """
    exact = java_long(properties.get(props.WMQ_DUE, ""))
    if exact is None:
        exact = java_long(properties.get(props.TIMER_DELIVER_MS, ""))
    if exact is not None:
        return Millis(exact)
    seconds = java_long(properties.get(props.TIMER_DELAY_SEC, ""))
    delay_ms = java_long(properties.get(props.TIMER_DELAY_MS, "")) if seconds is None else seconds * 1000
    return None if delay_ms is None else Millis(born_ms + delay_ms)
