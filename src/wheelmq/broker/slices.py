"""Answers that take long to compute, one slice between two ticks, so that they delay no send.

A generator yields after each small piece of its work, and returns the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from wheelmq.broker.answers import Answer, PeerError
from wheelmq.broker.holds import Holds
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import Clock

SLICE_S: Final = 0.002
"""Length of a slice in seconds."""
UNDER_WAY_MAX: Final = 16
"""Maximum answers that are computed at the same time."""

Steps = Generator[None, None, Command]


@dataclass(slots=True, eq=False)
class _SlicedAnswer:
    steps: Steps
    key: object = field(default_factory=object)
    answer: Command | None = None
    error: Exception | None = None

    def go_on(self, clock: Clock, until_s: float) -> bool:
        """Work until `until_s`. Returns whether the answer is done."""
        try:
            while True:
                next(self.steps)
                if clock.monotonic() >= until_s:
                    return False
        except StopIteration as stop:
            self.answer = stop.value
        except Exception as error:
            self.error = error
        return True

    def attempt(self, last: bool) -> Command | None:
        """Return the answer, or None if it is not done. Raises PeerError if `last`, and the error of the work."""
        if self.error is not None:
            raise self.error
        if self.answer is None and last:
            raise PeerError(
                ResponseCode.SYSTEM_BUSY, "the broker did not compute the answer in time: request less, or try again"
            )
        return self.answer


class Slices:
    """Answers that are being computed, in turn."""

    def __init__(self, clock: Clock, holds: Holds, timeout_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._holds = holds
        self._timeout_ms = timeout_ms
        self._under_way: deque[_SlicedAnswer] = deque()

    def answer(self, request: Request, steps: Steps) -> Answer:
        """Return the answer that `steps` compute: now, if a slice is enough, else later.

        Raises PeerError, and the exceptions of `steps`.
        """
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise PeerError(ResponseCode.SYSTEM_BUSY, "the broker is computing answers for other requests: try again")
        work = _SlicedAnswer(steps)
        if work.go_on(self._clock, self._clock.monotonic() + SLICE_S):
            return work.attempt(False)
        self._under_way.append(work)
        return self._holds.wait(request, work.key, self._timeout_ms(), work.attempt)

    def has_more(self) -> bool:
        return bool(self._under_way)

    def tick(self) -> None:
        """Compute a slice of the next answer. Cancel it if its request does not wait any more."""
        if not self._under_way:
            return
        work = self._under_way.popleft()
        if not self._holds.has(work.key):
            work.steps.close()
        elif work.go_on(self._clock, self._clock.monotonic() + SLICE_S):
            self._holds.wake(work.key)
        else:
            self._under_way.append(work)
