"""The producer of transactions: a message that counts when what it tells of has happened (RocketMQ:
TransactionMQProducer).

The broker keeps a half message until the producer ends the transaction. Of one that it hears nothing of it asks a
producer of the same group, any, so `check` must find out from what all of them share: a database, not a variable.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Unpack

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

log = logging.getLogger(__name__)

CHECKS: Final = 4
"""Checks of plain functions that run at once."""
HALF: Final = 0x4
"""Bit of the system flag: the message is a half one."""
_ENDS: Final = {TransactionState.COMMIT: 8, TransactionState.ROLLBACK: 12, TransactionState.UNKNOWN: 0}

Execute = Callable[[SendResult], TransactionState | Awaitable[TransactionState]]
"""The local transaction, once the half message is stored."""
Check = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
"""What became of the local transaction of a message."""


class TransactionProducer(Producer):
    """As Producer, for transactions: `check` answers for those whose end the broker has not heard of.

    Its group (in the settings) must be its own: the broker asks whoever is of it. `start` makes it known to every
    broker, so that it is asked for what an earlier run left open, whether it sends or not.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(namesrv, settings, clock=clock)
        self._check = check
        self._callbacks = Callbacks(CHECKS)

    async def start(self) -> None:
        """Begin to keep alive, and to answer for transactions. When no name server answers, that begins later."""
        await super().start()
        try:
            await self._session.greet_everywhere()
        except (CallError, Refused) as error:
            log.warning("no broker was told of the producers of %s; they will be: %s", self.settings.group, error)

    async def stop(self) -> None:
        """Leave the brokers; transactions that are not ended are asked of other producers of the group."""
        await super().stop()
        self._callbacks.close()

    async def send_in_transaction(
        self, topic: str, body: bytes, execute: Execute, **options: Unpack[MessageOptions]
    ) -> TransactionResult:
        """Store a message, run `execute`, and have the message delivered, or not, as that says.

        What `execute` raises is logged and counts as UNKNOWN: it may have happened, so the broker will ask `check`. A
        message that is not safely stored is rolled back, and `execute` does not run. Raises as `send`, and then
        nothing was executed.
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
            log.exception("the local transaction of %s failed; it will be asked for", sent.unique_key)
            return TransactionState.UNKNOWN

    async def _end(self, parcel: Parcel, sent: SendResult, state: TransactionState) -> None:
        """Tell the broker; if that does not reach it, it asks."""
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
            await self._session.caller(sent.queue.broker_name).tell(request, self._timeout_s)
        except CallError as error:
            log.warning("the end of transaction %s did not go out: %s", sent.unique_key, error)

    def _asked(self, address: str, request: Command) -> Command | Awaitable[Command | None] | None:
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._checked_for(address, request)
        return super()._asked(address, request)

    async def _checked_for(self, address: str, request: Command) -> None:
        """Answer the broker at `address`, in a oneway request of our own, as the protocol has it."""
        asked = headers.read(request.ext, CheckTransactionHeader)
        state = TransactionState.UNKNOWN
        unique_key = asked.msg_id or ""
        try:
            message = received(decode_record(request.body), asked.bname or "", self._clock.now_ms())
            if message.properties.get(props.PRODUCER_GROUP) != self.settings.group:
                log.warning("a check of %s is for another group of producers", unique_key)
                return
            unique_key = message.unique_key or unique_key
            state = TransactionState(await self._callbacks.call(self._check, message))
        except (RecordError, MessageError) as error:
            log.error("a check of transaction %s cannot be read: %s", unique_key, error)
        except Exception:
            log.exception("the check of transaction %s failed; it will be asked for again", unique_key)
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
        await self._session.connections.to(address).tell(end, self._timeout_s)
