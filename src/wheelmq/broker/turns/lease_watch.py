"""Warnings about the pipeline: rejected pipelines and turns, leases opened in a loop, a lease that is not renewed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from wheelmq.delay.timer.turns import Holder, LeaseHeld, TurnRejected, Turns
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

LOOP_OPENINGS: Final = 4
"""Leases opened within LOOP_S seconds without a committed turn that count as a loop."""
LOOP_S: Final = 60.0


class LeaseWatch:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._log = RateLimitedLog(log, now_s)
        self._opened_s: deque[float] = deque(maxlen=LOOP_OPENINGS)
        """Times of the last openings of a lease without a committed turn."""
        self._has_lapsed = False

    def note_opened(self, holder: Holder) -> None:
        """Note that `holder` has opened a lease, and log a loop of openings."""
        now_s = self._now_s()
        self._opened_s.append(now_s)
        if len(self._opened_s) == LOOP_OPENINGS and now_s - self._opened_s[0] <= LOOP_S:
            self._log.warn(
                "loop",
                "pipeline %r at %s is the last of %d that opened the lease within %d s without a turn: its driver "
                "restarts repeatedly, or two drivers have the same id. See the pipeline's log",
                holder.name,
                holder.address,
                LOOP_OPENINGS,
                LOOP_S,
            )

    def note_committed(self) -> None:
        self._opened_s.clear()

    def note_rejected(self, holder: Holder, held: LeaseHeld) -> None:
        self._log.warn(
            "refused", "the broker rejects a lease for pipeline %r at %s: %s", holder.name, holder.address, held
        )

    def note_wrong(self, turn: int, refused: TurnRejected) -> None:
        self._log.warn("wrong", "the broker rejects turn %d and applies none of its rows: %s", turn, refused)

    def poll(self, turns: Turns, now_ms: int) -> None:
        """Log once that the holder does not renew its lease."""
        has_lapsed = turns.holder is not None and not turns.is_held(now_ms)
        if has_lapsed and not self._has_lapsed:
            self._log.warn(
                "lapsed",
                "pipeline %r has not renewed its lease for %d ms: no turn runs until a pipeline opens a new lease",
                turns.holder,
                turns.silent_ms(now_ms),
            )
        self._has_lapsed = has_lapsed
