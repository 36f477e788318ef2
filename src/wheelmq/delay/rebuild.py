"""Rebuild the message of a parked record: for its real topic, for the timer queue, or for the dead-letter topic."""

from __future__ import annotations

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.parked import due_of, due_text
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.java import java_long
from wheelmq.formats.names import BLOCK_TOPIC, DEAD_LETTER_TOPIC, SCHEDULE_TOPIC, topic_problem

PARKED_TOPICS = (TIMER_TOPIC, SCHEDULE_TOPIC, BLOCK_TOPIC)
"""The topics of parked messages. No release appends to them."""


class Unreleasable(ValueError):
    """The parked record does not name a valid real topic and queue. The text says why."""


def rebuild(record: Record, *, enqueue_ms: int, now_ms: int, rolls: bool) -> Message:
    """Return the message of a record for its real topic, or to roll it (RocketMQ: convert). Raises Unreleasable."""
    parked = record.message
    properties = props.without_origin(parked.properties)
    properties[props.TIMER_ENQUEUE_MS] = str(enqueue_ms)
    if rolls:
        times = java_long(properties.get(props.TIMER_ROLL_TIMES, "0"))
        properties[props.TIMER_ROLL_TIMES] = str((times or 0) + 1)
        properties[props.WMQ_DUE] = due_text(due_of(parked.properties, record.store_ms))
    properties[props.TIMER_DEQUEUE_MS] = str(now_ms)
    topic, queue_id = parked.topic, parked.queue_id
    if not rolls:
        topic, queue_id = real_queue(properties)
        if props.TIMER_DELAY_LEVEL in properties:
            properties[props.DELAY] = properties.pop(props.TIMER_DELAY_LEVEL)
    return parked.again(topic, queue_id, properties)


def real_queue(properties: dict[str, str]) -> tuple[str, int]:
    """Return the real topic and queue id of a parked message. Raises Unreleasable."""
    topic = properties.get(props.REAL_TOPIC, "")
    queue_id = java_long(properties.get(props.REAL_QID, ""))
    problem = topic_problem(topic)
    if problem or topic in PARKED_TOPICS:
        raise Unreleasable(f"REAL_TOPIC is {topic!r}: {problem or 'it is a topic of parked messages'}")
    if queue_id is None or not 0 <= queue_id < 1 << 31:
        raise Unreleasable(f"REAL_QID is {properties.get(props.REAL_QID)!r}")
    return topic, queue_id


def dead_letter(record: Record) -> Message:
    """Return the parked message for the dead-letter topic, without the properties that leave no room for the origin.

    The real topic, the real queue id and the unique key come first, so they are dropped last.
    """
    parked = record.message
    properties = props.without_origin(parked.properties)
    kept_longest = (props.REAL_TOPIC, props.REAL_QID, props.UNIQ_KEY)
    first = {name: properties[name] for name in kept_longest if name in properties}
    fitting = props.fitting({**first, **properties}, props.PROPERTIES_BYTES_MAX - 64)
    return parked.again(DEAD_LETTER_TOPIC, 0, fitting)
