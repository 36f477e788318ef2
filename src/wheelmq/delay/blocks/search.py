"""A search for a key through the logs of blocks, whose records no index knows.

Those logs may have been written months ago, and then they come from a cold disk: so the search runs beside the loop. It
goes over what blocks held when it was begun; what it finds is looked at on the loop.
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
"""Bytes of blocks' logs that one look searches: a search through gigabytes takes many, none of them long."""
FOUND_MAX: Final = 64
"""Records that one look finds."""
UNDER_WAY_MAX: Final = 16
"""Looks that may be under way at once."""
END: Final = Origin(1 << 62)
"""Behind all places."""
_UNITS_MAX: Final = 5000
_BLOCK_BYTES: Final = 1 << 16
"""To begin with another block costs about as much as to search so many bytes."""
_SEPARATORS: Final = rb"[\x01\x02\s]"
"""What stands before and behind a key in a record's properties."""


class Searched(NamedTuple):
    """What one look found."""

    origins: list[Origin]
    """Of records in which the key stands as one may, in their order. They may be of other messages all the same."""
    next_place: Origin
    """Where the next look begins; `END` when this was the last."""


class Searches:
    """Looks beside the loop, a bounded number of them at once."""

    def __init__(self, blocks: Blocks, worker: Worker) -> None:
        self._blocks = blocks
        self._worker = worker
        self._under_way = 0

    def begin(self, key: str, place: int, done: Callable[[Any], None]) -> bool:
        """Look for `key` from `place` on, which is an origin, and tell `done` (Searched, or what was raised).

        False, with nothing begun, while too many are under way.
        """
        if self._under_way >= UNDER_WAY_MAX:
            return False
        self._under_way += 1

        def end(result: Any) -> None:
            self._under_way -= 1
            done(result)

        self._worker.submit(search_job(self._blocks, key, place), end)
        return True


class _SearchedBlock(NamedTuple):
    """A block as it is when a look begins."""

    first: Origin
    """That of index 0."""
    start: int
    """The index at which the look begins."""
    end: int
    units: HeldFiles
    log: HeldFiles

    def read(self, index: int) -> Units:
        """The units from `index` on, as many as are taken at once and one file holds."""
        at = index * BLOCK_UNIT.size
        file, at = self.units.file_at(at), at % self.units.file_bytes
        stop = min(at + min(_UNITS_MAX, self.end - index) * BLOCK_UNIT.size, self.units.file_bytes)
        file.populate(at, stop)
        return file.array[at:stop].view(BLOCK_UNIT.dtype)

    def records(self, position: int, end: int) -> bytes:
        """The bytes of the log from `position` to `end`, which are in one file."""
        file, at = self.log.file_at(position), position % self.log.file_bytes
        file.populate(at, at + end - position)
        return bytes(file.view[at : at + end - position])


def search_job(blocks: Blocks, key: str, place: int) -> Callable[[], Searched]:
    """What looks for `key` from `place` on, and may run beside the loop."""
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
    """Which of `units` name records in which `key` stands as one may, in their order."""
    wanted = re.compile(_SEPARATORS + re.escape(key) + _SEPARATORS)
    named = np.flatnonzero(units["size"] > 0)
    positions = units["position"][named].astype(np.int64)
    ends = positions + units["size"][named]
    if not can_be_records(positions, ends - positions, block.log):  # units that no start looks at any more
        yield from named.tolist()
        return
    numbers = positions // block.log.file_bytes
    for number in np.unique(numbers).tolist():
        mine = np.flatnonzero(numbers == number)
        start = int(positions[mine[0]])
        raw = block.records(start, int(ends[mine[-1]]))
        at = raw.find(key)  # faster, and mostly it stands nowhere
        while at >= 0 and (hit := wanted.search(raw, max(0, at - 1))) is not None:
            which = int(np.searchsorted(positions, start + hit.start(), "right")) - 1
            yield int(named[which])
            at = int(ends[which]) - start
