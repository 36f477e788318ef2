"""Check a turn's rows of one block against the units of its queue."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.timer.row_check import gather
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import TurnRejected
from wheelmq.formats.disk.origin import INDEX_BITS, INDEX_MASK, block_stream
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import KIND_BLOCKS


def check_rows(block: Block, rows: TurnRows, units: int) -> None:
    """Check the rows of `block` among `rows` against its first `units` units. Raises TurnRejected."""
    rows = rows[rows["origin"] >> INDEX_BITS == block_stream(block.number)]
    rows = rows[np.argsort(rows["origin"], kind="stable")]
    indices = rows["origin"] & INDEX_MASK
    if len(rows) and indices[-1] >= units:
        raise TurnRejected(f"{KIND_BLOCKS}: block {block.number} has {units} units, but a row names unit {indices[-1]}")
    found = gather(block.queue.read, indices)
    differs = rows["magic"] != MAGIC_DEFAULT
    for name, known in (("position", "position"), ("size", "size"), ("fire_ms", "due_ms")):
        differs |= rows[name] != found[known]
    if differs.any():
        row = rows[int(np.argmax(differs))]
        raise TurnRejected(
            f"{KIND_BLOCKS}: the row of origin {int(row['origin']):#x} (position {row['position']}, size "
            f"{row['size']}, fire {row['fire_ms']}, magic {row['magic']}) does not agree with its unit"
        )
