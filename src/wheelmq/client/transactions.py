"""The transaction producer: delivery only if a local transaction succeeds (RocketMQ: TransactionMQProducer).

The broker keeps a half message until the producer ends the transaction. Without an end, the broker asks any producer of
the same group. So `check` must find the outcome in a place that all of them share: a database, not a variable.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from wheelmq.client.callbacks import Callbacks
from wheelmq.client.message import MessageError, ReceivedMessage, received
from wheelmq.client.outgoing import MessageOptions, OutgoingMessage
from wheelmq.client.producer import Parcel, Producer, ProducerSettings
from wheelmq.client.results import SendResult, SendStatus, TransactionResult, TransactionState
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError, decode_record
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.client_calls import CheckTransactionHeader
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import Clock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)

CHECKS: Final = 4
"""Maximum number of concurrent checks by plain functions."""
HALF: Final = 0x4
"""Bit of the system flag that marks a half message."""
_ENDS: Final = {TransactionState.COMMIT: 8, TransactionState.ROLLBACK: 12, TransactionState.UNKNOWN: 0}

Execute = Callable[[SendResult], TransactionState | Awaitable[TransactionState]]
"""Runs the local transaction after the half message is stored."""
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""Returns the state of the local transaction of a message."""


class TransactionProducer(Producer):
    """A producer with transactions. `check` returns the state of a transaction whose end the broker has not received.

    No other kind of producer may use its group (in the settings), because the broker asks any member of it. `start`
    registers the group at every broker, so brokers ask about transactions that an earlier run left open.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(namesrv, settings, tls=tls, clock=clock)
        self._check = check
        self._callbacks = Callbacks(CHECKS)

    async def start(self) -> None:
        """Start the keep-alive task and answer checks. Without a name server, brokers learn of the group later."""
        await super().start()
        try:
            await self._session.greet_everywhere()
        except (CallError, Refused) as error:
            log.warning(
                "the first heartbeat of the producers of %s failed and is retried: %s", self.settings.group, error
            )

    async def stop(self) -> None:
        """Unregister from the brokers. They ask other producers of the group about open transactions."""
        await super().stop()
        self._callbacks.close()

    async def send_in_transaction(
        self, topic: str, body: bytes | str, execute: Execute, **options: Unpack[MessageOptions]
    ) -> TransactionResult:
        """Store a half message, run `execute`, and commit or roll back the message by its result.

        An exception of `execute` is logged and counts as UNKNOWN: the broker will ask `check`. If the half message is
        not safely stored, it is rolled back. Then, and after an error as of `send`, `execute` does not run.
        """
        message = OutgoingMessage(body=body, **options)
        own = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: self.settings.group}
        parcel = self._pack(topic, message, own)
        parcel.header.sys_flag |= HALF
        sent = self._result(parcel, *await self._deliver(parcel))
        state = TransactionState.ROLLBACK
        if sent.status is SendStatus.OK:
            state = await self._executed(execute, sent)
        await self._end(parcel, sent, state)
        return TransactionResult(sent=sent, state=state)

    async def _executed(self, execute: Execute, sent: SendResult) -> TransactionState:
        try:
            return TransactionState(await self._callbacks.call(execute, sent))
        except Exception:
            log.exception("the local transaction of %s failed; a broker will check it", sent.unique_key)
            return TransactionState.UNKNOWN

    async def _end(self, parcel: Parcel, sent: SendResult, state: TransactionState) -> None:
        """Send the end of the transaction to the broker. If it is lost, the broker asks `check`."""
        _, position = parse_offset_message_id(sent.message_id)
        header = headers.EndTransactionHeader(
            position=position,
            queue_offset=sent.queue_offset,
            commit_or_rollback=_ENDS[state],
            producer_group=self.settings.group,
            topic=parcel.header.topic,
            msg_id=sent.unique_key,
            transaction_id=sent.transaction_id or sent.unique_key,
            bname=sent.queue.broker_name,
        )
        request = Command(code=RequestCode.END_TRANSACTION, ext=headers.write(header))
        try:
            await self._session.caller(sent.queue.broker_name).send_oneway(request, self._timeout_s)
        except CallError as error:
            log.warning("the end of transaction %s could not be sent: %s", sent.unique_key, error)

    def _asked(self, address: str, request: Command) -> Command | Awaitable[Command | None] | None:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._checked_for(address, request)
        return super()._asked(address, request)

    async def _checked_for(self, address: str, request: Command) -> None:
        """Send the result of `check` to the broker at `address`, in a oneway request as the protocol requires."""
        asked = headers.read(request.ext, CheckTransactionHeader)
        state = TransactionState.UNKNOWN
        unique_key = asked.msg_id or ""
        try:
            message = received(decode_record(request.body), asked.bname or "", self._clock.now_ms())
            if message.properties.get(props.PRODUCER_GROUP) != self.settings.group:
                log.warning("the check of %s is for another producer group", unique_key)
                return
            unique_key = message.unique_key or unique_key
            state = TransactionState(await self._callbacks.call(self._check, message))
        except (RecordError, MessageError) as error:
            log.error("the check of transaction %s cannot be decoded: %s", unique_key, error)
        except Exception:
            log.exception("the check of transaction %s failed; a broker will check it again", unique_key)
        header = headers.EndTransactionHeader(
            position=asked.position,
            queue_offset=asked.queue_offset,
            commit_or_rollback=_ENDS[state],
            producer_group=self.settings.group,
            from_transaction_check=True,
            topic=asked.topic,
            msg_id=unique_key,
            transaction_id=asked.transaction_id,
            bname=asked.bname,
        )
        end = Command(code=RequestCode.END_TRANSACTION, ext=headers.write(header))
        await self._session.connections.to(address).send_oneway(end, self._timeout_s)
