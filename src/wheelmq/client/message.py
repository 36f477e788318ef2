"""A message as a consumer gets it (RocketMQ: MessageExt, MessageDecoder)."""

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
    """The message cannot be read; the text says why."""


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message; times are milliseconds since 1970."""

    topic: str
    """The topic it was sent to, also when it comes from the group's retry topic."""
    body: bytes
    properties: dict[str, str]
    message_id: str
    broker_name: str
    queue_topic: str
    """The topic whose queue it was pulled from."""
    queue_id: int
    queue_offset: QueueOffset
    log_position: LogPosition
    born_ms: Millis
    stored_ms: Millis
    received_ms: Millis
    """When this client had it in its hands."""
    reconsume_times: int
    due_ms: Millis | None
    """When it was to be delivered; None for a message that was not delayed, or of which that is not known."""

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
        """From due time to receipt; negative when it came early."""
        return None if self.due_ms is None else self.received_ms - self.due_ms


def read_records(buffer: bytes | memoryview) -> list[Record]:
    """The records that stand end to end in a pull answer's body. Raises RecordError."""
    records = []
    at = 0
    while at < len(buffer):
        record = decode_record(buffer, at)
        records.append(record)
        at += record.size
    return records


def received(record: Record, broker_name: str, received_ms: Millis) -> ReceivedMessage:
    """The message in a record that came from `broker_name`. Raises MessageError."""
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
        raise MessageError("the body has not the checksum that it was stored with")
    try:
        return expand(message.body, message.sys_flag)
    except CompressionError as error:
        raise MessageError(str(error)) from None


def _due_ms(properties: dict[str, str], born_ms: Millis) -> Millis | None:
    """The due time in a delivered message's properties.

    WheelMQ leaves the exact one. Apache RocketMQ leaves what was asked for: a time, or a delay that began about when
    the message was born.
    """
    exact = java_long(properties.get(props.WMQ_DUE, ""))
    if exact is None:
        exact = java_long(properties.get(props.TIMER_DELIVER_MS, ""))
    if exact is not None:
        return Millis(exact)
    seconds = java_long(properties.get(props.TIMER_DELAY_SEC, ""))
    delay_ms = java_long(properties.get(props.TIMER_DELAY_MS, "")) if seconds is None else seconds * 1000
    return None if delay_ms is None else Millis(born_ms + delay_ms)
