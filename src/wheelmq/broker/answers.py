"""The kinds of answers that handlers return, and the exception that is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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


class Deferred:
    """An answer that is given later, at most once, by `give` or `fail`. It may be another deferred one."""

    __slots__ = ("_taker", "given", "is_accepted", "is_over", "reply")

    def __init__(self, reply: Command | None = None) -> None:
        self.reply = reply
        """The answer, if it is known and waits only for disk or replicas. After too long, another one is given."""
        self.is_accepted = reply is not None
        """Whether the request counts as served before its answer is known."""
        self.is_over = False
        """Whether the answer was given, or nobody gets one any more."""
        self.given: Given = None
        """The answer or the exception, once it is over."""
        self._taker: Callable[[Given], object] | None = None

    def accept(self) -> None:
        """Count the request as served now. Its handler has done its part, and only the answer is missing."""
        self.is_accepted = True

    def give(self, answer: Given) -> None:
        """Give the answer; None if there is none. Has no effect once the deferred answer is over."""
        if self.is_over:
            return
        self.is_over, self.given = True, answer
        taker, self._taker = self._taker, None
        if taker is not None:
            taker(answer)

    def fail(self, error: Exception) -> None:
        self.give(error)

    def callback(self, make: Callable[[R], Answer]) -> Callable[[R], None]:
        """Return a function that gives the answer that `make` returns for a result, or the exception of `make`."""

        def take(result: R) -> None:
            if self.is_over:
                return
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
            take(self.given)
        elif first is None:
            self._taker = take
        else:
            self._taker = lambda given: (first(given), take(given))

    def then(self, transform: Callable[[Given], Answer]) -> Deferred:
        """Return the answer that `transform` makes of this one, or of its exception."""
        transformed = Deferred()
        self.when_given(transformed.callback(transform))
        return transformed


def when_known(given: Given, use: Callable[[Known], Command | None]) -> Answer:
    """Return the answer that `use` makes of an answer or an exception, as soon as it is known.

    An answer that waits for the disk is known already. It waits further, unless `use` returns another one.
    """
    if not isinstance(given, Deferred):
        return use(given)
    if given.reply is None:
        return given.then(lambda known: when_known(known, use))
    answer = use(given.reply)
    return given if answer is given.reply else answer


def run_on_worker(worker: Worker, job: Callable[[], object], make: Callable[[Any], Answer]) -> Deferred:
    """Run `job` on a worker. Return the answer that `make` makes of its result, or of the exception that it raises."""
    answer = Deferred()
    worker.submit(job, answer.callback(make))
    return answer


Answer = Command | Deferred | None
Given = Answer | Exception
"""An answer, or the exception of a handler, which becomes an answer."""
Known = Command | Exception | None
"""An answer that is not deferred, or an exception."""


def reply(
    code: ResponseCode = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **fields: object
) -> Command:
    return Command(code=int(code), remark=remark, body=body, ext=headers.texts(**fields))
