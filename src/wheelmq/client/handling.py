"""Calls the callback of a message, and sends failed messages back to the broker (RocketMQ: ConsumeMessageService)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from wheelmq.client.callbacks import Callbacks, is_plain
from wheelmq.client.consumer_settings import Callback, Consumed, ConsumerSettings, Later
from wheelmq.client.group import text
from wheelmq.client.message import MessageError, received
from wheelmq.client.session import Session
from wheelmq.client.share import Taken
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.backports import is_cancelled, timeout

log = logging.getLogger(__name__)

RECONSUME_TIMES_MAX: Final = 16
TO_DEAD_LETTERS: Final = -1


class Verdict(NamedTuple):
    later: Later | None
    """None: the message is consumed."""
    name: str
    """The name of the result in Apache RocketMQ (CMResult)."""
    problem: str = ""


class Handling:
    def __init__(
        self,
        group: str,
        session: Session,
        settings: ConsumerSettings,
        callbacks: Mapping[str, Callback],
    ) -> None:
        self._group = group
        self._session = session
        self._settings = settings
        self._by_topic = callbacks
        self._callbacks = Callbacks(settings.concurrency)

    def close(self) -> None:
        self._callbacks.close()

    async def handle(self, queue: QueueName, taken: Taken, more_times: int = 0) -> Verdict:
        """Call the topic's callback after `more_times` attempts by this member. Raises only if it is cancelled."""
        record = taken.record
        where = f"{text(queue)}@{record.queue_offset}"
        try:
            message = received(record, queue.broker_name, taken.received_ms)
            message = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + more_times)
            callback = self._by_topic.get(message.topic)
            if callback is None:
                log.warning(
                    "group %s: this consumer has no callback for topic %s of a retried message",
                    self._group,
                    message.topic,
                )
                return Verdict(Later(), "CR_LATER", f"no callback for topic {message.topic}")
            await self._callbacks.room(callback)
            async with timeout(self._timeout_s(callback)):
                outcome = await self._callbacks.call(callback, message)
        except MessageError as error:
            log.error("group %s: %s: %s", self._group, where, error)
            return Verdict(Later(), "CR_THROW_EXCEPTION", str(error))
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if is_cancelled(task):  # the consumer ends
                raise
            log.exception("group %s: the callback failed on %s", self._group, where)
            return Verdict(Later(), "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}")
        return self._verdict(outcome, where)

    def _timeout_s(self, callback: Callback) -> float | None:
        """Return the timeout of a callback; None for a plain function of an orderly consumer.

        Its thread is waited for: an abandoned one would run at the same time as the next message of its queue.
        """
        return None if self._settings.orderly and is_plain(callback) else self._settings.consume_timeout_ms / 1000

    def _verdict(self, outcome: object, where: str) -> Verdict:
        """Return the verdict for a callback's result. An unknown result, such as False, is a failure."""
        if outcome is None or outcome is Consumed.DONE:
            return Verdict(None, "CR_SUCCESS")
        if isinstance(outcome, Later):
            return Verdict(outcome, "CR_LATER")
        if outcome is Consumed.LATER:
            return Verdict(Later(), "CR_LATER")
        problem = f"the callback returned {outcome!r}: None or Consumed.DONE mean that it is done"
        log.error("group %s: %s is delivered again: %s", self._group, where, problem)
        return Verdict(Later(), "CR_THROW_EXCEPTION", problem)

    async def send_back(self, queue: QueueName, record: Record, delay_level: int) -> bool:
        """Send a message back to the broker, for later or for the dead letters. Returns False if this fails."""
        times_max = self._settings.reconsume_times_max
        header = headers.SendBackHeader(
            offset=record.position,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=offset_message_id(record.store_host, record.position),
            origin_topic=record.message.topic,
            max_reconsume_times=RECONSUME_TIMES_MAX if times_max is None else times_max,
        )
        try:
            request = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=headers.write(header))
            await self._session.caller(queue.broker_name).ask(request, self._session.timeout_s)
            return True
        except (CallError, Refused) as error:
            log.warning("group %s: sending back %s@%d failed: %s", self._group, text(queue), header.offset, error)
            return False
