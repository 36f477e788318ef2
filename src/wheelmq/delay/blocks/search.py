"""Search for a key in the logs of blocks, whose records no index has.

A worker searches the messages that the blocks had at its start. The event loop checks the results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.queue import Units
from wheelmq.delay.blocks.records import can_be_records
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.origin import Origin, block_stream, origin_of
from wheelmq.store.mapped import HeldFiles
from wheelmq.system.workers import Worker

SEARCHED_BYTES: Final = 2 << 20
"""Bytes of blocks' logs in one search step. A search through gigabytes takes many short steps."""
FOUND_MAX: Final = 64
"""Limit of the records that one step finds."""
UNDER_WAY_MAX: Final = 16
"""Limit of the steps that run at the same time."""
END: Final = Origin(1 << 62)
"""The place after all other places."""
_UNITS_MAX: Final = 5000
_BLOCK_BYTES: Final = 1 << 16
"""Approximate cost of beginning another block, in searched bytes."""
_SEPARATORS: Final = rb"[\x01\x02\s]"
"""The characters before and after a key in a record's properties."""


class Searched(NamedTuple):
    origins: list[Origin]
    """Origins of records with the key between separators, in order. Some may belong to other messages."""
    next_place: Origin
    """The place at which the next step begins; `END` when this was the last."""


class Searches:
    """Runs search steps in a worker, a limited number of them at the same time."""

    def __init__(self, blocks: Blocks, worker: Worker) -> None:
        self._blocks = blocks
        self._worker = worker
        self._under_way = 0

    def begin(self, key: str, place: int, done: Callable[[Any], None]) -> bool:
        """Search for `key` from `place` on. `done` gets the Searched or the exception. False if too many steps run."""
        if self._under_way >= UNDER_WAY_MAX:
            return False
        self._under_way += 1

        def end(result: Any) -> None:
            self._under_way -= 1
            done(result)

        self._worker.submit(search_job(self._blocks, key, place), end)
        return True


class _SearchedBlock(NamedTuple):
    """The state of a block when a search step begins."""

    first: Origin
    """Origin of index 0."""
    start: int
    """The index at which the step begins."""
    end: int
    units: HeldFiles
    log: HeldFiles

    def read(self, index: int) -> Units:
        at = index * BLOCK_UNIT.size
        file, at = self.units.file_at(at), at % self.units.file_bytes
        stop = min(at + min(_UNITS_MAX, self.end - index) * BLOCK_UNIT.size, self.units.file_bytes)
        file.populate(at, stop)
        return file.array[at:stop].view(BLOCK_UNIT.dtype)

    def records(self, position: int, end: int) -> bytes:
        """Return the bytes of the log from `position` to `end`, which are in one file."""
        file, at = self.log.file_at(position), position % self.log.file_bytes
        file.populate(at, at + end - position)
        return bytes(file.view[at : at + end - position])


def search_job(blocks: Blocks, key: str, place: int) -> Callable[[], Searched]:
    """Return the job that searches for `key` from `place` on. The job may run off the event loop."""
    held: list[_SearchedBlock] = []
    for block in sorted(blocks, key=lambda block: block.number):
        first = origin_of(block_stream(block.number), 0)
        index = max(0, place - first)
        if index >= block.queue.end:
            continue
        if len(held) * _BLOCK_BYTES >= SEARCHED_BYTES:
            beyond = Origin(first + index)
            break
        held.append(_hold(block, first, index))
    else:
        beyond = END
    return lambda: _search(held, key.encode(), beyond)


def _hold(block: Block, first: Origin, index: int) -> _SearchedBlock:
    end = block.queue.end
    units = HeldFiles(block.queue.files, index * BLOCK_UNIT.size, end * BLOCK_UNIT.size - 1)
    return _SearchedBlock(first, index, end, units, HeldFiles(block.log.files, 0, block.log.end - 1))


def _search(held: list[_SearchedBlock], key: bytes, beyond: Origin) -> Searched:
    found: list[Origin] = []
    left = SEARCHED_BYTES
    for block in held:
        index = block.start
        while index < block.end:
            if left <= 0 or len(found) >= FOUND_MAX:
                return Searched(found, Origin(block.first + index))
            units = block.read(index)
            searched = np.cumsum(units["size"], dtype=np.int64)
            units = units[: max(1, int(np.searchsorted(searched, left, "right")))]
            left -= int(searched[len(units) - 1])
            stop = index + len(units)
            for at in _with_key(block, units, key):
                found.append(Origin(block.first + index + at))
                if len(found) >= FOUND_MAX:
                    stop = index + at + 1
                    break
            index = stop
        left -= _BLOCK_BYTES
    return Searched(found, beyond)


def _with_key(block: _SearchedBlock, units: Units, key: bytes) -> Iterator[int]:
    """Yield the places of those `units` whose records have `key` between separators, in order."""
    wanted = re.compile(_SEPARATORS + re.escape(key) + _SEPARATORS)
    named = np.flatnonzero(units["size"] > 0)
    positions = units["position"][named].astype(np.int64)
    ends = positions + units["size"][named]
    if not can_be_records(positions, ends - positions, block.log):  # old units that a start does not check
        yield from named.tolist()
        return
    numbers = positions // block.log.file_bytes
    for number in np.unique(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        start = int(positions[mine[0]])
        raw = block.records(start, int(ends[mine[-1]]))
        at = raw.find(key)  # faster than the pattern, and most searches find nothing
        while at >= 0 and (hit := wanted.search(raw, max(0, at - 1))) is not None:
            which = int(np.searchsorted(positions, start + hit.start(), "right")) - 1
            yield int(named[which])
            at = int(ends[which]) - start
