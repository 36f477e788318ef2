"""The way of messages from handlers into the store: park a delayed one, append it, and report the outcome."""

from __future__ import annotations

import base64
import functools
import logging
from collections.abc import Callable
from random import Random
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.answers import Answer, PeerError
from wheelmq.broker.durability import Durability
from wheelmq.broker.engine import Engine
from wheelmq.broker.fast_batch import MeasuredRows
from wheelmq.broker.put_times import PutTimes
from wheelmq.broker.request import Request
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.transactions.halves import ROOM_BYTES, has_room
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.delay.blocks.block import Put
from wheelmq.delay.blocks.park import park_in_block
from wheelmq.delay.cancel import Cancelled, append_cancel
from wheelmq.delay.park import LevelUnreadable, ParkRejected, ParkSettings, TimersOff, park
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
from wheelmq.system.clock import Clock
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

NOT_LOOKED_UP: Final = "the broker cannot look up the message that the cancel names"

MARK_ROOM_BYTES: Final = 2048
"""Bytes of the record of a mark before one row, at most."""

A = TypeVar("A")
M = TypeVar("M", Message, list[Message], MeasuredRows)
R = TypeVar("R")
P = ParamSpec("P")


def _timed(put: Callable[Concatenate[Puts, M, P], R]) -> Callable[Concatenate[Puts, M, P], R]:
    """Return `put`, which then counts its time in PutTimes (RocketMQ: StoreStatsService)."""

    @functools.wraps(put)
    def measured(puts: Puts, message: M, /, *rest: P.args, **named: P.kwargs) -> R:
        times, monotonic = puts._put_times, puts._clock.monotonic
        body_bytes = _body_bytes(message)
        result = "UNKNOWN_ERROR"
        times.begin()
        begin_s = monotonic()
        try:
            stored = put(puts, message, *rest, **named)
            result = "PUT_OK"
            return stored
        except PutFailed as failed:
            result = failed.status
            if failed.status == PutStatus.UNKNOWN_ERROR:
                text = "the failed put: topic=%s queueId=%d messages=%d bodyLength=%d"
                log.error(text, *_first_queue(message), body_bytes)
            raise
        except PeerError as rejection:
            result = rejection.remark
            raise
        finally:
            times.note_put(monotonic() - begin_s, body_bytes, result)

    return measured


def _body_bytes(put: Message | list[Message] | MeasuredRows) -> int:
    if isinstance(put, MeasuredRows):
        return put.body_bytes
    return sum(len(one.body) for one in put) if isinstance(put, list) else len(put.body)


def _first_queue(put: Message | list[Message] | MeasuredRows) -> tuple[str, int, int]:
    """Return the topic and the queue of the first message, and the number of messages."""
    if isinstance(put, MeasuredRows):
        return put.topic, put.queue_id, len(put)
    messages = put if isinstance(put, list) else [put]
    first = messages[0]
    return first.properties.get(props.REAL_TOPIC, first.topic), first.queue_id, len(messages)


