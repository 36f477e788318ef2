"""Storing a message, for all handlers that do so: park it if it is delayed, append it, and report the outcome."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, PeerError
from wheelmq.broker.context import Context
from wheelmq.broker.handlers.timed import timed
from wheelmq.broker.request import Request
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

log = logging.getLogger(__name__)

NOT_LOOKED_UP: Final = "the broker cannot look up the message that the cancel names"

A = TypeVar("A")


def check_writable(context: Context) -> None:
    """Check that the broker has write permission, for ordered and sent-back messages. Raises PeerError."""
    if not context.settings.broker.permission & PERM_WRITE:
        raise PeerError(
            ResponseCode.NO_PERMISSION, f"the broker[{context.settings.broker.ip}] sending message is forbidden"
        )


@timed
def put(context: Context, message: Message, asked_ms: Millis | None = None) -> tuple[Appended, Cancelled | None]:
    """Store `message`, and park it if it has a delay.

    `asked_ms` is the arrival time of the send if it had to wait. Raises PeerError, PutFailed.
    """
    _admit(context, message)
    due_ms = _parked_due_ms(context, message, asked_ms)
    if due_ms is not None and _is_rejected_by_its_slot(context, message, due_ms):
        raise PutFailed(PutStatus.WHEEL_TIMER_FLOW_CONTROL)

    def append() -> tuple[Appended, Cancelled | None]:
        if due_ms is None:
            return context.store.append(message), None
        if props.TIMER_DEL_UNIQKEY in message.properties:
            return append_cancel(context.store, context.timer, context.generations, message)
        appended = context.store.append(message, real_queue=context.store.real_queue(message.properties))
        if message.topic == names.TIMER_TOPIC:
            context.timer.congestion.add(due_ms, context.store.log.last_store_ms)
        return appended, None

    return _store(context, append)


def _parked_due_ms(context: Context, message: Message, asked_ms: Millis | None = None) -> Millis | None:
    """Rewrite `message` if it has a delay. Return its due time, or None. Raises PeerError, PutFailed."""
    now_ms, last_store_ms = context.clock.now_ms(), context.store.log.last_store_ms
    try:
        due_ms = park(message, now_ms, context.park_settings, last_store_ms, asked_ms)
    except LevelUnreadable as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except TimersOff:
        raise PutFailed(PutStatus.WHEEL_TIMER_NOT_ENABLE) from None
    except ParkRejected as error:
        raise PutFailed(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, error) from None
    if due_ms is not None:
        _check_room(context, message, release_growth_bytes(message))
    return due_ms


def _check_room(context: Context, message: Message, growth_bytes: int) -> None:
    """Check that each record that `message` becomes later fits into a log file. Raises PutFailed."""
    try:
        context.store.check_room(message, growth_bytes)
    except RecordTooLong as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None


def _is_rejected_by_its_slot(context: Context, message: Message, due_ms: Millis) -> bool:
    """Return whether the slot of the parked `message` is too full. A cancel makes room, and a level is no timer."""
    if message.topic != names.TIMER_TOPIC or props.TIMER_DEL_UNIQKEY in message.properties:
        return False
    return context.timer.congestion.rejects(due_ms, context.randomness)


@timed
def put_in_block(context: Context, message: Message, due_ms: Millis) -> Put:
    """Store `message` in the block of its due time. Raises PutFailed."""
    _admit(context, message)
    try:
        park_in_block(message, due_ms)
    except ParkRejected as error:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None
    _check_room(context, message, release_growth_bytes(message))
    return _store(context, lambda: context.block_scheduler.put(message, due_ms))


@timed
def put_half(context: Context, half: Message) -> Appended:
    """Store a half message, and ignore its delay. Raises PutFailed."""
    _admit(context, half)
    if not has_room(half):
        raise PutFailed(
            PutStatus.PROPERTIES_SIZE_EXCEEDED,
            "the properties of a half message leave no room for those that the broker adds",
        )
    _check_room(context, half, half_growth_bytes(half, ROOM_BYTES))
    return _store(context, lambda: context.transactions.prepare(half))


def check_delay(context: Context, message: Message, half: Message) -> None:
    """Reject a `message` that its commit could not park, with the growth of its `half` by then.

    Raises PeerError, PutFailed.
    """
    asked = str(context.settings.transactions.check_max)
    properties = {**half.properties, props.TRANSACTION_CHECK_TIMES: asked}
    sys_flag = message.sys_flag & ~SYS_TRANSACTION
    _parked_due_ms(context, msgspec.structs.replace(message, sys_flag=sys_flag, properties=properties))


@timed
def put_batch(context: Context, messages: list[Message]) -> list[Appended]:
    """Store `messages`, of which none has a delay: all or none. Raises PutFailed."""
    for message in messages:
        _admit(context, message)

    def append() -> list[Appended]:
        context.store.reserve(messages)
        return [context.store.append(message) for message in messages]

    return _store(context, append)


def _store(context: Context, append: Callable[[], A]) -> A:
    """Append, and return the result. Raises PutFailed with the status that Apache RocketMQ answers."""
    begin_s = context.clock.monotonic()
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
        context.health.reject_sends(rejection)
        raise PutFailed(PutStatus.CREATE_MAPPED_FILE_FAILED, rejection) from None
    except Exception:
        log.exception("the broker could not store a message")
        raise PutFailed(PutStatus.UNKNOWN_ERROR) from None
    finally:
        context.stats.put_times.note_append(context.clock.monotonic() - begin_s)


def _admit(context: Context, message: Message) -> None:
    context.admission.check_put()
    if any("\0" in text for pair in message.properties.items() for text in pair):
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, "a property holds a NUL")
    for name in props.OWN:
        message.properties.pop(name, None)


def waits_for_disk(request: Request, context: Context, message: Message) -> bool:
    """Return whether the sender of `message` waits for the disk, by the flush mode and the message's WAIT."""
    if request.command.is_oneway or not context.flush.is_sync:
        return False
    return java_boolean(message.properties.get(props.WAIT, "true"))


def answer_when_stored(
    request: Request,
    context: Context,
    message: Message,
    answer: Command,
    end: LogPosition,
    *,
    late: Command | None = None,
) -> Answer:
    """Return `answer` now, or once the log is on disk up to `end` if the sender waits for that.

    `late` is the answer if that takes too long. Without it, `answer` gets the code FLUSH_DISK_TIMEOUT.
    """
    return context.flush.defer(answer, end, late) if waits_for_disk(request, context, message) else answer


def recall_handle(context: Context, message: Message) -> str | None:
    """Return the handle with which a client recalls a timer, or None for other messages.

    RocketMQ calls it RecallMessageHandle. The message is stored already, so this must not fail: a sender may have set
    its properties to anything.
    """
    out_ms = java_long(message.properties.get(props.TIMER_OUT_MS, ""))
    topic = message.properties.get(props.REAL_TOPIC)
    is_parked = message.topic == TIMER_TOPIC
    if not is_parked or out_ms is None or topic is None or topic.startswith(names.RETRY_PREFIX):
        return None
    parts = ("v1", topic, context.settings.broker.name, str(out_ms + 1), message.properties[props.UNIQ_KEY])
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
