"""Pass a frame to its handler, and the answer back (RocketMQ: NettyRemotingAbstract).

A handler is registered with the codes that it serves. The default processor serves all other codes. A handler returns
an answer, a hold, or None (no answer now). Only this module turns the exceptions of handlers into answers. A oneway
request is never answered. The overload guard may reject a request before it is served. Hooks run before and after it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from wheelmq.broker.admission.put_status import PutFailed
from wheelmq.broker.admission.unsupported_codes import REASONS
from wheelmq.broker.answers import Answer, Durable, DurableInBlock, Hold, LaterAnswer, PeerError
from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.holds import HOLDS_MAX, HOLDS_OF_ONE_MAX
from wheelmq.broker.request import Request
from wheelmq.delay.timer.turns import LeaseHeld, Stale, TurnRejected
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.bodies import BodyError
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.command_text import command_text
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import HeaderError
from wheelmq.store.store import DiskFull
from wheelmq.system.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

A = TypeVar("A")

Handler = Callable[[Request, "Broker"], Answer]

HANDLERS: dict[int, Handler] = {}

_TURN_ERRORS: Final = {
    LeaseHeld: (ResponseCode.NO_PERMISSION, "LEASE_HELD"),
    Stale: (ResponseCode.INVALID_PARAMETER, "STALE"),
    TurnRejected: (ResponseCode.ILLEGAL_OPERATION, "TURN_REFUSED"),
}
"""Code and first word of the answers that reject a request of the pipeline (docs/formats/turns.md)."""

_TOO_MANY_HELD: Final = (
    f"too many held requests: at most {HOLDS_OF_ONE_MAX} per connection and {HOLDS_MAX} in total. A pull by tags "
    "counts for each tag too. Try again later"
)


def serves(*codes: RequestCode) -> Callable[[Handler], Handler]:
    """Register a handler for `codes`."""

    def register(handler: Handler) -> Handler:
        for code in codes:
            assert code not in HANDLERS, code
            HANDLERS[code] = handler
        return handler

    return register


def not_supported(request: Request, broker: Broker) -> Answer:
    """The default processor: answer that no handler serves the code."""
    code = request.command.code
    broker.dispatch.counts["unsupported"] += 1
    return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=_unsupported(code))


class Dispatch:
    """Passes frames to handlers, and answers to connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = RateLimitedLog(log, broker.clock.monotonic)
        self.default_processor: Handler = not_supported
        """Serves the codes that no handler is registered for."""
        self.counts: Counter[str] = Counter()
        """Requests by outcome: `served`, `failed`, `unsupported` (served by the default processor), and those that
        the overload guard rejected: `rejected`, `overloaded`, `timed_out`."""

    def take(self, connection: Connection, command: Command) -> None:
        if command.is_response:
            self._broker.calls.answered(connection, command)
            return
        connection.last_request = command.code, command.opaque
        rejection = self._broker.overload.rejection(connection, command.code)
        if rejection is not None:
            self.counts[rejection.kind] += 1
            if not command.is_oneway:
                self.answer(connection, command.opaque, Command(code=ResponseCode.SYSTEM_BUSY, remark=rejection.remark))
            return
        serve = self._serve_with_hooks if self._broker.hooks.rpc else self._serve
        self._give(connection, command, serve(Request(command, connection)))

    def _give(self, connection: Connection, command: Command, answer: Answer) -> None:
        """Answer the request `command`, now or as soon as possible."""
        if isinstance(answer, LaterAnswer):
            answer.begin(lambda make: self._give(connection, command, self._try(connection, command, make)[0]))
        elif command.is_oneway or answer is None:
            return
        elif isinstance(answer, Hold):
            answer.again = self._guard_again(connection, command.code, answer.again)
            self._broker.holds.add(connection, command.opaque, answer, self._broker.clock.monotonic_ms())
        elif isinstance(answer, Durable):
            encoded = encode_answer(command.opaque, answer.reply)
            late = None if answer.late is None else encode_answer(command.opaque, answer.late)
            self._broker.flush.answer_when_durable(answer.position, connection, encoded, late)
        elif isinstance(answer, DurableInBlock):
            encoded = encode_answer(command.opaque, answer.reply)
            self._broker.flush.answer_when_blocks_are_durable(answer.put_count, connection, encoded)
        else:
            self.answer(connection, command.opaque, answer)

    def answer(self, connection: Connection, opaque: int, answer: Command) -> None:
        """Send an answer to the request `opaque`."""
        connection.send(encode_answer(opaque, answer))

    def _serve(self, request: Request) -> Answer:
        handler = HANDLERS.get(request.command.code, self.default_processor)
        return self._finish(request, lambda: handler(request, self._broker))

    def _finish(self, request: Request, make: Callable[[], Answer]) -> Answer:
        """Return the answer of `make`, or the answer to its exception, and count it.

        A LaterAnswer is counted once its answer is known. The answer is SYSTEM_BUSY if the request would be held and
        there is no room for it.
        """
        answer, failed = self._try(request.connection, request.command, make)
        if isinstance(answer, LaterAnswer):
            begin = answer.begin
            return LaterAnswer(lambda give: begin(lambda make: give(lambda: self._finish(request, make))))
        if isinstance(answer, Hold) and not self._broker.holds.has_room(request.connection, answer):
            answer, failed = Command(code=ResponseCode.SYSTEM_BUSY, remark=_TOO_MANY_HELD), True
        if request.command.code in HANDLERS or failed:
            self.counts["failed" if failed else "served"] += 1
        return answer

    def _serve_with_hooks(self, request: Request) -> Answer:
        """Serve a request between the RPC hooks.

        An exception of a hook becomes the answer that the other hooks get.
        """
        connection, command, hooks = request.connection, request.command, self._broker.hooks.rpc
        address = peer_text(connection)

        def before() -> None:
            for hook in hooks:
                hook.before_request(address, command)

        def after(response: Command | None) -> Command | None:
            found = response
            for hook in hooks:
                told, failed = self._try(connection, command, partial(hook.after_response, address, command, found))
                found = told if failed else found
            return found

        refused, failed = self._try(connection, command, before)
        if failed:
            return after(refused)
        return self._run_after(request, self._serve(request), after)

    def _run_after(self, request: Request, answer: Answer, after: Callable[[Command | None], Command | None]) -> Answer:
        """Return `answer`, so that the hooks get it once it is known."""
        if answer is None or isinstance(answer, Command):
            return after(answer)
        if isinstance(answer, Hold):
            again = self._guard_again(request.connection, request.command.code, answer.again)

            def again_with_hooks(last: bool) -> Command | None:
                found = again(last)
                return after(found) if found is not None or last else None

            answer.again = again_with_hooks
            answer.gone = partial(after, None)
            return answer
        if isinstance(answer, LaterAnswer):
            begin = answer.begin
            return LaterAnswer(lambda give: begin(lambda make: give(lambda: self._run_after(request, make(), after))))
        told = after(answer.reply)
        return answer if told is answer.reply else told

    def _guard_again(
        self, connection: Connection, code: int, again: Callable[[bool], Command | None]
    ) -> Callable[[bool], Command | None]:
        """Return `again` of a hold, with its exceptions turned into answers."""
        return lambda last: self._try(connection, code, lambda: again(last))[0]

    def _try(self, connection: Connection, asked: Command | int, ask: Callable[[], A]) -> tuple[A | Command, bool]:
        """Return the result of `ask`, or the answer to its exception; and whether it raised.

        `asked` is the request, or only the code of a held request: hundreds of thousands may be held.
        """
        try:
            return ask(), False
        except PutFailed as failed:
            return self._try(connection, asked, partial(self._broker.failed_puts.answer, failed))[0], True
        except PeerError as rejection:
            return Command(code=rejection.code, remark=rejection.remark, ext=rejection.ext), True
        except (LeaseHeld, Stale, TurnRejected) as error:
            code, word = _TURN_ERRORS[type(error)]
            return Command(code=code, remark=f"{word}: {error}"), True
        except (HeaderError, BodyError) as error:
            return Command(code=ResponseCode.SYSTEM_ERROR, remark=str(error)), True
        except DiskFull as error:
            self._broker.health.reject_sends(f"the disk is full: {error.strerror}")
            remark = "service not available now: the disk is full"
            return Command(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark), True
        except Exception as error:
            self._log.exception(type(error).__name__, "%s from %s failed", _text(asked), peer_text(connection))
            remark = f"{type(error).__name__}: {error}"[:1024]
            return Command(code=ResponseCode.SYSTEM_ERROR, remark=remark), True


def _text(asked: Command | int) -> str:
    """Return the text of a request for the log. Only the code of a held request is known."""
    return f"held request with code={asked}" if isinstance(asked, int) else f"request {command_text(asked)}"


def _unsupported(code: int) -> str:
    """Return Apache's remark for an unknown code, with our reason if Apache serves the code."""
    remark = f" request type {code} not supported"
    reason = REASONS.get(code)
    return remark if reason is None else f"{remark}: {reason}"


def encode_answer(opaque: int, answer: Command) -> bytes:
    """Return the frame of an answer to the request `opaque`."""
    answer.opaque = opaque
    answer.flag |= frame.FLAG_RESPONSE
    return frame.encode(answer)
