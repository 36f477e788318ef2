"""Cancel: settle a pending message on request, and return the true outcome.

A cancel is a record of the timer queue, as with Apache, with the origin of its message. It is never delivered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from wheelmq.delay.api import Generations
from wheelmq.delay.timer.lookup import FoundTimer, find_cancelled
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import ORIGIN_PROPERTY_BYTES
from wheelmq.formats.disk.parked import due_of, due_text
from wheelmq.formats.disk.timer import TIMER_TOPIC, slot_time
from wheelmq.store.store import Appended, BatchTooLong, Store
from wheelmq.system.failpoint import reach

OWN_ROOM_BYTES: Final = 256
"""Property bytes that the broker adds to a cancel: its due time, and the origin of its message."""
_NEEDED: Final = (
    *(props.REAL_TOPIC, props.REAL_QID, props.UNIQ_KEY, props.TIMER_DEL_UNIQKEY, props.TIMER_OUT_MS),
    *props.TIMER_REQUESTS,
)


class Cancelled(StrEnum):
    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    NOT_FOUND = "not found"


def append_cancel(store: Store, timer: Timer, generations: Generations, message: Message) -> tuple[Appended, Cancelled]:
    """Append the parked cancel `message`, once for each pending message that it names.

    All records are appended or none, if they fit into one file of the log. Raises the same as Store.append.
    """
    pending, settled = find_cancelled(timer, generations, message.properties)
    if not pending:
        return store.append(message), Cancelled.ALREADY_SETTLED if settled else Cancelled.NOT_FOUND
    return append_cancel_of(store, timer, message, pending), Cancelled.CANCELLED


def append_cancel_of(store: Store, timer: Timer, message: Message, pending: Sequence[FoundTimer]) -> Appended:
    """Append the cancel `message` once for each of `pending`, which is not empty. Returns the first append."""
    assert message.topic == TIMER_TOPIC and props.WMQ_DUE in message.properties
    cancels = [_cancel_of(message, found, timer.settings.precision_ms) for found in pending]
    with contextlib.suppress(BatchTooLong):
        store.reserve(cancels, settles=pending[0].origin)
    appended = []
    for cancel, found in zip(cancels, pending, strict=True):
        appended.append(store.append(cancel, settles=found.origin, real_queue=found.real_queue))
        reach("cancel.appended")
        timer.pending.settle(found.origin)
        if found.has_slot:
            timer.congestion.remove(found.due_ms)
    return appended[0]


def own_cancel(record: Record) -> Message:
    """Return the cancel that Apache RocketMQ parked as `record`, in WheelMQ's form, to be stored again.

    If its properties leave no room for WheelMQ's own, only the properties that a cancel needs stay.
    """
    message = record.message
    properties = props.without_origin(message.properties)
    if len(props.encode(properties)) > props.PROPERTIES_BYTES_MAX - OWN_ROOM_BYTES:
        properties = {name: value for name, value in properties.items() if name in _NEEDED}
    properties[props.WMQ_DUE] = due_text(due_of(properties, record.store_ms))
    return msgspec.structs.replace(message, properties=properties)


def _cancel_of(message: Message, found: FoundTimer, precision_ms: int) -> Message:
    """Return the cancel `message` as it is stored for the message `found`.

    It is parked in the slot of that message, whatever its sender named: Apache RocketMQ obeys a cancel only there. KEYS
    gets the message's unique key, so the message index leads from it to its cancel.
    """
    properties = dict(message.properties)
    if found.has_slot:
        slot_ms = slot_time(found.due_ms, precision_ms)
        properties[props.TIMER_OUT_MS] = str(slot_ms) if found.out_ms is None else found.out_ms
        properties[props.WMQ_DUE] = due_text(found.due_ms)
    keys = properties.get(props.KEYS, "").split()
    named = {name: value for name, value in properties.items() if name != props.KEYS}
    named[props.KEYS] = " ".join(dict.fromkeys([*keys, found.unique_key]))
    if len(props.encode(named)) + ORIGIN_PROPERTY_BYTES <= props.PROPERTIES_BYTES_MAX:
        properties = named
    return msgspec.structs.replace(message, properties=properties)
