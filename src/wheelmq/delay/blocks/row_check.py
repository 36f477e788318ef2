"""Check a turn's rows of blocks: their numbers against the block wheel, and each row against its unit."""

from __future__ import annotations

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.wheel import STEP_MS, BlockWheel, Counts, entries_of
from wheelmq.delay.timer.row_check import check_order, gather
from wheelmq.delay.timer.rows import TurnRows
from wheelmq.delay.timer.turns import BlockWindow, TurnRejected
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    KIND_BLOCK,
    block_stream,
    by_stream,
    stream_kind,
    stream_number,
)
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, TURN_ROW


def check_window(
    window: BlockWindow | None,
    planned: dict[int, Counts] | None,
    parts: list[TurnRows],
    blocks: Blocks,
    wheel: BlockWheel,
) -> None:
    """Check that each entry has the counted number of rows, and rows agree with units. Raises TurnRejected.

    `planned` has the counts of the entries of `window`, by block; None without a plan. A block may have been removed
    since the plan. Then its messages are settled, and its rows arm nothing.
    """
    for part in parts:
        check_order(part, KIND_BLOCKS)
    rows = np.concatenate(parts) if parts else np.empty(0, TURN_ROW)
    if window is None or planned is None:
        if len(rows):
            raise TurnRejected(f"{KIND_BLOCKS}: received {len(rows)} rows, but the plan has none")
        return
    found = _counts(window, rows)
    if found.keys() != planned.keys():
        raise TurnRejected(f"{KIND_BLOCKS}: the rows are of blocks {sorted(found)}, not {sorted(planned)}")
    for number, counts in planned.items():
        if not np.array_equal(counts, found[number]):
            wrong = int(np.flatnonzero(counts != found[number])[0])
            second_ms = window.after_ms + wrong * STEP_MS
            raise TurnRejected(
                f"{KIND_BLOCKS}: second {second_ms} of block {number} has {counts[wrong]} messages, but "
                f"{found[number][wrong]} rows arrived"
            )
        block = blocks.get(number)
        if block is not None:
            _check_rows(block, rows, wheel.counted_to(block))


def _counts(window: BlockWindow, rows: TurnRows) -> dict[int, Counts]:
    found: dict[int, Counts] = {}
    entries = (window.through_ms - window.after_ms) // STEP_MS
    for stream, mine in by_stream(rows["origin"]):
        places = entries_of(rows["fire_ms"][mine], window.after_ms)
        if stream_kind(stream) != KIND_BLOCK or places.min() < 0 or places.max() >= entries:
            raise TurnRejected(f"{KIND_BLOCKS}: the second or the block of a row is not in the plan")
        if (np.diff(np.sort(rows["origin"][mine])) == 0).any():  # np.unique takes a second for a million
            raise TurnRejected(f"{KIND_BLOCKS}: two rows have the same message")
        found[stream_number(stream)] = np.bincount(places, minlength=entries)
    return found


def _check_rows(block: Block, rows: TurnRows, units: int) -> None:
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
