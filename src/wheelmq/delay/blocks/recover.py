"""Find the pending messages of blocks at a start, after the scan of the commit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.origin import (
    KIND_BLOCK,
    Stream,
    block_stream,
    origin_of,
    stream_kind,
    stream_number,
)
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store

log = logging.getLogger(__name__)


class FoundPending(NamedTuple):
    """Pending messages of one block."""

    indices: Indices
    units: Units


def settle_by_log(blocks: Blocks, done: DoneBits, gone: dict[int, LogPosition]) -> None:
    """Apply the done bits of the scan to the blocks.

    `gone` has the gone blocks of the snapshot from which the scan began. Raises OSError.
    """
    blocks.resume({stream_number(stream): done.of(stream).ones() for stream in block_streams(done)}, gone)


def block_streams(done: DoneBits) -> list[Stream]:
    """Return the streams of blocks that have not ended."""
    return [one for one in done.streams() if stream_kind(one) == KIND_BLOCK and not done.has_ended(one)]


def pending_of(store: Store, block: Block, in_blocks: PendingInBlocks, done: DoneBits) -> Iterator[FoundPending]:
    """Add the pending messages of a block to `in_blocks`, and yield them. One with a damaged record is settled."""
    first_origin = origin_of(block_stream(block.number), 0)
    done.update(block.queue.done() | first_origin)
    records = UnitRecords(block.log.files, block.number)
    for first, units in block.queue.chunks():
        waits = ~done.of(block_stream(block.number)).get(first + np.arange(len(units)))
        indices, waiting = first + np.flatnonzero(waits), units[waits]
        rows = records.read(indices, waiting)
        is_there = rows[:, col.SIZE] > 0
        for index in indices[~is_there].tolist():
            log.critical("%s: the message at index %d is set aside: its record is damaged", block.paths.folder, index)
        block.set_aside.update(indices[~is_there].tolist())
        origins = indices | first_origin
        done.update(origins[~is_there])
        indices, waiting, rows, origins = indices[is_there], waiting[is_there], rows[is_there], origins[is_there]
        real_queues = store.queue_rows(rows[:, col.REAL_TOPIC], rows[:, col.REAL_QUEUE_ID], records.names)
        in_blocks.add_found(origins, rows[:, col.KEY_HASH], real_queues)
        yield FoundPending(indices, waiting)
