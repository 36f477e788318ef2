"""Find the pending messages of blocks at a start, after the scan of the commit log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import Block
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.queue import Indices, Units
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.done import DoneBits
from wheelmq.delay.intake import Integers
from wheelmq.delay.pending import PendingTable
from wheelmq.formats.disk.origin import KIND_BLOCK, block_stream, origin_of, stream_kind, stream_number
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store

log = logging.getLogger(__name__)


class FoundPending(NamedTuple):
    """Pending messages of one block."""

    indices: Indices
    units: Units
    real_queues: Integers
    """Rows of their real queues. A damaged message has none."""


def settle_by_log(blocks: Blocks, done: DoneBits, gone: dict[int, LogPosition]) -> None:
    """Apply the done bits of the scan to the blocks, and end the streams of blocks that are gone. Raises DiskFull.

    `gone` has the blocks that were gone before the scan, as from `Blocks.gone`.
    """
    streams = [stream for stream in done.streams() if stream_kind(stream) == KIND_BLOCK]
    blocks.resume({stream_number(stream): done.of(stream).ones() for stream in streams}, gone)
    for number in blocks.gone():
        done.end(block_stream(number))


def pending_of(store: Store, block: Block, pending: PendingTable) -> Iterator[FoundPending]:
    """Note the pending messages of a block in `pending`, and yield them. A message with a damaged record is settled."""
    done, first_origin = pending.done, origin_of(block_stream(block.number), 0)
    done.update(block.queue.done() | first_origin)
    records = UnitRecords(block.log.files, block.number)
    for first, units in block.queue.chunks():
        waits = ~done.of(block_stream(block.number)).get(first + np.arange(len(units)))
        indices, waiting = first + np.flatnonzero(waits), units[waits]
        rows = records.read(indices, waiting)
        is_there = rows[:, col.SIZE] > 0
        for index in indices[~is_there].tolist():
            log.critical("%s: the message at index %d is set aside: its record is damaged", block.paths.folder, index)
        origins = indices | first_origin
        done.update(origins[~is_there])
        rows, origins = rows[is_there], origins[is_there]
        real_queues = store.queue_rows(rows[:, col.REAL_TOPIC], rows[:, col.REAL_QUEUE_ID], records.names)
        pending.counts.add(real_queues)
        pending.keys.add_elsewhere(rows[:, col.KEY_HASH], origins, done)
        yield FoundPending(indices, waiting, real_queues)
