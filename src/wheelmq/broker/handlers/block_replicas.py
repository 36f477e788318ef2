"""The requests by which a replica copies the blocks."""

from __future__ import annotations

import logging
from typing import Any, Final

from wheelmq.broker.answers import Answer, PeerError, reply, run_on_worker
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.replication.block_source import BlockSession, HeldPart
from wheelmq.broker.replication.replication import Replication
from wheelmq.broker.request import Request
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.block_replication import (
    BLOCK_VERDICT,
    BlockBytesWrong,
    pack_all,
    read_places,
    read_progress,
)
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BlocksHeader, ReadBlocksHeader

log = logging.getLogger(__name__)

BYTES_MAX: Final = 4 << 20
"""Maximum bytes of records in an answer, if no single record is longer."""
INLINE_BYTES: Final = 64 << 10
"""An answer with more bytes of records is read by a worker. Old records may come from a cold disk."""
WAIT_MS_MAX: Final = 30_000

HANDLERS: Final[HandlerTable[[Context, Replication]]] = HandlerTable()


@HANDLERS.serves(RequestCode.WMQ_CHECK_BLOCKS)
def check_blocks(request: Request, context: Context, replication: Replication) -> Answer:
    """Return how far blocks of a replica agree with those of this master."""
    _check_master(context, replication)
    try:
        places = read_places(request.body)
    except BlockBytesWrong as error:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    head = _head(context, replication)

    def make(result: Any) -> Command:
        if isinstance(result, Exception):
            return _failed("check of blocks", result)
        return _answer(head, pack_all(BLOCK_VERDICT, result))

    answer = run_on_worker(context.workers.reading, replication.block_source.check_job(places), make)
    return context.holds.with_deadline(request, answer, context.settings.requests.response_timeout_ms, _late)


@HANDLERS.serves(RequestCode.WMQ_READ_BLOCKS)
def read_blocks(request: Request, context: Context, replication: Replication) -> Answer:
    """Take the progress of a replica. Return the next units and records of blocks, and wait if there are none."""
    _check_master(context, replication)
    header, source = request.header(ReadBlocksHeader), replication.block_source
    if header.epoch != replication.epoch:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            f"the blocks were checked in epoch {header.epoch}, and it is {replication.epoch} now: check them again",
        )
    if header.session:
        session = source.find(request.connection, header.session)
    else:
        session = source.open(request.connection, header.replica_id)
    try:
        progress = read_progress(request.body)
    except BlockBytesWrong as error:
        raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if session is None or not source.take_progress(session, progress, is_complete=header.is_complete):
        raise PeerError(ResponseCode.INVALID_PARAMETER, "the blocks of the replica must be checked again")
    for number, _ in progress:
        replication.block_acks.free(number)
    if not header.is_complete:
        return _answer(_head(context, replication, session), b"")  # the next request brings the rest
    bytes_max = min(header.bytes_max, BYTES_MAX)
    answer = _parts(request, context, replication, session, bytes_max)
    if answer is None and not header.session:
        return _answer(_head(context, replication, session), b"")  # the replica learns its session at once
    silence_ms_max = context.settings.replication.silence_ms_max  # a replica whose request is held says nothing
    timeout_ms = min(header.timeout_ms, WAIT_MS_MAX, silence_ms_max)
    return answer or _wait(request, context, replication, session, min(bytes_max, INLINE_BYTES), timeout_ms)


def _parts(
    request: Request, context: Context, replication: Replication, session: BlockSession, bytes_max: int
) -> Answer:
    """Return an answer with the next parts, or None without any. A worker reads a long one."""
    head = _head(context, replication, session)
    parts = replication.block_source.next_parts(session, bytes_max)
    if sum(one.size for one in parts) <= INLINE_BYTES:
        return _answer(head, _joined(parts)) if parts else None

    def make(result: Any) -> Command:
        if isinstance(result, Exception):
            replication.block_source.lose(session.connection)  # these parts are not sent again
            return _failed("read of blocks", result)
        return _answer(head, result)

    answer = run_on_worker(context.workers.reading, lambda: _joined(parts), make)
    return context.holds.with_deadline(request, answer, context.settings.requests.response_timeout_ms, _late)


def _wait(
    request: Request,
    context: Context,
    replication: Replication,
    session: BlockSession,
    bytes_max: int,
    timeout_ms: int,
) -> Answer:
    """Hold the request until there are new messages."""

    def attempt(last: bool) -> Command | None:
        head = _head(context, replication, session)
        parts = replication.block_source.next_parts(session, bytes_max)
        return _answer(head, _joined(parts)) if parts or last else None

    return context.holds.wait(request, session, timeout_ms, attempt)


def _check_master(context: Context, replication: Replication) -> None:
    if not context.role.is_master and replication.successor is None:
        raise PeerError(ResponseCode.SLAVE_NOT_AVAILABLE, context.role.slave_text)


def _head(context: Context, replication: Replication, session: BlockSession | None = None) -> dict[str, str]:
    return headers.write(
        BlocksHeader(
            epoch=replication.epoch,
            log_end=LogPosition(context.store.log.end),
            file_bytes=context.settings.blocks.log_file_bytes,
            session=0 if session is None else session.id,
        )
    )


def _answer(head: dict[str, str], body: bytes) -> Command:
    answer = reply(body=body)
    answer.ext = head
    return answer


def _joined(parts: list[HeldPart]) -> bytes:
    return b"".join(one.read() for one in parts)


def _failed(work: str, error: Exception) -> Command:
    log.error("the %s failed", work, exc_info=error)
    return reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def _late() -> Command:
    return reply(ResponseCode.SYSTEM_BUSY, "the disk did not return the blocks in time")
