"""What a transactional message is stored as on its way (docs/formats/transactions.md; RocketMQ:
TransactionalMessageBridge, TransactionalMessageUtil).

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC with its own topic and queue in REAL_TOPIC and REAL_QID. It is never
parked there, whatever delay it asks for: the delay begins with the commit.
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
"""The only queue of the half topic, of the op topic, and of that of transactions which were asked for too often."""
OP_TAG: Final = "d"
ROOM_BYTES: Final = 100
"""Property bytes that a half message leaves free, for what is added when it is put back."""


_OURS: Final = (
    props.TRANSACTION_ID,
    props.REAL_TOPIC,
    props.REAL_QID,
    props.TRAN_PREPARED_QUEUE_OFFSET,
    props.TRANSACTION_CHECK_TIMES,
)
"""What the broker notes on a half message. A sender's would have it taken for the copy of another one, which a start
gives up then, or for one that was asked for often enough."""


class Unending(ValueError):
    """The half message does not say where it belongs; the text says what is wrong."""


def half_of(message: Message) -> Message:
    """`message` as it waits for the end of its transaction."""
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
    """Whether a half message can be put back with what is added then."""
    return len(props.encode(half.properties)) + ROOM_BYTES <= props.PROPERTIES_BYTES_MAX


def committed(half: Record) -> Message:
    """What a commit appends: the message for its own topic, and the position of the half message that it ends.

    Raises Unending.
    """
    topic, queue_id = real_queue(half.message)
    properties = props.without_origin(half.message.properties)
    properties.pop(props.TRAN_PREPARED_QUEUE_OFFSET, None)
    message = half.message.again(topic, queue_id, properties)
    message.sys_flag |= SYS_TRANSACTION_COMMIT
    message.prepared_position = half.position
    return message


def put_back(half: Record, *, checked: bool) -> Message:
    """The half message as it goes to the end of its queue, once more `checked` or not yet; it keeps its origin."""
    properties = props.without_origin(half.message.properties)
    if checked:
        properties[props.TRANSACTION_CHECK_TIMES] = str(check_times(half.message) + 1)
    properties[props.TRAN_PREPARED_QUEUE_OFFSET] = str(origin_of(half))
    return half.message.again(names.HALF_TOPIC, HALF_QUEUE, properties)


def given_up(half: Record) -> Message:
    """The half message as it goes where nobody asks for it any more, with the position of the one that it ends;
    properties without room go."""
    message = half.message.again(
        names.CHECK_MAX_TIME_TOPIC, HALF_QUEUE, props.fitting(props.without_origin(half.message.properties))
    )
    message.prepared_position = half.position
    return message


def resumed(record: Record) -> Message:
    """A message that was given up, as a half message that nobody was asked for yet."""
    properties = props.without_origin(record.message.properties)
    properties.pop(props.TRAN_PREPARED_QUEUE_OFFSET, None)
    properties[props.TRANSACTION_CHECK_TIMES] = "0"
    return record.message.again(names.HALF_TOPIC, HALF_QUEUE, properties)


def op_message(offsets: str, now_ms: Millis, host: Host) -> Message:
    """The message that says which half messages have ended: their queue offsets, a comma behind each."""
    properties = {props.WAIT: "true", props.TAGS: OP_TAG}
    body = offsets.encode()
    return Message(names.OP_HALF_TOPIC, HALF_QUEUE, body, properties, born_ms=now_ms, born_host=host)


def offsets_in(op: Message) -> list[int]:
    """The queue offsets in the body of an op message; what is no number is left out."""
    if op.properties.get(props.TAGS) != OP_TAG:
        return []
    found = (java_long(text) for text in op.body.decode("utf-8", "replace").split(","))
    return [offset for offset in found if offset is not None and offset >= 0]


def origin_of(half: Record) -> int:
    """The queue offset at which the half message stood first; by it a transaction is known."""
    origin = java_long(half.message.properties.get(props.TRAN_PREPARED_QUEUE_OFFSET, ""))
    return origin if origin is not None and 0 <= origin < half.queue_offset else half.queue_offset


def real_queue(half: Message) -> tuple[str, int]:
    """The topic and queue that a half message is meant for. Raises Unending."""
    topic = half.properties.get(props.REAL_TOPIC, "")
    queue_id = java_int(half.properties.get(props.REAL_QID, ""))
    if names.topic_problem(topic) or topic in names.NOT_FOR_SENDING or queue_id is None or queue_id < 0:
        raise Unending(f"the half message is meant for topic {topic!r}, queue {queue_id}")
    return topic, queue_id


def check_times(half: Message) -> int:
    """How often its producer was asked."""
    return max(0, java_int(half.properties.get(props.TRANSACTION_CHECK_TIMES, "0")) or 0)


def immunity_ms(half: Message, time_out_ms: int) -> int | None:
    """For how long after its birth nobody is asked, if the message says that itself; else None."""
    text = half.properties.get(props.CHECK_IMMUNITY_SECONDS)
    if text is None:
        return None
    seconds = java_long(text)
    return time_out_ms if seconds is None or seconds == -1 else seconds * 1000


def is_too_late(half: Message, now_ms: Millis, time_out_ms: int) -> bool:
    """Whether the end of a transaction comes so late that only an answer to a check counts: one that says itself for
    how long nobody is asked is asked for from then on."""
    text = half.properties.get(props.CHECK_IMMUNITY_SECONDS)
    if not text:
        return False
    return now_ms - half.born_ms > max((java_long(text) or 0) * 1000, time_out_ms)
