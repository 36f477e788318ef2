"""Storing a message, for all handlers that do so: park it if it is delayed, append it, and report the outcome."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, Durable, PeerError
from wheelmq.broker.put_times import timed
from wheelmq.broker.transactions.halves import ROOM_BYTES, has_room
from wheelmq.delay.blocks.block import Put
from wheelmq.delay.blocks.park import park_in_block
from wheelmq.delay.cancel import Cancelled, append_cancel
from wheelmq.delay.park import LevelUnreadable, ParkRejected, TimersOff, park
from wheelmq.delay.room import half_growth_bytes, release_growth_bytes
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.index import ChainTooLong, IndexDamaged
from wheelmq.formats.disk.message import SYS_TRANSACTION, Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.java import java_boolean, java_long
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire.bodies import PERM_WRITE
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.store import Appended, PropertiesTooLong, RecordTooLong

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

NOT_LOOKED_UP: Final = "the broker cannot look up the message that the cancel names"

A = TypeVar("A")


def check_writable(broker: Broker) -> None:
    """Check that the broker has write permission, for ordered and sent-back messages. Raises PeerError."""
    if not broker.settings.broker.permission & PERM_WRITE:
        raise PeerError(
            ResponseCode.NO_PERMISSION, f"the broker[{broker.settings.broker.ip}] sending message is forbidden"
        )


@timed
def put(broker: Broker, message: Message, asked_ms: Millis | None = None) -> tuple[Appended, Cancelled | None]:
    """Store `message`, and park it if it has a delay.

    `asked_ms` is the arrival time of the send if it had to wait. Raises PeerError, PutFailed.
    """
    _admit(broker, message)
    due_ms = _parked_due_ms(broker, message, asked_ms)
    if due_ms is not None and _is_rejected_by_its_slot(broker, message, due_ms):
        raise PutFailed(PutStatus.WHEEL_TIMER_FLOW_CONTROL)

    def append() -> tuple[Appended, Cancelled | None]:
        if due_ms is None:
            return broker.store.append(message), None
        if props.TIMER_DEL_UNIQKEY in message.properties:
            return append_cancel(broker.store, broker.timer, broker.blocks, message)
        appended = broker.store.append(message, real_queue=broker.store.real_queue(message.properties))
        if message.topic == names.TIMER_TOPIC:
            broker.timer.congestion.add(due_ms, broker.store.log.last_store_ms)
        return appended, None

    return _store(broker, append)


def _parked_due_ms(broker: Broker, message: Message, asked_ms: Millis | None = None) -> Millis | None:
    """Rewrite `message` if it has a delay. Return its due time, or None. Raises PeerError, PutFailed."""
    now_ms, last_store_ms = broker.clock.now_ms(), broker.store.log.last_store_ms
    try:
        due_ms = park(message, now_ms, broker.park_settings, last_store_ms, asked_ms)
    except LevelUnreadable as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except TimersOff:
        raise PutFailed(PutStatus.WHEEL_TIMER_NOT_ENABLE) from None
    except ParkRejected as error:
        raise PutFailed(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, error) from None
    if due_ms is not None:
        _check_room(broker, message, release_growth_bytes(message))
    return due_ms


def _check_room(broker: Broker, message: Message, growth_bytes: int) -> None:
    """Check that each record that `message` becomes later fits into a log file. Raises PutFailed."""
    try:
        broker.store.check_room(message, growth_bytes)
    except RecordTooLong as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None


def _is_rejected_by_its_slot(broker: Broker, message: Message, due_ms: Millis) -> bool:
    """Return whether the slot of the parked `message` is too full. A cancel makes room, and a level is no timer."""
    if message.topic != names.TIMER_TOPIC or props.TIMER_DEL_UNIQKEY in message.properties:
        return False
    return broker.timer.congestion.rejects(due_ms, broker.randomness)


@timed
def put_in_block(broker: Broker, message: Message, due_ms: Millis) -> Put:
    """Store `message` in the block of its due time. Raises PutFailed."""
    _admit(broker, message)
    try:
        park_in_block(message, due_ms)
    except ParkRejected as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None
    _check_room(broker, message, release_growth_bytes(message))
    return _store(broker, lambda: broker.block_scheduler.put(message, due_ms))


@timed
def put_half(broker: Broker, half: Message) -> Appended:
    """Store a half message, and ignore its delay. Raises PutFailed."""
    _admit(broker, half)
    if not has_room(half):
        raise PutFailed(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            "the properties of a half message leave no room for those that the broker adds",
        )
    _check_room(broker, half, half_growth_bytes(half, ROOM_BYTES))
    return _store(broker, lambda: broker.transactions.prepare(half))


def check_delay(broker: Broker, message: Message, half: Message) -> None:
    """Reject a `message` that its commit could not park, with the growth of its `half` by then.

    Raises PeerError, PutFailed.
    """
    asked = str(broker.settings.transactions.check_max)
    properties = {**half.properties, props.TRANSACTION_CHECK_TIMES: asked}
    sys_flag = message.sys_flag & ~SYS_TRANSACTION
    _parked_due_ms(broker, msgspec.structs.replace(message, sys_flag=sys_flag, properties=properties))


@timed
def put_batch(broker: Broker, messages: list[Message]) -> list[Appended]:
    """Store `messages`, of which none has a delay: all or none. Raises PutFailed."""
    for message in messages:
        _admit(broker, message)

    def append() -> list[Appended]:
        broker.store.reserve(messages)
        return [broker.store.append(message) for message in messages]

    return _store(broker, append)


def _store(broker: Broker, append: Callable[[], A]) -> A:
    """Append, and return the result. Raises PutFailed with the status that Apache RocketMQ answers."""
    begin_s = broker.clock.monotonic()
    try:
        return append()
    except PropertiesTooLong as error:
        raise PutFailed(PutStatus.PROPERTIES_SIZE_EXCEEDED, error) from None
    except RecordTooLong as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None
    except ChainTooLong as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, f"{NOT_LOOKED_UP}: {error}") from None
    except IndexDamaged as error:
        log.error("%s: %s", NOT_LOOKED_UP, error)
        raise PutFailed(PutStatus.UNKNOWN_ERROR, f"{NOT_LOOKED_UP}: {error}") from None
    except OSError as error:
        rejection = rejection_text(error)
        broker.health.reject_sends(rejection)
        raise PutFailed(PutStatus.CREATE_MAPPED_FILE_FAILED, rejection) from None
    except Exception:
        log.exception("the broker could not store a message")
        raise PutFailed(PutStatus.UNKNOWN_ERROR) from None
    finally:
        broker.stats.put_times.note_append(broker.clock.monotonic() - begin_s)


def _admit(broker: Broker, message: Message) -> None:
    broker.admission.check_put()
    if any("\0" in text for pair in message.properties.items() for text in pair):
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, "a property holds a NUL")
    for name in props.OWN:
        message.properties.pop(name, None)


def answer_when_stored(
    broker: Broker, message: Message, answer: Command, end: LogPosition, *, late: Command | None = None
) -> Answer:
    """Return `answer` now, or once the log is on disk up to `end`, by the flush mode and the message's WAIT.

    `late` is the answer if that takes too long. Without it, `answer` gets the code FLUSH_DISK_TIMEOUT.
    """
    waits = java_boolean(message.properties.get(props.WAIT, "true"))
    return Durable(answer, end, late) if broker.flush.is_sync and waits else answer


def recall_handle(broker: Broker, message: Message) -> str | None:
    """Return the handle with which a client recalls a timer, or None for other messages.

    RocketMQ calls it RecallMessageHandle. The message is stored already, so this must not fail: a sender may have set
    its properties to anything.
    """
    out_ms = java_long(message.properties.get(props.TIMER_OUT_MS, ""))
    topic = message.properties.get(props.REAL_TOPIC)
    is_parked = message.topic == TIMER_TOPIC
    if not is_parked or out_ms is None or topic is None or topic.startswith(names.RETRY_PREFIX):
        return None
    parts = ("v1", topic, broker.settings.broker.name, str(out_ms + 1), message.properties[props.UNIQ_KEY])
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
