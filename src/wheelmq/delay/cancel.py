"""Cancel: decided in the tick, by the message index and the done bit, and answered truthfully.

The cancel is itself a record of the timer queue, as Apache writes it. When what it names is pending, the record
carries that one's origin, and so settles it; it is never delivered itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from wheelmq.delay.timer.lookup import Found, find_parked
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message, Record
from wheelmq.formats.disk.origin import ORIGIN_PROPERTY_BYTES, TIMER_STREAM, origin_stream
from wheelmq.formats.disk.parked import due_of, due_text
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.store.store import Appended, BatchTooLong, Store
from wheelmq.system.failpoint import reach

OWN_ROOM_BYTES: Final = 256
"""Property bytes that are added to a cancel: its due time, what it settles."""
_NEEDED: Final = (
    *(props.REAL_TOPIC, props.REAL_QID, props.UNIQ_KEY, props.TIMER_DEL_UNIQKEY, props.TIMER_OUT_MS),
    *props.TIMER_REQUESTS,
)


class Cancelled(StrEnum):
    """What came of a cancel."""

    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    NOT_FOUND = "not found"


def append_cancel(store: Store, timer: Timer, message: Message) -> tuple[Appended, Cancelled]:
    """Append the parked cancel `message`, once for each pending message that it names: all or none, as long as they fit
    into one file of the log. Raises as Store.append.

    What it cancels is added to its keys: so the message index tells what became of that.
    """
    pending, settled = find_parked(timer, message.properties[props.TIMER_DEL_UNIQKEY])
    if not pending:
        return store.append(message), Cancelled.ALREADY_SETTLED if settled else Cancelled.NOT_FOUND
    return append_cancel_of(store, timer, message, pending), Cancelled.CANCELLED


def append_cancel_of(store: Store, timer: Timer, message: Message, pending: Sequence[Found]) -> Appended:
    """`append_cancel` of what is known to be pending, one or more; where the first one stands."""
    assert message.topic == TIMER_TOPIC and props.WMQ_DUE in message.properties
    message = _with_key_of_cancelled(message)
    with contextlib.suppress(BatchTooLong):
        store.reserve([message] * len(pending), settles=pending[0].origin)
    appended = []
    for found in pending:
        appended.append(store.append(message, settles=found.origin, real_queue=found.real_queue))
        reach("cancel.appended")
        timer.settle(found.origin)
        if origin_stream(found.origin) == TIMER_STREAM:
            timer.congestion.remove(found.due_ms)
    return appended[0]


def own_cancel(record: Record) -> Message:
    """The cancel that Apache RocketMQ parked as `record`, as it is written again as ours; where its sender's properties
    leave no room for what is added, only those stay that make it a cancel."""
    message = record.message
    properties = props.without_origin(message.properties)
    if len(props.encode(properties)) > props.PROPERTIES_BYTES_MAX - OWN_ROOM_BYTES:
        properties = {name: value for name, value in properties.items() if name in _NEEDED}
    properties[props.WMQ_DUE] = due_text(due_of(properties, record.store_ms))
    return msgspec.structs.replace(message, properties=properties)


def _with_key_of_cancelled(message: Message) -> Message:
    properties = dict(message.properties)
    unique_key = properties[props.TIMER_DEL_UNIQKEY].partition("+")[2]
    keys = properties.pop(props.KEYS, "").split()
    properties[props.KEYS] = " ".join(dict.fromkeys([*keys, unique_key]))
    if len(props.encode(properties)) + ORIGIN_PROPERTY_BYTES > props.PROPERTIES_BYTES_MAX:
        return message
    return msgspec.structs.replace(message, properties=properties)
