"""Staging of blocks in a task of a turn: read the messages due within the plan's window from the blocks' queues.

A unit has all the values of a reference, so no record is read. The module does not depend on Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.wheel import STEP_MS
from wheelmq.delay.refs import store_ms_of
from wheelmq.delay.timer.staging import StagedRows
from wheelmq.delay.timer.view import ReadView, StoreUnreadable
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_LONG
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.disk.timer import MAGIC_DEFAULT
from wheelmq.formats.disk.turn_row import BLOCKS, STAGED_ROW
from wheelmq.formats.wire.portions import FileKind


def read_blocks(view: ReadView, window: dict[str, Any], *, write_ms: int, turn: int) -> StagedRows:
    """Return the rows for `window`, the plan's window as a dict. Raises StoreUnreadable and the view's errors."""
    found = [np.zeros(0, STAGED_ROW)]
    for number, name, count in window["blocks"]:
        units = _units(view, name, count)
        mine = np.flatnonzero(
            (units["due_ms"] > window["after_ms"]) & (units["due_ms"] <= window["through_ms"]) & (units["size"] > 0)
        )
        units = units[mine]
        rows = np.zeros(len(units), STAGED_ROW)
        rows["kind"] = BLOCKS
        rows["origin"] = origin_of(block_stream(number), 0) | mine
        rows["due_ms"] = units["due_ms"]
        rows["out_ms"] = (units["due_ms"] - 1) // STEP_MS * STEP_MS
        rows["store_ms"] = store_ms_of(units["due_ms"], units["flags"] & FLAG_LONG)
        rows["position"] = units["position"]
        rows["size"] = units["size"]
        rows["magic"] = MAGIC_DEFAULT
        found.append(rows)
    rows = np.concatenate(found)
    rows["write_ms"], rows["turn"] = write_ms, turn
    return rows


def _units(view: ReadView, name: str, count: int) -> npt.NDArray[Any]:
    stop = count * BLOCK_UNIT.size
    view.need(FileKind.BLOCK, np.array([0]), np.array([stop]), name)
    files = view.block_queue(name)
    if files.end < stop:
        raise StoreUnreadable(f"the queue of block {name} ends before unit {count} of the plan")
    units = np.zeros(count, BLOCK_UNIT.dtype)
    at = 0
    while at < stop:
        size = min(stop - at, files.file_bytes - at % files.file_bytes)
        first = at // BLOCK_UNIT.size
        units[first : first + size // BLOCK_UNIT.size] = np.frombuffer(files.read(at, size), BLOCK_UNIT.dtype)
        at += size
    return units
