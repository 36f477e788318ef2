"""The messages of blocks that records of the commit log settle, until the units of these messages are flagged."""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.done import Flags, Origins
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    KIND_BLOCK,
    KIND_SHIFT,
    Stream,
    block_stream,
    by_stream,
    stream_number,
)
from wheelmq.formats.kernels import journal as row
from wheelmq.formats.units import LogPosition
from wheelmq.store.journal import Rows


class _Settled(NamedTuple):
    """Origins that the records of one tick settle. The records are from log position `first` to `before`."""

    first: LogPosition
    before: LogPosition
    origins: Origins


class BlockSettlement:
    """The settled messages whose units are not flagged, in the order of the log."""

    def __init__(self, blocks: Blocks, in_blocks: PendingInBlocks) -> None:
        self._blocks = blocks
        self._in_blocks = in_blocks
        self._settled: deque[_Settled] = deque()
        self._unchecked: set[Stream] = set()
        """The blocks that may have other messages than those of the master."""

    def note(self, rows: Rows, before: LogPosition) -> None:
        """Note messages of blocks that the journal's `rows` settle before `before`. They are not pending any more."""
        is_mine = _settle_in_blocks(rows)
        origins = rows[is_mine, row.SETTLES]
        if len(origins):
            self._settled.append(_Settled(LogPosition(int(rows[0, row.POSITION])), before, origins))
        self._in_blocks.settle(rows[is_mine, row.REAL_QUEUE])

    def lacks(self, origins: Origins) -> Flags:
        """Return which messages are of blocks and are not counted here.

        They have not come yet, were set aside, or are blank because a former master lost them after their release.
        """
        found: Flags = origins >> KIND_SHIFT == KIND_BLOCK
        places = np.flatnonzero(found)
        for stream, mine in by_stream(origins[places]):
            block = self._blocks.get(stream_number(stream))
            if block is not None:
                indices = origins[places[mine]] & INDEX_MASK
                is_counted = (indices < block.queue.end) & ~np.isin(indices, list(block.set_aside))
                found[places[mine]] = ~is_counted | block.queue.are_blank(indices)
        return found

    def note_unchecked(self) -> None:
        """Note that the messages of all present blocks may be others than those of the master."""
        self._unchecked = {block_stream(block.number) for block in self._blocks}

    def note_checked(self, number: int) -> None:
        """Note that the messages of a block are those of the master."""
        self._unchecked.discard(block_stream(number))

    def may_differ(self, origins: Origins) -> Flags:
        """Return which messages are of blocks that may have others than the blocks of the master."""
        found: Flags = np.isin(origins >> INDEX_BITS, list(self._unchecked))
        return found

    def unflagged(self, running: Rows, after: LogPosition) -> set[int]:
        """Return the numbers of blocks with settled, unflagged messages. `running` are the rows of this tick.

        Only records that end after log position `after` count.
        """
        waiting = (one.origins for one in self._settled if one.before > after)
        settled = [*waiting, running[_settle_in_blocks(running), row.SETTLES]]
        return {stream_number(stream) for origins in settled for stream, _ in by_stream(origins)}

    def flag(self, synced: LogPosition) -> LogPosition:
        """Flag messages that records before `synced`, on disk, settle. Returns the position up to which all are."""
        ready = list(itertools.takewhile(lambda one: one.before <= synced, self._settled))
        if ready:
            origins = np.concatenate([one.origins for one in ready])
            ends = np.cumsum([len(one.origins) for one in ready])
            count = int(np.searchsorted(ends, self._flag(origins, ends), "right"))
            for _ in range(count):
                self._settled.popleft()
        return min(synced, self._settled[0].first) if self._settled else synced

    def _flag(self, origins: Origins, ends: npt.NDArray[np.int64]) -> int:
        """Flag messages at the front of `origins`, by whole parts that are on disk. Returns their number."""
        by_block: list[tuple[Block, npt.NDArray[np.intp]]] = []
        is_late = np.zeros(len(origins), np.bool_)
        for stream, mine in by_stream(origins):
            block = self._blocks.get(stream_number(stream))
            if block is not None:
                places = np.arange(len(origins))[mine]
                is_late[places] = origins[places] & INDEX_MASK >= block.durable
                by_block.append((block, places))
        count = int(is_late.argmax()) if is_late.any() else len(origins)
        whole = int(ends[np.searchsorted(ends, count, "right") - 1]) if count >= ends[0] else 0
        for block, places in by_block:
            block.queue.flag_done(origins[places[places < whole]] & INDEX_MASK)
        return whole


def _settle_in_blocks(rows: Rows) -> Flags:
    found: Flags = rows[:, row.SETTLES] >> KIND_SHIFT == KIND_BLOCK
    return found
