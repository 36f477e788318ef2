"""Answers that take long to compute. Each tick computes one slice, so that no send is late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final

from wheelmq.broker.answers import Answer, Deferred, PeerError, reply
from wheelmq.broker.holds import Holds
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import Clock

SLICE_S: Final = 0.002
UNDER_WAY_MAX: Final = 16
"""Maximum answers that are computed at the same time."""

Steps = Generator[None, None, Command]


class Slices:
    """Answers that are being computed, in turn. Their generators yield after each small piece of work."""

    def __init__(self, clock: Clock, holds: Holds, timeout_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._holds = holds
        self._timeout_ms = timeout_ms
        self._under_way: deque[tuple[Steps, Deferred]] = deque()

    def answer(self, request: Request, steps: Steps) -> Answer:
        """Return the answer that `steps` compute, now or later. Raises PeerError, and the exceptions of `steps`."""
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise PeerError(ResponseCode.SYSTEM_BUSY, "the broker is computing answers for other requests: try again")
        now = self._run_slice(steps)
        if now is not None:
            return now
        answer = Deferred()
        try:
            held = self._holds.with_deadline(request, answer, self._timeout_ms(), _late)
        except PeerError:
            steps.close()
            raise
        self._under_way.append((steps, answer))
        return held

    def has_more(self) -> bool:
        return bool(self._under_way)

    def tick(self) -> None:
        """Compute a slice of the next answer. Cancel it if its request does not wait any more."""
        if not self._under_way:
            return
        steps, answer = self._under_way.popleft()
        if answer.is_over:
            steps.close()
            return
        try:
            command = self._run_slice(steps)
        except Exception as error:
            answer.fail(error)
            return
        if command is None:
            self._under_way.append((steps, answer))
        else:
            answer.give(command)

    def _run_slice(self, steps: Steps) -> Command | None:
        """Work for a slice. Returns the answer, or None if it is not done. Raises the exceptions of `steps`."""
        until_s = self._clock.monotonic() + SLICE_S
        try:
            while True:
                next(steps)
                if self._clock.monotonic() >= until_s:
                    return None
        except StopIteration as stop:
            answer: Command = stop.value
            return answer


def _late() -> Command:
    remark = "the broker did not compute the answer in time: request less, or try again"
    return reply(ResponseCode.SYSTEM_BUSY, remark)
