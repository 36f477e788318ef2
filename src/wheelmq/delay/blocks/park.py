"""Park a message with `delayInSeconds` in a block (WheelMQ's own; the seed's SendMessageProcessor).

delayInSeconds   0         the message is delivered at once
                 1 ...     the message is due this number of seconds after the broker received it
                 else      MESSAGE_ILLEGAL: negative, too large, no 32-bit number, or together with another delay
"""

from __future__ import annotations

from wheelmq.delay.park import LevelUnreadable, ParkRejected
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import BLOCK_TOPIC
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.parked import ROOM_BYTES, due_text
from wheelmq.formats.java import java_int
from wheelmq.formats.units import Millis

BOTH = "delayInSeconds and delayTimeLevel should not be specified at the same time."
"""The text of the seed."""


class SecondsRejected(ValueError):
    """`delayInSeconds` is invalid. The text is the answer."""


def asked_due_ms(message: Message, now_ms: Millis, seconds_max: int) -> Millis | None:
    """Remove `delayInSeconds`, and return its due time or None. Raises SecondsRejected, LevelUnreadable."""
    properties = message.properties
    asked = properties.pop(props.DELAY_IN_SECONDS, None)
    if asked is None:
        return None
    seconds = java_int(asked)
    if seconds is None:
        raise SecondsRejected(f"delayInSeconds is {asked!r}, not a 32-bit number")
    if seconds == 0:
        return None
    level = java_int(properties.get(props.DELAY, "0"))
    if level is None:
        raise LevelUnreadable(f"DELAY is {properties[props.DELAY]!r}, not a 32-bit number")
    if level != 0:
        raise SecondsRejected(BOTH)
    other = next((name for name in (*props.TIMER_REQUESTS, props.TIMER_DEL_UNIQKEY) if name in properties), None)
    if other is not None:
        raise SecondsRejected(f"delayInSeconds and {other} should not be specified at the same time.")
    if seconds < 0:
        raise SecondsRejected(f"delayInSeconds is {seconds}: it must be 0 or more")
    if seconds > seconds_max:
        raise SecondsRejected(f"delayInSeconds is {seconds}: the delay must not exceed {seconds_max}s")
    return Millis(now_ms + seconds * 1000)


def park_in_block(message: Message, due_ms: Millis) -> None:
    """Rewrite `message` in place for a block. BlockIntake.put then sets its queue id. Raises ParkRejected."""
    properties = message.properties
    for name in (props.REAL_TOPIC, props.REAL_QID, props.TIMER_DELAY_LEVEL, props.TIMER_OUT_MS):
        properties.pop(name, None)
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QID] = str(message.queue_id)
    properties[props.WMQ_DUE] = due_text(due_ms)
    message.topic = BLOCK_TOPIC
    size = len(props.encode(properties))
    if size + ROOM_BYTES > props.PROPERTIES_BYTES_MAX:
        raise ParkRejected(
            f"{size} bytes of properties leave no room for those that delivery adds; the limit of a delayed message "
            f"is {props.PROPERTIES_BYTES_MAX - ROOM_BYTES}"
        )
