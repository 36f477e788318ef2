"""Find the pending messages of a block by due time and topic. The records are read only for their topics."""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.api import Found, Wanted
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.done import IndexBits
from wheelmq.delay.pending_scan import are_pending
from wheelmq.formats.kernels import scan
from wheelmq.system.clock import Clock

RECORDS_AT_ONCE: Final = 500
"""Records of a block that are read together. Then the time is checked, as some records need the slow plain code."""

_NOTHING: Final = np.empty(0, np.int64)


def find_in_block(
    block: Block, done: IndexBits, first: int, stop: int, wanted: Wanted, clock: Clock, until_s: float
) -> Found:
    """Find the wanted messages of a block from index `first` to before `stop`. Stop reading records at `until_s`."""
    records = UnitRecords(block.log.files, block.number, check_bodies=False)
    found = [(_NOTHING, _NOTHING)]
    at_once = stop if wanted.topic is None else RECORDS_AT_ONCE
    while first < stop:
        units = block.queue.read(first, min(stop - first, at_once))
        indices, due_ms = first + np.arange(len(units)), units["due_ms"].astype(np.int64)
        mine = (due_ms >= wanted.from_ms) & (due_ms < wanted.to_ms) & are_pending(done, first, units)
        first += len(units)
        if wanted.topic is not None:
            at = np.flatnonzero(mine)
            rows = records.read(indices[at], units[at])
            topic = records.names.intern(wanted.topic)
            mine[at] = (rows[:, scan.SIZE] > 0) & (rows[:, scan.REAL_TOPIC] == topic)
            if clock.monotonic() >= until_s:
                stop = first
        found.append((indices[mine], due_ms[mine]))
    indices, dues_ms = (np.concatenate(column) for column in zip(*found, strict=True))
    return Found(indices, dues_ms, first)
