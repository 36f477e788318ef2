"""The records of a transactional message before its end (docs/formats/transactions.md).

RocketMQ: TransactionalMessageBridge, TransactionalMessageUtil. No half message is parked: a commit begins its delay.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_TRANSACTION, SYS_TRANSACTION_COMMIT, Host, Message, Record
from wheelmq.formats.java import java_int, java_long
from wheelmq.formats.units import Millis

HALF_QUEUE: Final = 0
"""The only queue of the half topic, of the op topic and of the topic of discarded transactions."""
OP_TAG: Final = "d"
ROOM_BYTES: Final = 100
"""Property bytes that a half message leaves free, for the properties that putting it back adds."""


_OURS: Final = (
    props.TRANSACTION_ID,
    props.REAL_TOPIC,
    props.REAL_QID,
    props.TRAN_PREPARED_QUEUE_OFFSET,
    props.TRANSACTION_CHECK_TIMES,
)
"""Properties that the broker sets on a half message. Values from a sender are removed. With them, a start would take
the message for the copy of another one and drop it, or a check would find that it was checked often enough."""


class Unending(ValueError):
    """The half message does not name a valid real topic and queue. The text says which part is wrong."""


def half_of(message: Message) -> Message:
    properties = {name: value for name, value in message.properties.items() if name not in _OURS}
    properties[props.TRANSACTION_ID] = properties[props.UNIQ_KEY]
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QID] = str(message.queue_id)
    return msgspec.structs.replace(
        message,
        topic=names.HALF_TOPIC,
        queue_id=HALF_QUEUE,
        properties=properties,
        sys_flag=message.sys_flag & ~SYS_TRANSACTION,
    )


def has_room(half: Message) -> bool:
    return len(props.encode(half.properties)) + ROOM_BYTES <= props.PROPERTIES_BYTES_MAX


def committed(half: Record) -> Message:
    """Return the message that a commit appends, with the position of its half message. Raises Unending."""
    topic, queue_id = real_queue(half.message)
    properties = props.without_origin(half.message.properties)
    properties.pop(props.TRAN_PREPARED_QUEUE_OFFSET, None)
    message = half.message.again(topic, queue_id, properties)
    message.sys_flag |= SYS_TRANSACTION_COMMIT
    message.prepared_position = half.position
    return message


def put_back(half: Record, *, checked: bool) -> Message:
    """Return a half message's copy for the end of its queue, with its origin. `checked` adds one to its checks."""
    properties = props.without_origin(half.message.properties)
    if checked:
        properties[props.TRANSACTION_CHECK_TIMES] = str(check_times(half.message) + 1)
    properties[props.TRAN_PREPARED_QUEUE_OFFSET] = str(origin_of(half))
    return half.message.again(names.HALF_TOPIC, HALF_QUEUE, properties)


def given_up(half: Record) -> Message:
    """Return a half message for the topic of discarded transactions, with its own position as prepared position.

    Properties that do not fit are left out.
    """
    message = half.message.again(
        names.CHECK_MAX_TIME_TOPIC, HALF_QUEUE, props.fitting(props.without_origin(half.message.properties))
    )
    message.prepared_position = half.position
    return message


def resumed(record: Record) -> Message:
    """Return a discarded message as a half message that was never checked."""
    properties = props.without_origin(record.message.properties)
    properties.pop(props.TRAN_PREPARED_QUEUE_OFFSET, None)
    properties[props.TRANSACTION_CHECK_TIMES] = "0"
    return record.message.again(names.HALF_TOPIC, HALF_QUEUE, properties)


def op_message(offsets: str, now_ms: Millis, host: Host) -> Message:
    """Return the op message that ends half messages: their queue offsets, each with a comma after it."""
    properties = {props.WAIT: "true", props.TAGS: OP_TAG}
    body = offsets.encode()
    return Message(names.OP_HALF_TOPIC, HALF_QUEUE, body, properties, born_ms=now_ms, born_host=host)


def offsets_in(op: Message) -> list[int]:
    """Return the queue offsets in the body of an op message. Entries that are not numbers are left out."""
    if op.properties.get(props.TAGS) != OP_TAG:
        return []
    found = (java_long(text) for text in op.body.decode("utf-8", "replace").split(","))
    return [offset for offset in found if offset is not None and offset >= 0]


def origin_of(half: Record) -> int:
    """Return the first queue offset of a half message. It identifies the transaction."""
    origin = java_long(half.message.properties.get(props.TRAN_PREPARED_QUEUE_OFFSET, ""))
    return origin if origin is not None and 0 <= origin < half.queue_offset else half.queue_offset


def real_queue(half: Message) -> tuple[str, int]:
    """Return the real topic and queue of a half message. Raises Unending."""
    topic = half.properties.get(props.REAL_TOPIC, "")
    queue_id = java_int(half.properties.get(props.REAL_QID, ""))
    if names.topic_problem(topic) or topic in names.NOT_FOR_SENDING or queue_id is None or queue_id < 0:
        raise Unending(f"the half message has an invalid real topic or queue: topic {topic!r}, queue {queue_id}")
    return topic, queue_id


def check_times(half: Message) -> int:
    return max(0, java_int(half.properties.get(props.TRANSACTION_CHECK_TIMES, "0")) or 0)


def immunity_ms(half: Message, time_out_ms: int) -> int | None:
    """Return the time after its birth in which the message is not checked, or None if the message does not say so."""
    text = half.properties.get(props.CHECK_IMMUNITY_SECONDS)
    if text is None:
        return None
    seconds = java_long(text)
    return time_out_ms if seconds is None or seconds == -1 else seconds * 1000


def is_too_late(half: Message, now_ms: Millis, time_out_ms: int) -> bool:
    """Return whether an end comes after the message's own immunity time: then only an answer to a check counts."""
    text = half.properties.get(props.CHECK_IMMUNITY_SECONDS)
    if not text:
        return False
    return now_ms - half.born_ms > max((java_long(text) or 0) * 1000, time_out_ms)
