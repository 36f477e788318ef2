"""Where a block ends, and how far two copies of a block agree.

Each record has the epoch of the master that stored it (docs/adr/0033-copies-of-blocks.md). Within its epoch, a master
only appends. So two blocks with the same record at the same place are the same before it too (Raft: log matching).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.queue import Units
from wheelmq.formats.disk.block import BLOCK_UNIT
from wheelmq.formats.disk.message import has_form, prepared_position_of
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.block_replication import BlockPlace, BlockVerdict, VerdictKind
from wheelmq.store.mapped import HeldFiles

_BACK_UNITS: Final = 512
"""Units that one step of a search backwards reads."""


class HeldBlock:
    """The units and records that a block has now. They may be read off the event loop."""

    def __init__(self, block: Block) -> None:
        self.number, self.start_ms, self.end_ms = block.number, block.start_ms, block.end_ms
        self.end = block.queue.end
        self._units = HeldFiles(block.queue.files, 0, self.end * BLOCK_UNIT.size - 1)
        self._log = HeldFiles(block.log.files, 0, block.log.end - 1)

    def place(self) -> BlockPlace:
        """Return the end of the block."""
        return self._place(self.last_record(self.end), self.end)

    def place_up_to(self, index: int, epoch: int) -> BlockPlace:
        """Return the place of the last record up to `index` and up to `epoch`, without units after it."""
        found = self.last_of_epochs(min(index + 1, self.end), epoch)
        return self._place(found, found + 1)

    def _place(self, index: int, units: int) -> BlockPlace:
        if index < 0:
            return BlockPlace(self.number, self.start_ms, units, -1, LogPosition(0), 0, -1)
        unit = self._units_at(index, 1)[0]
        position, size = LogPosition(int(unit["position"])), int(unit["size"])
        epoch = self._epoch_of(index)
        return BlockPlace(self.number, self.start_ms, units, index, position, size, -1 if epoch is None else epoch)

    def verdict(self, place: BlockPlace) -> BlockVerdict:
        """Return how far the copy that ends at `place` agrees with this block."""
        if place.start_ms != self.start_ms:
            return BlockVerdict(self.number, VerdictKind.SHORTER, self.end_ms)
        if place.last_index >= 0 and not self._has(place):
            last = self.last_of_epochs(min(place.last_index, self.end), place.epoch)
            epoch = self._epoch_of(last) if last >= 0 else None
            return BlockVerdict(self.number, VerdictKind.SHORTER, self.end_ms, last, -1 if epoch is None else epoch)
        if place.units > self.end or self.last_record(place.units) > place.last_index:
            return BlockVerdict(self.number, VerdictKind.SHORTER, self.end_ms, place.last_index, place.epoch)
        return BlockVerdict(self.number, VerdictKind.AGREES, self.end_ms)

    def _has(self, place: BlockPlace) -> bool:
        if place.last_index >= self.end:
            return False
        unit = self._units_at(place.last_index, 1)[0]
        if (int(unit["position"]), int(unit["size"])) != (place.position, place.size):
            return False
        return self._epoch_of(place.last_index) in (None, place.epoch)

    def last_record(self, stop: int) -> int:
        """Return the index of the last message before index `stop`, or -1."""
        units_per_file = self._units.file_bytes // BLOCK_UNIT.size
        while stop > 0:
            first = max((stop - 1) // units_per_file * units_per_file, stop - _BACK_UNITS)
            named = np.flatnonzero(self._units_at(first, stop - first)["size"])
            if len(named):
                return first + int(named[-1])
            stop = first
        return -1

    def last_of_epochs(self, stop: int, epoch: int) -> int:
        """Return the index of the last message before `stop` that was stored up to `epoch`, or -1.

        Epochs never fall from one message to the next.
        """
        low, high = 0, self.last_record(stop)
        if high < 0 or self._is_up_to(high, epoch):
            return high
        while low < high:  # the record at `high` has a later epoch, and none before `low` has
            middle = (low + high) // 2
            found = self.last_record(middle + 1)
            if found < low or self._is_up_to(found, epoch):
                low = middle + 1
            else:
                high = found
        return self.last_record(high)

    def _is_up_to(self, index: int, epoch: int) -> bool:
        found = self._epoch_of(index)
        return found is None or found <= epoch

    def _epoch_of(self, index: int) -> int | None:
        """Return the epoch of the record at `index`; None if its head is damaged."""
        unit = self._units_at(index, 1)[0]
        position, size = int(unit["position"]), int(unit["size"])
        if not self._log.start <= position or position + size > self._log.end:
            return None
        view = self._log.read(position, size)
        return prepared_position_of(view) if has_form(view, 0, size, position) else None

    def _units_at(self, index: int, count: int) -> Units:
        """Return units of one file."""
        raw = bytes(self._units.read(index * BLOCK_UNIT.size, count * BLOCK_UNIT.size))
        return np.frombuffer(raw, BLOCK_UNIT.dtype)
