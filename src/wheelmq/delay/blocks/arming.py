"""Arm messages of blocks: from the units of a block's queue, or from the rows of a turn."""

from __future__ import annotations

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.pending import PendingTable
from wheelmq.delay.refs import Refs
from wheelmq.delay.timer.rows import TurnRows, refs_of_rows
from wheelmq.formats.disk.block import FLAG_LONG
from wheelmq.formats.disk.origin import block_stream, origin_of


def arm_units(pending: PendingTable, block: Block, indices: Indices, units: Units, *, by: str) -> None:
    """Arm the messages of `units` without a turn. Blanks are left out. `by` names the counter of armed messages."""
    origins = indices | origin_of(block_stream(block.number), 0)
    refs = ref.build(units["due_ms"], origins, units["position"], units["size"], units["flags"] & FLAG_LONG)
    refs = refs[refs[:, ref.SIZE] > 0]
    if len(refs):
        pending.arm(ref.by_fire_time(refs), enqueue_ms=ref.NO_ENQUEUE_MS, by=by)


def arm_rows(pending: PendingTable, rows: TurnRows, write_ms: int) -> Refs:
    refs = refs_of_rows(rows)
    pending.arm(refs, enqueue_ms=write_ms, by="pipeline")
    return refs
