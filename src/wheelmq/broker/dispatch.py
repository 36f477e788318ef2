"""Pass a frame to its handler, and the answer back (RocketMQ: NettyRemotingAbstract).

A handler returns an answer, a deferred answer, or None (no answer). Only this module turns the exceptions of handlers
into answers. A oneway request is never answered. The overload guard runs before a request, hooks before and after it.
The access control checks it right before its handler.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

from wheelmq.broker.access import AccessControl
from wheelmq.broker.admission.failed_puts import FailedPuts
from wheelmq.broker.admission.overload import OverloadGuard
from wheelmq.broker.admission.put_status import PutFailed
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.admission.unsupported_codes import REASONS
from wheelmq.broker.answers import Answer, Deferred, Given, Known, PeerError, when_known
from wheelmq.broker.calls import Calls
from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.handler_table import BoundHandler
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.request import Request
from wheelmq.broker.turns.rejections import turn_rejection
from wheelmq.delay.timer.turns import LeaseHeld, Stale, TurnRejected
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.command_text import command_text
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import HeaderError
from wheelmq.store.store import DiskFull
from wheelmq.system.clock import Clock
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)


class Dispatch:
    def __init__(
        self,
        handlers: dict[int, BoundHandler],
        *,
        clock: Clock,
        calls: Calls,
        hooks: Hooks,
        overload: OverloadGuard,
        health: StoreHealth,
        failed_puts: FailedPuts,
        access: AccessControl,
        counts: Counter[str],
    ) -> None:
        self.handlers = handlers
        """By request code."""
        self.default_processor = BoundHandler(self._not_supported, ())
        self.counts = counts
        self._calls, self._hooks, self._overload, self._access = calls, hooks, overload, access
        self._health, self._failed_puts = health, failed_puts
        self._log = RateLimitedLog(log, clock.monotonic)

    def take(self, connection: Connection, command: Command) -> None:
        if command.is_response:
            self._calls.answered(connection, command)
            return
        connection.last_request = command.code, command.opaque
        rejection = self._overload.rejection(connection, command.code)
        if rejection is not None:
            self.counts[rejection.kind] += 1
            if not command.is_oneway:
                self.answer(connection, command.opaque, Command(code=ResponseCode.SYSTEM_BUSY, remark=rejection.remark))
            return
        request = Request(command, connection)
        answer = self._serve_with_hooks(request) if self._hooks.rpc else self._serve(request)
        if not command.is_oneway:
            self._deliver(connection, command.code, command.opaque, answer)

    def _deliver(self, connection: Connection, code: int, opaque: int, given: Given) -> None:
        """Answer the request `opaque`, now or as soon as possible. A deferred answer keeps only its code."""
        if isinstance(given, Deferred):
            given.when_given(partial(self._deliver, connection, code, opaque))
        elif isinstance(given, Exception):
            self.answer(connection, opaque, self._answer_to(connection, code, given))
        elif given is not None:
            self.answer(connection, opaque, given)

    def answer(self, connection: Connection, opaque: int, answer: Command) -> None:
        connection.send(encode_answer(opaque, answer))

    def _serve(self, request: Request) -> Answer:
        code = request.command.code
        handler = self.handlers.get(code, self.default_processor)
        given: Given
        try:
            if self._access.concerns(code):
                given = self._access.serve(request, partial(handler.handle, request, *handler.parts))
            else:
                given = handler.handle(request, *handler.parts)
        except Exception as error:
            given = error
        return self._finish(request, given)

    def _not_supported(self, request: Request) -> Answer:
        code = request.command.code
        self.counts["unsupported"] += 1
        return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=_unsupported(code))

    def _finish(self, request: Request, given: Given) -> Answer:
        """Return the answer, or the answer to an exception, and count it once it is known or accepted."""
        if isinstance(given, Deferred) and not given.is_accepted:
            return given.then(partial(self._finish, request))
        if isinstance(given, Exception):
            self.counts["failed"] += 1
            return self._answer_to(request.connection, request.command, given)
        if request.command.code in self.handlers:
            self.counts["served"] += 1
        return given

    def _serve_with_hooks(self, request: Request) -> Answer:
        """Serve a request between the RPC hooks. An exception of a hook becomes the answer that other hooks get."""
        connection, command, hooks = request.connection, request.command, self._hooks.rpc
        address = peer_text(connection)

        def after(known: Known) -> Command | None:
            answer = self._answer_to(connection, command, known) if isinstance(known, Exception) else known
            for hook in hooks:
                try:
                    hook.after_response(address, command, answer)
                except Exception as error:
                    answer = self._answer_to(connection, command, error)
            return answer

        try:
            for hook in hooks:
                hook.before_request(address, command)
        except Exception as error:
            return after(error)
        return when_known(self._serve(request), after)

    def _answer_to(self, connection: Connection, asked: Command | int, error: Exception) -> Command:
        """Return the answer to an exception. `asked` is the request, or only the code of a held one, to save memory."""
        match error:
            case PutFailed():
                return self._answer_of_put(connection, asked, error)
            case PeerError():
                return Command(code=error.code, remark=error.remark, ext=error.ext)
            case LeaseHeld() | Stale() | TurnRejected():
                return turn_rejection(error)
            case HeaderError() | BodyError():
                return Command(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
            case DiskFull():
                self._health.reject_sends(f"the disk is full: {error.strerror}")
                remark = "service not available now: the disk is full"
                return Command(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
        name = type(error).__name__
        text = "%s from %s failed"
        self._log.log(logging.ERROR, name, text, _text(asked), peer_text(connection), traceback=error)
        return Command(code=ResponseCode.SYSTEM_ERROR, remark=f"{name}: {error}"[:1024])

    def _answer_of_put(self, connection: Connection, asked: Command | int, failed: PutFailed) -> Command:
        try:
            return self._failed_puts.answer(failed)
        except OSError as error:
            return self._answer_to(connection, asked, error)


def _text(asked: Command | int) -> str:
    return f"held request with code={asked}" if isinstance(asked, int) else f"request {command_text(asked)}"


def _unsupported(code: int) -> str:
    remark = f" request type {code} not supported"
    reason = REASONS.get(code)
    return remark if reason is None else f"{remark}: {reason}"


def encode_answer(opaque: int, answer: Command) -> bytes:
    answer.opaque = opaque
    answer.flag |= frame.FLAG_RESPONSE
    return frame.encode(answer)
