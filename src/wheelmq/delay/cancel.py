"""Cancel: decided in the tick, by the key index and the done bit, and answered truthfully.

The cancel is itself a record of the timer queue, as Apache writes it. When what it names is pending, the record
carries that one's origin, and so settles it; it is never delivered itself.
"""

from __future__ import annotations

from enum import StrEnum

from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.store.store import Appended, Store
from wheelmq.system.failpoint import reach


class Cancelled(StrEnum):
    """What came of a cancel."""

    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    NOT_FOUND = "not found"


def append_cancel(store: Store, timer: Timer, message: Message) -> tuple[Appended, Cancelled]:
    """Append the parked cancel `message`, once for each pending message that it names. Raises as Store.append."""
    assert message.topic == TIMER_TOPIC and props.WMQ_DUE in message.properties
    pending, settled = timer.find_parked(message.properties[props.TIMER_DEL_UNIQKEY])
    if not pending:
        return store.append(message), Cancelled.ALREADY_SETTLED if settled else Cancelled.NOT_FOUND
    appended = []
    for origin, real_queue in pending:
        appended.append(store.append(message, settles=origin, real_queue=real_queue))
        reach("cancel.appended")
        timer.settle(origin)
    return appended[0], Cancelled.CANCELLED
