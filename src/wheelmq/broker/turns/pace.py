"""The pace of turns: when there is a reason for the next plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.units import Millis

ROWS_AT_ONCE: Final = 50_000
"""Un-indexed messages that are reason for a turn whatever the pace."""
ROWS_AT_PACE: Final = 1000
"""Messages to index or to stage that are reason for a turn at the next pace."""
BURST_PACES: Final = 3
"""Factor of the pace while a burst is released: rarer turns leave it the processors. Messages due soon are armed
already, or by the near lane."""
AGE_MS: Final = 3000
"""Maximum time that an un-indexed message waits for a turn."""
URGENT_MS: Final = 5000
"""An un-indexed message that is due within this time is reason for a turn at the next pace."""


class TurnPace:
    """Decides when a plan is due. Times are monotonic milliseconds, except `wall_ms`."""

    def __init__(
        self, timer: Timer, block_walk: BlockWalk, settings: BrokerSettings, has_burst: Callable[[], bool]
    ) -> None:
        """`has_burst` returns whether a burst of messages is being released."""
        self._timer = timer
        self._block_walk = block_walk
        self._settings = settings
        self._has_burst = has_burst
        self.planned_ms = 0
        """When the last plan was made."""
        self._oldest_ms: int | None = None

    def restart(self) -> None:
        """Let the next plan come at once: a pipeline has a new lease."""
        self.planned_ms = 0

    def note_plan(self, now_ms: int) -> None:
        """Note that a plan was made. It covers all messages that wait."""
        self.planned_ms = now_ms
        self._oldest_ms = None

    def poll(self, wall_ms: Millis, now_ms: int) -> None:
        """Note since when a message waits to be indexed or staged."""
        timer = self._timer
        levels_wait = timer.pending.levels.have_due(wall_ms, timer.scans.lead_end_ms(wall_ms))
        if timer.queue.end == timer.indexed_to and not levels_wait:
            self._oldest_ms = None
        elif self._oldest_ms is None:
            self._oldest_ms = now_ms

    def oldest_waiting_age_ms(self, now_ms: int) -> int:
        """Return the age of the oldest message that waits for a turn, or 0."""
        return 0 if self._oldest_ms is None else now_ms - self._oldest_ms

    def is_due(self, wall_ms: Millis, now_ms: int) -> bool:
        timer = self._timer
        unindexed = 0 if timer.settings.stop_enqueue else timer.queue.end - timer.indexed_to
        if unindexed >= ROWS_AT_ONCE:
            return True
        paces = BURST_PACES if self._has_burst() else 1
        if now_ms - self.planned_ms < paces * self._settings.pipeline.pace_ms:
            return False
        aged = self._oldest_ms is not None and now_ms - self._oldest_ms >= AGE_MS
        if unindexed:
            urgent = timer.pending.notes.count and timer.pending.notes.next_fire_ms <= wall_ms + URGENT_MS
            if urgent or aged or unindexed >= ROWS_AT_PACE:
                return True
        lead_end_ms = timer.scans.lead_end_ms(wall_ms)
        if timer.pending.levels.have_due(wall_ms, lead_end_ms):
            urgent = timer.pending.levels.next_ms() <= wall_ms + URGENT_MS
            if urgent or aged or timer.pending.levels.count_due(wall_ms, lead_end_ms) >= ROWS_AT_PACE:
                return True
        return timer.scans.run_short(wall_ms) or self._block_walk.runs_short(wall_ms)
