"""Judge whether the driver makes progress, from its leases as its brokers report them.

The driver itself handles a hanging turn (`broker_turns`), so its own limits are shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

LOOK_S: Final = 2.0
"""Seconds between two checks."""
GAP_S: Final = 5 * LOOK_S
"""A longer pause between two checks means that this process, or the machine, was suspended. The times begin again."""
LAPSED_S: Final = 15.0
"""Seconds without a lease after which a driver hangs that has said that it turns.

The lease lapsed 5 s before. A healthy driver can need 12 s after a broker restarts: its next renewal comes after up to
RENEW_S (1.5 s), and the stop of its query blocks for up to Spark's stopTimeout (10 s).
"""
OPENING_S: Final = 120.0
"""The same for a driver that starts a query: the driver does not renew while Spark plans it."""
QUIET_S: Final = 240.0
"""Seconds without a plan, a read, an upload or a commit under a renewed lease. The driver itself ends its first query
after 180 s, and others sooner."""
START_S: Final = 300.0
"""Seconds from the start of a driver to its Spark session."""
ONE_OF_MANY: Final = 4
"""Factor of the limits while other brokers of the same driver are served: its end would disturb them."""
DOUBLINGS_MAX: Final = 4
"""Times that the limits double, once for each hanging driver since the last committed turn."""


class TurnProgress(NamedTuple):
    is_held: bool
    """Whether any pipeline renews the lease."""
    holder: str | None
    quiet_ms: int
    turn: int


def answer_of(metrics: Mapping[str, Any]) -> TurnProgress:
    return TurnProgress(
        bool(metrics["is_held"]), metrics["holder"], int(metrics.get("quiet_ms", 0)), int(metrics.get("turn", 0))
    )


class Progress:
    """Judges successive drivers. Times are monotonic seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._looked_s: float | None = None
        self._began_s: float | None = None
        """Time when the driver started, or when a suspended supervisor checked again."""
        self._lapsed_s: dict[str, float] = {}
        """Time since when no pipeline renews the lease, by broker."""
        self._turning: frozenset[str] = frozenset()
        """Brokers of which the driver had said that it turns, at the last check."""
        self._turns: dict[str, int] = {}
        self._hung = 0
        """Number of drivers that hung since the last committed turn."""

    def begin(self) -> None:
        self._began_s = None
        self._lapsed_s.clear()
        self._turning = frozenset()

    def note_hung(self) -> None:
        """Note that the driver hung and was ended. The next driver has twice the time."""
        self._hung = min(self._hung + 1, DOUBLINGS_MAX)
        self.begin()

    def problem(
        self, now_s: float, answers: Mapping[str, TurnProgress | None], *, turning: Set[str], has_session: bool
    ) -> str | None:
        """Judge the answers of the brokers. Returns why the driver hangs, or None if it does not.

        `answers` has None for a broker without an answer. `turning` are those that the driver reported as turning.
        """
        if self._looked_s is not None and now_s - self._looked_s > GAP_S:
            self.begin()
        self._looked_s = now_s
        if self._began_s is None:
            self._began_s = now_s
        factor = 1 << self._hung
        if not has_session:
            waited_s = now_s - self._began_s
            return f"Spark is not up after {waited_s:.0f} s" if waited_s > factor * START_S else None
        for broker in turning - self._turning:
            self._lapsed_s.pop(broker, None)  # its query has just started and renews from now on
        self._turning = frozenset(turning)
        for broker, answer in answers.items():
            self._note(now_s, broker, answer)
        is_served = any(answer is not None and answer.is_held for answer in answers.values())
        for broker, answer in answers.items():
            if answer is None:
                continue
            limit_s = factor * (LAPSED_S if broker in turning else OPENING_S) * (ONE_OF_MANY if is_served else 1)
            lapsed_s = now_s - self._lapsed_s.get(broker, now_s)
            if lapsed_s > limit_s:
                return f"no pipeline has renewed the lease of {broker} for {lapsed_s:.0f} s since it lapsed"
            is_quiet = answer.is_held and answer.holder == self._name and answer.quiet_ms > 1000 * factor * QUIET_S
            if is_quiet:
                return f"the turns of {broker} made no progress for {answer.quiet_ms / 1000:.0f} s"
        return None

    def _note(self, now_s: float, broker: str, answer: TurnProgress | None) -> None:
        if answer is None or answer.is_held:
            self._lapsed_s.pop(broker, None)
        else:
            self._lapsed_s.setdefault(broker, now_s)
        if answer is not None:
            if answer.turn > self._turns.get(broker, answer.turn):
                self._hung = 0
            self._turns[broker] = answer.turn
