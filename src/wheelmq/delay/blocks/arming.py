"""Arm messages of blocks: from the units of a block's queue, or from the rows of a turn."""

from __future__ import annotations

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.refs import Refs
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.formats.disk.block import FLAG_LONG
from wheelmq.formats.disk.origin import block_stream, origin_of


def arm_units(pending: PendingTable, block: Block, indices: Indices, units: Units, *, by: str) -> None:
    """Arm the messages of `units` without a turn. Blanks are left out. `by` names the counter of armed messages."""
    refs = ref.make(len(indices))
    refs[:, ref.FIRE_MS] = units["due_ms"]
    refs[:, ref.ORIGIN] = indices | origin_of(block_stream(block.number), 0)
    refs[:, ref.POSITION] = units["position"]
    refs[:, ref.SIZE] = units["size"]
    refs[:, ref.FLAGS] = np.where(units["flags"] & FLAG_LONG, ref.FLAG_LONG, 0)
    refs = refs[refs[:, ref.SIZE] > 0]
    if len(refs):
        pending.arm(ref.by_fire_time(refs), enqueue_ms=ref.NO_ENQUEUE_MS, by=by)


def arm_rows(pending: PendingTable, rows: TurnRows, write_ms: int) -> Refs:
    """Arm the messages of a turn's rows, which are sorted by fire time. Returns a reference to each of them."""
    refs = ref.make(len(rows))
    for column, name in (
        (ref.FIRE_MS, "fire_ms"),
        (ref.ORIGIN, "origin"),
        (ref.POSITION, "position"),
        (ref.SIZE, "size"),
    ):
        refs[:, column] = rows[name]
    refs[:, ref.FLAGS] = np.where(rows["delay_ms"] > ref.LONG_DELAY_MS, ref.FLAG_LONG, 0)
    pending.arm(refs, enqueue_ms=write_ms, by="pipeline")
    return refs
