"""The pipeline's requests: open a lease, get a plan, upload rows, commit a turn (docs/formats/turns.md)."""

from __future__ import annotations

from typing import Final

import msgspec

from wheelmq.broker.access import AccessControl
from wheelmq.broker.answers import Answer, Deferred, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.request import Request
from wheelmq.broker.store_sizes import store_sizes
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.broker.turns.rejections import turn_rejection
from wheelmq.delay.timer.turns import Holder, Part, Stale
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PipelineHeader, TurnHeader, UploadHeader

PLAN_WAIT_MS_MAX = 1000

HANDLERS: Final[HandlerTable[[Context, TurnCoordinator]]] = HandlerTable()
OPENING: Final[HandlerTable[[Context, TurnCoordinator, AccessControl]]] = HandlerTable()


@OPENING.serves(RequestCode.WMQ_PIPELINE_OPEN)
def open_lease(request: Request, context: Context, coordinator: TurnCoordinator, access: AccessControl) -> Answer:
    """Grant a lease. The answer has its token, and the data that tasks need to read the store."""
    header = request.header(PipelineHeader)
    holder = Holder(header.name, header.holder_id, peer_text(request.connection))
    granted = Deferred()

    def terms(lease: tuple[int, str]) -> Command:
        epoch, token = lease
        return reply(body=msgspec.json.encode(_terms(context, epoch, token)))

    opened = granted.callback(terms)
    coordinator.open(holder, access.pipeline_check(request.connection), lambda epoch, token: opened((epoch, token)))

    def late() -> Command:
        return reply(ResponseCode.SYSTEM_ERROR, "the flush of the new epoch did not end in time")

    return context.holds.with_deadline(request, granted, context.settings.requests.response_timeout_ms, late)


def _terms(context: Context, epoch: int, token: str) -> dict[str, object]:
    settings = context.settings
    return {
        "epoch": epoch,
        "token": token,
        "broker": settings.broker.name,
        "store_path": str(settings.store.path.resolve()),
        "store_identity": context.store.disk.identity(context.store.paths.lock),
        **msgspec.structs.asdict(store_sizes(settings)),
        "precision_ms": settings.timer.precision_ms,
        "levels_ms": context.store.levels_ms,
        "roll_window_slots": settings.timer.roll_window_slots,
    }


@HANDLERS.serves(RequestCode.WMQ_PIPELINE_PLAN)
def next_plan(request: Request, context: Context, coordinator: TurnCoordinator) -> Answer:
    """Return the plan of the next turn. Without a reason for a turn, hold the request for at most a second."""
    header = request.header(TurnHeader)

    def attempt(last: bool) -> Command | None:
        try:
            coordinator.lease.check(header.epoch, header.token)
            plan = coordinator.next_plan(header.epoch)
        except Stale as stale:  # an answer like that of a turn without work: the request is served
            return turn_rejection(stale)
        if plan is not None:
            return reply(body=msgspec.json.encode(plan))
        return reply(ResponseCode.PULL_NOT_FOUND, "there is no work for a turn") if last else None

    timeout_ms = min(header.timeout_ms, PLAN_WAIT_MS_MAX)
    return attempt(False) or context.holds.wait(request, coordinator, timeout_ms, attempt)


@HANDLERS.serves(RequestCode.WMQ_PIPELINE_RENEW)
def renew(request: Request, context: Context, coordinator: TurnCoordinator) -> Answer:
    """Renew the lease. The answer says for how long its turns made no progress, because one may hang."""
    header = request.header(TurnHeader)
    coordinator.lease.check(header.epoch, header.token)
    coordinator.turns.renew(header.epoch, context.clock.monotonic_ms())
    return reply(quietMs=coordinator.lease.quiet_ms())


@HANDLERS.serves(RequestCode.WMQ_PIPELINE_UPLOAD)
def upload(request: Request, context: Context, coordinator: TurnCoordinator) -> Answer:
    """Receive one chunk of the rows of a task attempt."""
    header = request.header(UploadHeader)
    turns = coordinator.turns
    coordinator.lease.check(header.epoch, header.token)
    turns.renew(header.epoch, context.clock.monotonic_ms())
    key = (header.kind, header.part, header.attempt)
    turns.upload(header.epoch, header.turn, key, header.chunk, request.body)
    coordinator.lease.note_progress()
    return reply()


@HANDLERS.serves(RequestCode.WMQ_PIPELINE_COMMIT)
def commit(request: Request, context: Context, coordinator: TurnCoordinator) -> Answer:
    """Commit the turn with the task attempts that the body names."""
    header = request.header(TurnHeader)
    coordinator.lease.check(header.epoch, header.token)
    winners = bodies.read(request.body, list[Part])
    coordinator.commit(header.epoch, header.turn, winners)
    return reply(turn=coordinator.turns.turn)
