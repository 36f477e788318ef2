"""The facts of a record about delay: its due time, the key that cancels it, and the parked record that it settles."""

from __future__ import annotations

from typing import Final, NamedTuple

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import LEVELS_MAX, TIMER_STREAM, Origin, Stream, level_stream, parse_origin
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.java import java_long
from wheelmq.formats.names import BLOCK_TOPIC, SCHEDULE_TOPIC
from wheelmq.formats.names import delete_key as delete_key
from wheelmq.formats.units import Millis

DUE_DIGITS: Final = 13
ROOM_BYTES: Final = 250
"""Property bytes that park leaves free, so that a release (about 100 bytes) or a roll can always add properties."""
FNV_START: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3


class DelayFacts(NamedTuple):
    """The facts about delay in one record. A zero means that the record has no such fact."""

    stream: Stream
    """The stream in which the record is parked, or 0 for a record in a block. The block's log names the block."""
    due_ms: Millis
    """The due time of a parked message. A 0 in a level queue means the store time plus the level's delay."""
    settles: Origin
    key_hash: int
    deletes: bool
    """Whether the record cancels another parked message. Such a record is never delivered."""
    decided: bool
    """Whether WheelMQ wrote this cancel and executed it with the append. Apache's cancels are executed later."""
    unit_has_due: bool = False
    """Whether the queue unit has the due time in place of the hash of the tag. The units of levels have it."""


NOTHING: Final = DelayFacts(Stream(0), Millis(0), Origin(0), 0, False, False)


def delay_facts(topic: str, queue_id: int, properties: dict[str, str], store_ms: Millis) -> DelayFacts:
    """Return the facts in a stored record of a queue of `topic` with `properties`."""
    settles = _settles(properties)
    if topic == SCHEDULE_TOPIC and 0 <= queue_id < LEVELS_MAX:
        due_ms = _exact_due_time(properties) or Millis(0)
        return DelayFacts(level_stream(queue_id + 1), due_ms, settles, _own_key_hash(properties), False, False, True)
    if topic == BLOCK_TOPIC:
        return DelayFacts(Stream(0), due_of(properties, store_ms), settles, _own_key_hash(properties), False, False)
    if topic != TIMER_TOPIC:
        return NOTHING._replace(settles=settles) if settles else NOTHING
    deletes = props.TIMER_DEL_UNIQKEY in properties
    return DelayFacts(
        stream=TIMER_STREAM,
        due_ms=due_of(properties, store_ms),
        settles=settles,
        key_hash=0 if deletes else _own_key_hash(properties),
        deletes=deletes,
        decided=deletes and props.WMQ_DUE in properties,
    )


def _settles(properties: dict[str, str]) -> Origin:
    text = properties.get(props.WMQ_ORIGIN)
    if text is None or next(reversed(properties)) != props.WMQ_ORIGIN:
        return Origin(0)  # the property is ours only if it is the last one
    return parse_origin(text) or Origin(0)


def due_of(properties: dict[str, str], store_ms: Millis) -> Millis:
    """Return the exact due time of a parked record.

    A record of Apache RocketMQ has no `__WMQ_DUE`. The first of these counts instead: TIMER_DELIVER_MS; the store time
    plus the delay, if the message never rolled; the time of its slot; the store time.
    """
    exact_ms = _exact_due_time(properties)
    if exact_ms is not None:
        return exact_ms
    deliver = java_long(properties.get(props.TIMER_DELIVER_MS, ""))
    if deliver is not None:
        return Millis(deliver)
    if props.TIMER_ROLL_TIMES not in properties:
        seconds = java_long(properties.get(props.TIMER_DELAY_SEC, ""))
        if seconds is not None:
            return Millis(store_ms + seconds * 1000)
        millis = java_long(properties.get(props.TIMER_DELAY_MS, ""))
        if millis is not None:
            return Millis(store_ms + millis)
    slot = java_long(properties.get(props.TIMER_OUT_MS, ""))
    return Millis(slot) if slot is not None else store_ms


def _exact_due_time(properties: dict[str, str]) -> Millis | None:
    exact = properties.get(props.WMQ_DUE, "")
    return Millis(int(exact)) if len(exact) == DUE_DIGITS and exact.isascii() and exact.isdigit() else None


def level_due_time(properties: dict[str, str], store_ms: Millis, delay_ms: int) -> Millis:
    """Return the due time of a message in the queue of a level with a delay of `delay_ms`, as in its queue unit."""
    exact_ms = _exact_due_time(properties)
    return Millis(store_ms + delay_ms) if exact_ms is None else exact_ms


def due_text(due_ms: Millis) -> str:
    return f"{due_ms:0{DUE_DIGITS}d}"


def delete_keys(properties: dict[str, str]) -> list[str]:
    """Return the delete keys, in the long form, that the TIMER_DEL_UNIQKEY of a parked cancel can mean.

    Apache RocketMQ 5.3.3 writes the long form. Since 5.4.0 it writes the unique key alone: the topic is the cancel's
    own. A value with a `+` is read as the long form first, because a unique key may contain a `+`, and a topic may not.
    """
    value = properties[props.TIMER_DEL_UNIQKEY]
    short = delete_key(properties.get(props.REAL_TOPIC, ""), value)
    keys = [value, short] if "+" in value else [short]
    return [key for key in keys if unique_key_of(key)]


def unique_key_of(key: str) -> str:
    return key.partition("+")[2]


def key_hash(text: str) -> int:
    """Return FNV-1a over the UTF-8 bytes of a delete key: 64 bits with a sign, never 0, which means "no key"."""
    code = fnv(text.encode("utf-8", "replace"))
    signed = code - (1 << 64) if code >= 1 << 63 else code
    return signed or 1


def fnv(raw: bytes) -> int:
    """Return FNV-1a with 64 bits, unsigned. Twin: `formats.kernels.numbers.fnv`."""
    code = FNV_START
    for byte in raw:
        code = (code ^ byte) * FNV_PRIME & 0xFFFF_FFFF_FFFF_FFFF
    return code


def _own_key_hash(properties: dict[str, str]) -> int:
    topic = properties.get(props.REAL_TOPIC)
    unique_key = properties.get(props.UNIQ_KEY)
    return key_hash(delete_key(topic, unique_key)) if topic and unique_key else 0
