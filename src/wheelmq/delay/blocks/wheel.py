"""The time wheel of blocks, in memory: the number of messages due in each second of the blocks that are near.

An entry counts the messages on disk, settled ones too. A turn must return as many rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.block import Block

STEP_MS: Final = 1000
"""An entry of time s counts the messages due in (s, s + STEP_MS]."""

Counts = npt.NDArray[np.int64]


class BlockWheel:
    """Entries of the blocks that were added, by block number."""

    def __init__(self) -> None:
        self._counts: dict[int, Counts] = {}
        self._firsts: dict[int, int] = {}
        self._counted_to: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, number: int) -> bool:
        return number in self._counts

    def add(self, block: Block) -> None:
        """Add a block, and count its messages that are on disk."""
        first = (block.start_ms - 1) // STEP_MS
        self._firsts[block.number] = first
        self._counts[block.number] = np.zeros((block.end_ms - 1) // STEP_MS - first + 1, np.int64)
        self._counted_to[block.number] = 0
        self.count(block)

    def count(self, block: Block) -> None:
        """Count the messages of a block that reached the disk since its last count."""
        counted = self._counted_to.get(block.number)
        if counted is None or counted == block.durable:
            return
        counts, first = self._counts[block.number], self._firsts[block.number]
        for _, units in block.queue.chunks(counted, block.durable):
            due_ms = units["due_ms"][units["size"] > 0].astype(np.int64)
            counts += np.bincount((due_ms - 1) // STEP_MS - first, minlength=len(counts))
        self._counted_to[block.number] = block.durable

    def counted_to(self, block: Block) -> int:
        """Return the index before which messages are counted, or will be counted once the block is added."""
        return self._counted_to.get(block.number, block.durable)

    def drop(self, number: int) -> None:
        for table in (self._counts, self._firsts, self._counted_to):
            table.pop(number, None)

    def between(self, after_ms: int, through_ms: int) -> dict[int, Counts]:
        """Return the counts of the entries from `after_ms` to before `through_ms`, by block. Omit empty blocks."""
        start, stop = after_ms // STEP_MS, through_ms // STEP_MS
        found = {}
        for number, counts in self._counts.items():
            first = self._firsts[number]
            mine = np.zeros(max(0, stop - start), np.int64)
            lo, hi = max(start, first), min(stop, first + len(counts))
            if lo < hi:
                mine[lo - start : hi - start] = counts[lo - first : hi - first]
                if mine.any():
                    found[number] = mine
        return found


def entries_of(due_ms: npt.NDArray[np.int64], after_ms: int) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = (due_ms - 1) // STEP_MS - after_ms // STEP_MS
    return places
