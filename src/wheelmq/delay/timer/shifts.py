"""The armed messages that a stage delays, for timercheck: it must not pass their slots before their release.

A start forgets the shifts, because they are only in memory. It arms these messages at their due times.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.timer.rows import TurnRows

STEP_MS: Final = 60_000
"""Deliveries of one step share an entry."""
_NEVER: Final = 1 << 62


class Shifts:
    def __init__(self) -> None:
        self.count = 0
        """Number of messages that were armed with a shift, since the start."""
        self._first_ms: dict[int, int] = {}
        """Least fire time of the messages delivered within a step, by the step."""

    def note(self, rows: TurnRows) -> None:
        """Note the rows with a shift that a commit armed."""
        steps = (rows["fire_ms"] + rows["shift_ms"]) // STEP_MS
        for step in np.unique(steps).tolist():
            first_ms = int(rows["fire_ms"][steps == step].min())
            self._first_ms[step] = min(first_ms, self._first_ms.get(step, _NEVER))
        self.count += len(rows)

    def first_fire_ms(self, released_ms: int) -> int:
        """Return a time not later than the fire time of any shifted message. All are released before `released_ms`.

        Returns a time that never comes when there is no such message.
        """
        for step in [step for step in self._first_ms if (step + 1) * STEP_MS <= released_ms]:
            del self._first_ms[step]
        return min(self._first_ms.values(), default=_NEVER)
