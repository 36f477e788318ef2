"""The slots of the wheel that were scanned: by turns up to S, and by the broker itself up to A.

Their messages are armed or settled. A start sets S (docs/formats/timer.md) again, so both are in memory only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from wheelmq.delay.timer.skipped import SkippedSlots
from wheelmq.delay.timer.wheel import TimerWheel
from wheelmq.formats.units import Millis

WALK_ROWS_MAX: Final = 200_000
"""Maximum number of units that one turn scans, unless a single slot has more."""


def falls_short(walked_ms: int, now_ms: Millis, lead_ms: int) -> bool:
    """Return whether a scan that came to `walked_ms` is less than two thirds of the lead ahead."""
    return walked_ms - now_ms < lead_ms * 2 // 3


class NextWalk(NamedTuple):
    """The slots that the next turn scans: those later than S up to `through_ms`."""

    through_ms: int
    rows: int
    """Number of units in these slots."""


class SlotScans:
    def __init__(self, wheel: TimerWheel, lead_ms: int) -> None:
        self._wheel = wheel
        self._lead_ms = lead_ms
        self.walked_through_ms = 0
        """S: turns armed all units of the slots up to this time."""
        self.scanned_through_ms = 0
        """A: the broker itself armed all units of the slots up to this time."""
        self.scanning_through_ms = 0
        """A, or the last slot of the scan that runs now. A commit arms each new unit of a slot up to this time."""
        self.skipped = SkippedSlots()
        """Slots up to A that the broker could not read."""

    @property
    def covered_through_ms(self) -> int:
        """The time through which turns or the broker armed all units: the later of S and A."""
        return max(self.walked_through_ms, self.scanned_through_ms)

    def lead_end_ms(self, now_ms: Millis) -> int:
        """Return the last slot within the lead. Turns arm the messages up to this time."""
        return self._wheel.floor_slot(now_ms + self._lead_ms)

    # Turns ---------------------------------------------------------------------------------------------------------

    def walk_to(self, through_ms: int) -> None:
        self.walked_through_ms = through_ms

    def next_walk(self, now_ms: Millis) -> NextWalk:
        """Move S to A if A is later. Then return the slots that the next turn scans."""
        self.walked_through_ms = through_ms = self.covered_through_ms
        units = self._wheel.units_between(through_ms, self.lead_end_ms(now_ms))
        if len(units):
            slots = max(1, int(np.searchsorted(np.cumsum(units), WALK_ROWS_MAX, "right")))
            through_ms += slots * self._wheel.precision_ms
            units = units[:slots]
        return NextWalk(through_ms, int(units.sum()))

    def advance_over_empty_slots(self, now_ms: Millis) -> None:
        """Move S over empty slots, so that an idle pipeline runs no turn for them. No plan may be under way."""
        goal = self.lead_end_ms(now_ms)
        if goal <= self.walked_through_ms:
            return
        filled_ms = self._wheel.first_filled(self.walked_through_ms, goal)
        self.walked_through_ms = goal if filled_ms is None else filled_ms - self._wheel.precision_ms

    def has_units_to_walk(self, now_ms: Millis) -> bool:
        return self._wheel.first_filled(self.walked_through_ms, self.lead_end_ms(now_ms)) is not None

    def run_short(self, now_ms: Millis) -> bool:
        """Return whether S is less than two thirds of the lead ahead, and units wait for a scan."""
        return falls_short(self.walked_through_ms, now_ms, self._lead_ms) and self.has_units_to_walk(now_ms)

    # The wheel lane ------------------------------------------------------------------------------------------------

    def note_scanning(self, through_ms: int) -> None:
        self.scanning_through_ms = max(self.scanning_through_ms, through_ms)

    def note_scanned(self, through_ms: int) -> None:
        """Move A: the broker armed all units of the slots up to `through_ms`, or skipped them."""
        self.scanned_through_ms = max(self.scanned_through_ms, through_ms)
