"""The walk over blocks: count the blocks that come near in the wheel, and arm messages that no turn armed in time.

S here is `walked_ms`: all messages due by then are armed or settled. A message for an earlier time is armed at once. A
later one is counted once it is on disk. A turn arms it, or the tick if no turn comes in time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.blocks.arming import arm_units
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.blocks.wheel import STEP_MS, BlockWheel
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.timer.scans import falls_short
from wheelmq.delay.timer.turns import Turns
from wheelmq.formats.units import Millis

NEAR_MS: Final = 1000
"""The tick arms messages that are due within this time and that no turn scanned."""


class BlockWalk:
    """Owns S, and moves it over the wheel. `walked` gets the records of the messages that a tick arms."""

    def __init__(
        self,
        blocks: Blocks,
        wheel: BlockWheel,
        walked: WalkedBuffer,
        pending: PendingTable,
        turns: Turns,
        lead_ms: int,
    ) -> None:
        self._blocks = blocks
        self._wheel = wheel
        self._walked = walked
        self._pending = pending
        self._turns = turns
        self._lead_ms = lead_ms
        self.walked_ms = 0

    def begin(self, now_ms: Millis) -> None:
        """Set S at a start to the end of the lead, and count the block of that time."""
        self.walked_ms = self.lead_end_ms(now_ms)
        for block in self._blocks:
            if block.start_ms <= self.walked_ms < block.end_ms:
                self._wheel.add(block)

    def tick(self, now_ms: Millis) -> None:
        """Count the blocks that come near, move S over empty entries, and arm messages that no turn armed in time."""
        lead_end_ms, near_ms = self.lead_end_ms(now_ms), _floor(now_ms + NEAR_MS) + STEP_MS
        self.count_near(max(lead_end_ms, near_ms))
        if self._turns.plan is None and lead_end_ms > self.walked_ms:
            self.walk_to(self._first_filled_ms(lead_end_ms))
        if near_ms > self.walked_ms:
            for number in self._wheel.between(self.walked_ms, near_ms):
                near = self._blocks.get(number)
                if near is not None:
                    indices, units = near.queue.due_between(self.walked_ms, near_ms, self._wheel.counted_to(near))
                    arm_units(self._pending, near, indices, units, by="block_lane")
                    self._walked.add(near, units["position"].astype(np.int64), units["size"].astype(np.int64))
            self.walk_to(near_ms)

    def next_ms(self) -> int | None:
        """Return the wall time at which a tick must check whether a turn came in time; None with an empty wheel."""
        return self.walked_ms - NEAR_MS if self._wheel else None

    def lead_end_ms(self, now_ms: Millis) -> int:
        """Return the last entry within the lead. Turns arm the messages up to this time."""
        return _floor(now_ms + self._lead_ms)

    def armed_through_ms(self) -> int:
        """Return the time up to which new messages are armed at once: the running turn's scan does not include them."""
        plan = self._turns.plan
        planned_ms = plan.blocks.through_ms if plan is not None and plan.blocks is not None else 0
        return max(self.walked_ms, planned_ms)

    def runs_short(self, now_ms: Millis) -> bool:
        """Return whether S is less than two thirds of the lead ahead, and messages wait for a scan."""
        if not falls_short(self.walked_ms, now_ms, self._lead_ms):
            return False
        return bool(self._wheel.between(self.walked_ms, self.lead_end_ms(now_ms)))

    def count_near(self, through_ms: int) -> None:
        """Count the messages on disk of the blocks that begin by `through_ms`."""
        for block in self._blocks:
            if block.start_ms > through_ms + STEP_MS:
                break
            if block.number not in self._wheel and block.end_ms > self.walked_ms:
                self._wheel.add(block)
            self._wheel.count(block)

    def _first_filled_ms(self, through_ms: int) -> int:
        filled = [int(np.flatnonzero(counts)[0]) for counts in self._wheel.between(self.walked_ms, through_ms).values()]
        return min([through_ms, *(self.walked_ms + place * STEP_MS for place in filled)])

    def walk_to(self, walked_ms: int) -> None:
        """Move S to `walked_ms`: counted messages due by then are armed. Arm the others too: no scan finds them."""
        if walked_ms <= self.walked_ms:
            return
        self.walked_ms = walked_ms
        self.arm_uncounted(walked_ms)
        for block in self._blocks:
            if block.end_ms > walked_ms:
                break
            self._wheel.drop(block.number)

    def arm_uncounted(self, through_ms: int) -> None:
        """Arm the messages due by `through_ms` that are not on disk: they are not counted, so no scan finds them."""
        for block in self._blocks.behind():
            for first, units in block.queue.chunks(self._wheel.counted_to(block)):
                mine = np.flatnonzero(units["due_ms"] <= through_ms)
                arm_units(self._pending, block, first + mine, units[mine], by="block_lane")


def _floor(time_ms: int) -> int:
    return time_ms // STEP_MS * STEP_MS
