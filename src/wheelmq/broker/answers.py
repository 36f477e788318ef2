"""The kinds of answers that handlers return, and the exception that is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.workers import Worker

R = TypeVar("R")


class PeerError(Exception):
    """The request cannot be granted. The code and the remark are the answer."""

    def __init__(self, code: ResponseCode, remark: str, **fields: object) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = headers.texts(**fields)
        """Header of the answer, if it has more than code and remark."""


@dataclass(slots=True)
class Durable:
    """An answer that waits until the log is on disk up to `position`.

    If that takes too long, `late` replaces it. Without `late`, the answer then says FLUSH_DISK_TIMEOUT.
    """

    reply: Command
    position: LogPosition
    late: Command | None = None


@dataclass(slots=True)
class DurableInBlock:
    """An answer that waits until `put_count` messages of blocks are on disk.

    If that takes too long, it says FLUSH_DISK_TIMEOUT.
    """

    reply: Command
    put_count: int


class Deferred:
    """An answer that is given later, at most once.

    The part that makes the answer calls `give` or `fail`. The answer may be another deferred one.
    """

    __slots__ = ("_given", "_taker", "is_accepted", "is_over")

    def __init__(self) -> None:
        self.is_accepted = False
        """Whether the request counts as served before its answer is known."""
        self.is_over = False
        """Whether the answer was given, or nobody gets one any more."""
        self._given: Given = None
        self._taker: Callable[[Given], object] | None = None

    def accept(self) -> None:
        """Count the request as served now. Its handler has done its part, and only the answer is missing."""
        self.is_accepted = True

    def give(self, answer: Answer) -> None:
        """Give the answer; None if there is none. Has no effect once the deferred answer is over."""
        self._end(answer)

    def fail(self, error: Exception) -> None:
        """Answer with an exception, as if the handler of the request had raised it."""
        self._end(error)

    def callback(self, make: Callable[[R], Answer]) -> Callable[[R], None]:
        """Return a function that takes a result, and gives the answer that `make` returns for it, or its exception."""

        def take(result: R) -> None:
            try:
                answer = make(result)
            except Exception as error:
                self.fail(error)
            else:
                self.give(answer)

        return take

    def when_given(self, take: Callable[[Given], object]) -> None:
        """Pass the answer, or the exception, to `take` once it is given. Several functions are called in order."""
        first = self._taker
        if self.is_over:
            take(self._given)
        elif first is None:
            self._taker = take
        else:
            self._taker = lambda given: (first(given), take(given))

    def then(self, transform: Callable[[Given], Answer]) -> Deferred:
        """Return the answer that `transform` makes of this one, or of its exception."""
        transformed = Deferred()
        self.when_given(transformed.callback(transform))
        return transformed

    def _end(self, given: Given) -> None:
        if self.is_over:
            return
        self.is_over, self._given = True, given
        taker, self._taker = self._taker, None
        if taker is not None:
            taker(given)


def run_on_worker(worker: Worker, job: Callable[[], object], make: Callable[[Any], Answer]) -> Deferred:
    """Run `job` on a worker. Return the answer that `make` makes of its result, or of the exception that it raises."""
    answer = Deferred()
    worker.submit(job, answer.callback(make))
    return answer


Answer = Command | Durable | DurableInBlock | Deferred | None
Given = Answer | Exception
"""An answer, or the exception of a handler, which becomes an answer."""


def reply(
    code: ResponseCode = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **fields: object
) -> Command:
    """Return an answer. `fields` go into its header as texts."""
    return Command(code=int(code), remark=remark, body=body, ext=headers.texts(**fields))
