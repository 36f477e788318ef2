"""Park: rewrite a message that asks for a later delivery, before it is appended (RocketMQ: HookUtils).

A message with a level goes to the level's queue of SCHEDULE_TOPIC_XXXX, and any other to the timer queue. REAL_TOPIC
and REAL_QID keep its real topic and queue id. In the timer queue, TIMER_OUT_MS has the time of its slot, as with
Apache, and `__WMQ_DUE` has the exact due time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wheelmq.delay.levels.table import DEFAULT_LEVELS, level_delay_ms, level_of, parse_levels
from wheelmq.delay.settings import TimerSettings
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_TRANSACTION, SYS_TRANSACTION_COMMIT, Message
from wheelmq.formats.disk.origin import ORIGIN_PROPERTY_BYTES
from wheelmq.formats.disk.parked import ROOM_BYTES, due_text
from wheelmq.formats.disk.timer import TIMER_TOPIC, slot_time
from wheelmq.formats.java import java_int, java_long
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import Millis


class ParkRejected(ValueError):
    """The message cannot be parked: for Apache RocketMQ it is illegal. The text says why."""


class LevelUnreadable(ParkRejected):
    """DELAY is not a number. Apache RocketMQ has a separate error for this."""


class TimersOff(ParkRejected):
    """The message asks for a timer, and the broker has no timers."""


@dataclass(frozen=True, slots=True)
class ParkSettings:
    timer: TimerSettings = field(default_factory=TimerSettings)
    levels_ms: tuple[Millis, ...] = parse_levels(DEFAULT_LEVELS)


def park(
    message: Message, now_ms: Millis, settings: ParkSettings, last_store_ms: int = 0, asked_ms: Millis | None = None
) -> Millis | None:
    """Rewrite `message` in place when it asks for a delay. Returns the due time, or None. Raises ParkRejected.

    `last_store_ms` is the store time of the log's last record: store times do not go back when the clock is set back. A
    relative delay starts at `asked_ms`, when a send arrived that had to wait, and the delay of a level at the store
    time, as with Apache RocketMQ.
    """
    level = _level(message, settings)
    if level:
        return _level_due_time(message, level, now_ms, settings, last_store_ms)
    due_ms = due_time(message, now_ms, settings, now_ms if asked_ms is None else asked_ms)
    if due_ms is None:
        return None
    properties = message.properties
    properties.pop(props.TIMER_DELAY_LEVEL, None)
    _move(message, TIMER_TOPIC, 0, {props.TIMER_OUT_MS: str(slot_time(due_ms, settings.timer.precision_ms))})
    properties[props.WMQ_DUE] = due_text(due_ms)
    _must_have_room(properties, ROOM_BYTES)
    return due_ms


def _level(message: Message, settings: ParkSettings) -> int:
    """Return the level that `message` asks for, or 0 for none. Raises LevelUnreadable."""
    if message.sys_flag & SYS_TRANSACTION not in (0, SYS_TRANSACTION_COMMIT):
        return 0
    level = java_int(message.properties.get(props.DELAY, "0"))
    if level is None:
        raise LevelUnreadable(f"DELAY is {message.properties[props.DELAY]!r}, not a 32-bit number")
    return level_of(settings.levels_ms, level) if level > 0 else 0


def _level_due_time(message: Message, level: int, now_ms: Millis, settings: ParkSettings, last_store_ms: int) -> Millis:
    """Park `message` in the queue of `level` and return the due time: the clock's time plus the delay of the level.

    Apache counts from the store time. If that is ahead of the clock, the property `__WMQ_DUE` keeps the due time. A
    level wins over the timer properties and the property of a cancel, which are removed.
    """
    properties = message.properties
    due_ms = Millis(now_ms + level_delay_ms(settings.levels_ms, level))
    for name in (*props.TIMER_REQUESTS, props.TIMER_DEL_UNIQKEY):
        properties.pop(name, None)
    if level != java_int(properties[props.DELAY]):
        properties[props.DELAY] = str(level)
    _move(message, SCHEDULE_TOPIC, level - 1, {})
    if last_store_ms > now_ms:
        properties[props.WMQ_DUE] = due_text(due_ms)
    _must_have_room(properties, ORIGIN_PROPERTY_BYTES)
    return due_ms


def _move(message: Message, topic: str, queue_id: int, added: dict[str, str]) -> None:
    """Direct `message` to another queue. Put the properties `added` and then its real topic and queue at the end."""
    properties = message.properties
    for name in (*added, props.REAL_TOPIC, props.REAL_QID):
        properties.pop(name, None)
    properties.update(added)
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QID] = str(message.queue_id)
    message.topic, message.queue_id = topic, queue_id


def _must_have_room(properties: dict[str, str], room_bytes: int) -> None:
    """Raise ParkRejected when delivery could not add `room_bytes` to the properties."""
    size = len(props.encode(properties))
    if size + room_bytes > props.PROPERTIES_BYTES_MAX:
        raise ParkRejected(
            f"{size} bytes of properties leave no room for those that delivery adds; the limit of a delayed message "
            f"is {props.PROPERTIES_BYTES_MAX - room_bytes}"
        )


def due_time(message: Message, now_ms: Millis, settings: ParkSettings, asked_ms: Millis) -> Millis | None:
    """Compute the due time of a `message` without a level; None for delivery at once.

    Seconds win over milliseconds, and both win over an absolute time. Relative times count from `asked_ms`. Raises
    ParkRejected, and TimersOff for any time if the broker has no timers.
    """
    if message.sys_flag & SYS_TRANSACTION not in (0, SYS_TRANSACTION_COMMIT):
        return None
    properties = message.properties
    if props.TIMER_OUT_MS in properties:
        return None  # as with Apache: the message counts as already parked
    asked = next((name for name in props.TIMER_REQUESTS if name in properties), None)
    if asked is None:
        return None
    if not settings.timer.enable:
        raise TimersOff(f"{asked} needs a timer, but timers are off")
    value = java_long(properties[asked])
    if value is None:
        raise ParkRejected(f"{asked} is {properties[asked]!r}, not a 64-bit number")
    due_ms = Millis(_absolute(asked, value, asked_ms))
    if due_ms > now_ms:
        from_ms = now_ms if asked == props.TIMER_DELIVER_MS else asked_ms
        if due_ms - from_ms > settings.timer.max_delay_seconds * 1000:
            raise ParkRejected(f"{asked}: the delay must not exceed {settings.timer.max_delay_seconds * 1000}ms")
        return due_ms
    if props.TIMER_DEL_UNIQKEY in properties:
        raise ParkRejected(f"{asked} of a cancel must be in the future: it is the due time of the message to cancel")
    return None


def _absolute(asked: str, value: int, asked_ms: Millis) -> int:
    match asked:
        case props.TIMER_DELAY_SEC:
            return _wrap(asked_ms + _wrap(value * 1000))
        case props.TIMER_DELAY_MS:
            return _wrap(asked_ms + value)
    return value


def _wrap(value: int) -> int:
    """Wrap an integer to 64 bits, as Java's arithmetic does."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
