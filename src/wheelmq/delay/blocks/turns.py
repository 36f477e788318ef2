"""The blocks in a turn of the pipeline: the window of the plan, the check of its rows, and their effect."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.arming import arm_rows
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.row_check import check_window
from wheelmq.delay.blocks.walk import BlockWalk
from wheelmq.delay.blocks.walked import WalkedBuffer
from wheelmq.delay.blocks.wheel import STEP_MS, BlockWheel, Counts
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import BlockWindow
from wheelmq.formats.disk.origin import by_stream, stream_number
from wheelmq.formats.units import Millis

ROWS_MAX: Final = 200_000
"""Limit of the rows that one turn scans, unless a single second has more."""


class BlockTurns:
    """Owns the counts of the planned window. `walked` gets the records of the messages that a turn arms."""

    def __init__(
        self, blocks: Blocks, wheel: BlockWheel, walk: BlockWalk, walked: WalkedBuffer, pending: PendingTable
    ) -> None:
        self._blocks = blocks
        self._wheel = wheel
        self._walk = walk
        self._walked = walked
        self._pending = pending
        self._planned: dict[int, Counts] | None = None

    def window(self, now_ms: Millis) -> BlockWindow | None:
        """Return the window that the next turn scans, over messages on disk. Returns None without messages."""
        walk, walked_ms = self._walk, self._walk.walked_ms
        through_ms = walk.lead_end_ms(now_ms)
        walk.count_near(through_ms)  # a flush may have ended since the tick
        counts = self._wheel.between(walked_ms, through_ms)
        if not counts:
            return None
        rows = np.cumsum(sum(counts.values()))
        entries = max(1, int(np.searchsorted(rows, ROWS_MAX, "right")))
        through_ms = min(through_ms, walked_ms + entries * STEP_MS)
        self._planned = {number: some[:entries] for number, some in counts.items() if some[:entries].any()}
        walk.arm_uncounted(through_ms)
        return BlockWindow(
            after_ms=walked_ms,
            through_ms=through_ms,
            rows=int(rows[min(entries, len(rows)) - 1]),
            blocks=[self._to_scan(number) for number in self._planned],
        )

    def _to_scan(self, number: int) -> tuple[int, str, int]:
        """Return number and folder of a block, and the number of its units that the wheel has counted."""
        block = self._blocks.get(number)
        assert block is not None, number
        return number, block.paths.folder.name, self._wheel.counted_to(block)

    def check(self, window: BlockWindow | None, parts: list[TurnRows]) -> None:
        """Check the rows of a turn against the window of its plan. Raises TurnRejected."""
        check_window(window, self._planned, parts, self._blocks, self._wheel)

    def commit(self, window: BlockWindow | None, parts: list[TurnRows], write_ms: int) -> None:
        """Arm the rows of a checked window, and move S."""
        for rows in parts:
            refs = arm_rows(self._pending, rows, write_ms)
            for stream, mine in by_stream(refs[:, ref.ORIGIN]):
                block = self._blocks.get(stream_number(stream))
                if block is not None:
                    self._walked.add(block, refs[mine, ref.POSITION], refs[mine, ref.SIZE])
        self._planned = None
        if window is not None:
            self._walk.walk_to(window.through_ms)
