"""END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE (RocketMQ: EndTransactionProcessor, AdminBrokerProcessor)."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable, serves
from wheelmq.broker.request import Request
from wheelmq.broker.transactions import halves
from wheelmq.broker.transactions.transactions import COMMIT, ROLLBACK, Transactions
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.message_id import parse_offset_message_id
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import EndTransactionHeader, ResumeCheckHeader
from wheelmq.system.failpoint import reach

UNKNOWN: Final = 0
_REMARKS: Final = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: "Create mapped file failed.",
    PutStatus.SERVICE_NOT_AVAILABLE: "Service not available now.",
    PutStatus.OS_PAGE_CACHE_BUSY: "OS page cache busy, please try another machine",
}
"""Remarks of Apache's broker that differ from those of a send."""

HANDLERS: Final[HandlerTable[[Context, Transactions]]] = HandlerTable()


@HANDLERS.serves(RequestCode.END_TRANSACTION)
def end_transaction(request: Request, context: Context, transactions: Transactions) -> Answer:
    """Commit a half message to its real topic, or roll it back. An unknown outcome gets no answer."""
    header = request.header(EndTransactionHeader)
    outcome = header.commit_or_rollback
    if outcome not in (UNKNOWN, COMMIT, ROLLBACK):
        raise PeerError(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    if not context.role.is_master:
        raise PeerError(ResponseCode.SLAVE_NOT_AVAILABLE, "the broker is a slave: only the master ends transactions")
    if outcome == UNKNOWN:
        return None
    half = _half(context, header)
    pending = transactions.find(half)
    if pending is None and transactions.has_ended_as(half, outcome):
        return reply()
    if pending is None:
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "The transaction has ended already")
    if outcome == ROLLBACK:
        transactions.end(pending, outcome)
        return reply()
    return _commit(request, context, transactions, pending)


def _half(context: Context, header: EndTransactionHeader) -> Record:
    """Return the half message of a request. Raises PeerError if there is none or it has another producer group."""
    half = context.store.log.record_at(LogPosition(header.position))
    if half is None or half.message.topic != names.HALF_TOPIC:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    time_out_ms = context.settings.transactions.time_out_ms
    if not header.from_transaction_check and halves.is_too_late(half.message, context.clock.now_ms(), time_out_ms):
        remark = "The transaction timed out: its producer must wait for a check and answer it"
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, remark)
    group = half.message.properties.get(props.PRODUCER_GROUP)
    if group is None or group != header.producer_group:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.queue_offset:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if not _names(header, half):
        remark = "The transaction is another one: a failover removed the half message that the request names"
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, remark)
    return half


def _names(header: EndTransactionHeader, half: Record) -> bool:
    """Return whether a request names the half message at its place, or no message.

    After a failover, another half message can have the place of one that the former master alone had. Clients name it
    by its unique key. An offset message id names the place again.
    """
    key = half.message.properties.get(props.UNIQ_KEY)
    named = {name for name in (header.msg_id, header.transaction_id) if name}
    return key is None or not named or key in named or any(_is_offset_id(name, half.position) for name in named)


def _is_offset_id(name: str, position: LogPosition) -> bool:
    try:
        return parse_offset_message_id(name)[1] == position
    except ValueError:
        return False


def _commit(request: Request, context: Context, transactions: Transactions, half: Record) -> Answer:
    try:
        message = halves.committed(half)
        appended, _ = context.puts.put(message)
    except halves.Unending as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    except PutFailed as failed:
        code = ResponseCode.SYSTEM_ERROR if failed.status is PutStatus.OS_PAGE_CACHE_BUSY else failed.code
        remark = _REMARKS.get(failed.status)
        raise PutFailed(failed.status, failed.detail, code=code, remark=remark) from None
    reach("transaction.committed")
    transactions.end(half, COMMIT)
    end = LogPosition(appended.position + appended.size)
    return context.puts.answer_when_stored(request, message, reply(), end, late=reply())


@serves(RequestCode.RESUME_CHECK_HALF_MESSAGE)
def resume_check(request: Request, context: Context) -> Answer:
    """Check an expired transaction again, by the id of its message (an administrator's command)."""
    try:
        _, position = parse_offset_message_id(request.header(ResumeCheckHeader).msg_id)
    except ValueError as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    record = context.store.log.record_at(position)
    if record is None or record.message.topic != names.CHECK_MAX_TIME_TOPIC:
        remark = f"no message of {names.CHECK_MAX_TIME_TOPIC} has this id: use the id of a message in this topic"
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
    context.puts.put_half(halves.resumed(record))
    return reply()
