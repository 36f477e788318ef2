"""WMQ_PIPELINE_READ: portions of the store for tasks that cannot map it (formats.wire.portions).

A worker reads them over its own view, which lasts for one turn. A task of a turn that is over gets STALE.
"""

from __future__ import annotations

import logging
import zlib
from functools import partial
from typing import Any, Final

from wheelmq.broker.answers import Answer, PeerError, reply, run_on_worker
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.delay.timer.portions import OnDisk, Portion
from wheelmq.delay.timer.timer import Timer
from wheelmq.delay.timer.view import TIMER_QUEUE, StoreUnreadable, level_queue
from wheelmq.formats.disk.origin import stream_number
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PortionHeader, ReadHeader
from wheelmq.formats.wire.portions import FileKind, PortionError, read_ranges
from wheelmq.store.mapped import MappedSequence

log = logging.getLogger(__name__)
UNREADABLE = "UNREADABLE"

HANDLERS: Final[HandlerTable[[Context, Timer, TurnCoordinator]]] = HandlerTable()


@HANDLERS.serves(RequestCode.WMQ_PIPELINE_READ)
def read(request: Request, context: Context, timer: Timer, coordinator: TurnCoordinator) -> Answer:
    """Return ranges of the store's files: as many of the requested ones as fit into an answer."""
    header = request.header(ReadHeader)
    turns = timer.turns
    coordinator.lease.check(header.epoch, header.token)
    turns.renew(header.epoch, context.clock.monotonic_ms())
    plan = turns.under_way(header.epoch, header.turn)
    coordinator.lease.note_progress()
    try:
        kind, ranges = FileKind(header.kind), read_ranges(request.body)
        _check_name(timer, kind, header.name)
    except ValueError as error:
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, f"{UNREADABLE}: {error}") from None
    blocks = {name: units for _, name, units in plan.blocks.blocks} if plan.blocks is not None else {}
    on_disk = OnDisk(context.store.log.synced, plan.timer_log_end, blocks)
    turn = (plan.epoch, plan.turn)

    def job() -> Portion:
        return coordinator.reader.read(turn, kind, header.name, ranges, on_disk)

    def late() -> Command:
        return reply(ResponseCode.SYSTEM_BUSY, "the disk did not return the ranges in time")

    answer = run_on_worker(context.workers.reading, job, partial(_answer, context.store.log.files))
    return context.holds.with_deadline(request, answer, context.settings.requests.response_timeout_ms, late)


def _check_name(timer: Timer, kind: FileKind, name: str) -> None:
    """Check that a task may read the consume queue `name`, which becomes part of a path. Raises PortionError.

    Tasks read the timer queue and the queues of levels. The plan names the blocks (`OnDisk.blocks`).
    """
    levels = {level_queue(stream_number(level.stream)) for level in timer.pending.levels}
    if kind is FileKind.QUEUE and name != TIMER_QUEUE and name not in levels:
        raise PortionError(f"{name!r} is neither the timer queue nor a level's queue of this store")


def _answer(files: MappedSequence, result: Any) -> Command:
    match result:
        case Portion(body, covered):
            found = PortionHeader(count=covered, crc=zlib.crc32(body), log_start=files.start, log_end=files.end)
            answer = reply(body=body)
            answer.ext = headers.write(found)
            return answer
        case FileNotFoundError():
            return reply(ResponseCode.PULL_OFFSET_MOVED, str(result))
        case PortionError() | StoreUnreadable():
            return reply(ResponseCode.ILLEGAL_OPERATION, f"{UNREADABLE}: {result}")
    log.error("the read of a portion failed", exc_info=result)
    return reply(ResponseCode.SYSTEM_ERROR, f"{type(result).__name__}: {result}")