class Puts:
    def __init__(
        self,
        engine: Engine,
        transactions: Transactions,
        durability: Durability,
        settings: BrokerSettings,
        *,
        admission: Admission,
        health: StoreHealth,
        put_times: PutTimes,
        clock: Clock,
        randomness: Random,
    ) -> None:
        self._store, self._timer = engine.store, engine.timer
        self._blocks, self._block_intake = engine.blocks, engine.block_parts.intake
        self._generations = engine.generations
        self._transactions, self._durability = transactions, durability
        self._settings = settings
        self._park_settings = ParkSettings(settings.timer, settings.levels.levels_ms)
        self._admission, self._health, self._put_times = admission, health, put_times
        self._clock, self._randomness = clock, randomness

    @_timed
    def put(self, message: Message, asked_ms: Millis | None = None) -> tuple[Appended, Cancelled | None]:
        """Store `message`, and park it if it has a delay. Raises PeerError, PutFailed.

        `asked_ms` is the arrival time of the send if it had to wait.
        """
        self._admit(message)
        due_ms = self._parked_due_ms(message, asked_ms)
        if due_ms is not None and self._is_rejected_by_its_slot(message, due_ms):
            raise PutFailed(PutStatus.WHEEL_TIMER_FLOW_CONTROL)

        def append() -> tuple[Appended, Cancelled | None]:
            if due_ms is None:
                return self._store.append(message), None
            if props.TIMER_DEL_UNIQKEY in message.properties:
                return append_cancel(self._store, self._timer, self._generations, message)
            appended = self._store.append(message, real_queue=self._store.real_queue(message.properties))
            if message.topic == names.TIMER_TOPIC:
                self._timer.congestion.add(due_ms, self._store.log.last_store_ms)
            return appended, None

        return self._run(append)

    def _parked_due_ms(self, message: Message, asked_ms: Millis | None = None) -> Millis | None:
        """Rewrite `message` if it has a delay. Return its due time, or None. Raises PeerError, PutFailed."""
        now_ms, last_store_ms = self._clock.now_ms(), self._store.log.last_store_ms
        try:
            due_ms = park(message, now_ms, self._park_settings, last_store_ms, asked_ms)
        except LevelUnreadable as error:
            raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except TimersOff:
            raise PutFailed(PutStatus.WHEEL_TIMER_NOT_ENABLE) from None
        except ParkRejected as error:
            raise PutFailed(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, error) from None
        if due_ms is not None:
            self._check_room(message, release_growth_bytes(message))
        return due_ms

    def _check_room(self, message: Message, growth_bytes: int) -> None:
        """Check that each record that `message` becomes later fits into a log file. Raises PutFailed."""
        try:
            self._store.check_room(message, growth_bytes)
        except RecordTooLong as error:
            raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None

    def _is_rejected_by_its_slot(self, message: Message, due_ms: Millis) -> bool:
        """Return whether the slot of the parked `message` is too full. A cancel makes room, and a level is no timer."""
        if message.topic != names.TIMER_TOPIC or props.TIMER_DEL_UNIQKEY in message.properties:
            return False
        return self._timer.congestion.rejects(due_ms, self._randomness)

    @_timed
    def put_in_block(self, message: Message, due_ms: Millis) -> Put:
        """Store `message` in the block of its due time. Raises PutFailed."""
        self._admit(message)
        try:
            park_in_block(message, due_ms)
        except ParkRejected as error:
            raise PutFailed(PutStatus.MESSAGE_ILLEGAL, error) from None
        self._check_room(message, release_growth_bytes(message))
        return self._run(lambda: self._block_intake.put(message, due_ms))

    @_timed
    def put_half(self, half: Message) -> Appended:
        """Store a half message, and ignore its delay. Raises PutFailed."""
        self._admit(half)
        if not has_room(half):
            raise PutFailed(
                PutStatus.PROPERTIES_SIZE_EXCEEDED,
                "the properties of a half message leave no room for those that the broker adds",
            )
        self._check_room(half, half_growth_bytes(half, ROOM_BYTES))
        return self._run(lambda: self._transactions.prepare(half))

    def check_delay(self, message: Message, half: Message) -> None:
        """Reject a `message` that its commit could not park: `half` has grown by then. Raises PeerError, PutFailed."""
        asked = str(self._settings.transactions.check_max)
        properties = {**half.properties, props.TRANSACTION_CHECK_TIMES: asked}
        sys_flag = message.sys_flag & ~SYS_TRANSACTION
        self._parked_due_ms(msgspec.structs.replace(message, sys_flag=sys_flag, properties=properties))

    @_timed
    def put_batch(self, messages: list[Message]) -> list[Appended]:
        """Store `messages`, of which none has a delay: all or none. Raises PutFailed."""
        for message in messages:
            self._admit(message)

        def append() -> list[Appended]:
            self._store.reserve(messages)
            return [self._store.append(message) for message in messages]

        return self._run(append)

    @_timed
    def put_marked(self, messages: list[Message], mark: Message) -> Appended:
        """Store `mark`, and directly after it `messages`, of which each may have a delay: all or none.

        Returns the place of the last one. Raises PeerError, PutFailed.
        """
        dues_ms = []
        for message in messages:
            self._admit(message)
            due_ms = self._parked_due_ms(message)
            if due_ms is not None and self._is_rejected_by_its_slot(message, due_ms):
                raise PutFailed(PutStatus.WHEEL_TIMER_FLOW_CONTROL)
            dues_ms.append(due_ms)

        def append() -> Appended:
            self._store.reserve([mark, *messages])
            appended = self._store.append(mark)
            reach("batch.marked")
            for message, due_ms in zip(messages, dues_ms, strict=True):
                real_queue = -1 if due_ms is None else self._store.real_queue(message.properties)
                appended = self._store.append(message, real_queue=real_queue)
                reach("batch.appended")
                if due_ms is not None and message.topic == names.TIMER_TOPIC:
                    self._timer.congestion.add(due_ms, self._store.log.last_store_ms)
            return appended

        return self._run(append)

    @_timed
    def put_measured(self, rows: MeasuredRows, mark: Message) -> LogPosition:
        """Store `mark`, and directly after it `rows`, of which none has a delay: all or none.

        Returns the position after the last one. Raises PutFailed.
        """
        self._admission.check_put()

        def append() -> LogPosition:
            self._store.reserve([mark], more_bytes=rows.record_bytes)
            rows.open_queues()
            self._store.append(mark)
            reach("batch.marked")
            rows.append()
            return self._store.log.end

        return self._run(append)

    def check_marked(self, message: Message) -> None:
        """Check that `put_marked` will accept `message`, which this call changes. Raises PeerError, PutFailed."""
        self._admit(message)
        self._parked_due_ms(message)
        self._check_room(message, MARK_ROOM_BYTES)

    def _run(self, append: Callable[[], A]) -> A:
        """Append, and return the result. Raises PutFailed with the status that Apache RocketMQ answers."""
        begin_s = self._clock.monotonic()
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
            self._health.reject_sends(rejection)
            raise PutFailed(PutStatus.CREATE_MAPPED_FILE_FAILED, rejection) from None
        except Exception:
            log.exception("the broker could not store a message")
            raise PutFailed(PutStatus.UNKNOWN_ERROR) from None
        finally:
            self._put_times.note_append(self._clock.monotonic() - begin_s)

    def _admit(self, message: Message) -> None:
        self._admission.check_put()
        if any("\0" in text for pair in message.properties.items() for text in pair):
            raise PutFailed(PutStatus.MESSAGE_ILLEGAL, "a property holds a NUL")
        for name in props.OWN:
            message.properties.pop(name, None)

    def waits(self, request: Request, message: Message) -> bool:
        """Return whether the sender of `message` waits for disk or replicas, by the settings and the message's WAIT."""
        if request.command.is_oneway or not self._durability.is_sync:
            return False
        return java_boolean(message.properties.get(props.WAIT, "true"))

    def answer_when_stored(
        self,
        request: Request,
        message: Message,
        answer: Command,
        end: LogPosition,
        *,
        late: Command | None = None,
    ) -> Answer:
        """Return `answer` now, or once the log up to `end` is safe if the sender waits for that.

        `late` is the answer if that takes too long. Without it, `answer` gets the code that says so.
        """
        return self._durability.defer(answer, end, late) if self.waits(request, message) else answer

    def answer_when_in_block(self, answer: Command, put: Put) -> Answer:
        """Return `answer` once a message that was put into a block is safe."""
        return self._durability.defer_for_blocks(answer, put, self._blocks.end)


def check_writable(settings: BrokerSettings) -> None:
    if not settings.broker.permission & PERM_WRITE:
        raise PeerError(ResponseCode.NO_PERMISSION, f"the broker[{settings.broker.ip}] sending message is forbidden")


def recall_handle(broker_name: str, message: Message) -> str | None:
    """Return the handle with which a client recalls a timer (RocketMQ: RecallMessageHandle), or None for others.

    The message is stored already, so this must not fail: a sender may have set its properties to anything.
    """
    out_ms = java_long(message.properties.get(props.TIMER_OUT_MS, ""))
    topic = message.properties.get(props.REAL_TOPIC)
    is_parked = message.topic == TIMER_TOPIC
    if not is_parked or out_ms is None or topic is None or topic.startswith(names.RETRY_PREFIX):
        return None
    parts = ("v1", topic, broker_name, str(out_ms + 1), message.properties[props.UNIQ_KEY])
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
