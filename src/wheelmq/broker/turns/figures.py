"""The results and times of committed turns, for the log and the metrics."""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from wheelmq.observe.histogram import Histogram

log = logging.getLogger(__name__)


class TurnDone(msgspec.Struct, frozen=True):
    turn: int
    indexed: int
    walked: int
    armed: int
    """Messages that the turn armed, of those that it indexed or scanned."""
    seconds: float
    """From plan to commit, including the pipeline's work."""
    commit_seconds: float
    """The part of it that the broker needed for the commit."""


class TurnFigures:
    def __init__(self) -> None:
        self.last: TurnDone | None = None
        self.rows: Counter[str] = Counter()
        self.seconds = Histogram(least=0.001)
        """From plan to commit."""
        self.slots_walked = 0
        """Scanned slots with units."""

    def note(self, done: TurnDone, slots_walked: int) -> None:
        """Count a committed turn and log it."""
        self.last = done
        self.rows.update(indexed=done.indexed, walked=done.walked, armed=done.armed)
        self.seconds.add(done.seconds)
        self.slots_walked += slots_walked
        log.info(
            "turn %d: %d indexed, %d walked, %d armed; %.0f ms from plan to commit, %.1f ms of them the commit",
            done.turn,
            done.indexed,
            done.walked,
            done.armed,
            1000 * done.seconds,
            1000 * done.commit_seconds,
        )
