"""What waits in the blocks of a store that no broker has open, read from their logs without changing a byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wheelmq.delay.blocks.block import read_checkpoint
from wheelmq.delay.done import DoneBits, Indices
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_DONE, REMOVED, block_start_ms
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan
from wheelmq.system.disk import Disk


def waiting_in_blocks(disk: Disk, paths: StorePaths, done: DoneBits) -> Iterator[Record]:
    """The records of messages in blocks that are not out, block after block in the order of their times.

    `done` is what the commit log says. Raises OSError.
    """
    for name in sorted(name for name in disk.list(paths.blocks) if block_start_ms(name) is not None):
        folder = BlockPaths(paths.blocks / name)
        found = read_checkpoint(disk, folder.checkpoint)
        log = _files(disk, folder.log)
        if log is None or (found is not None and found[1].log_position == REMOVED):
            continue
        flagged = _flagged(_files(disk, folder.queue))
        for rows in LogScan(log, LogPosition(0)).chunks():
            numbered = rows[:, [col.QUEUE_ID, col.QUEUE_OFFSET, col.POSITION]]
            for number, index, position in numbered[~np.isin(numbered[:, 1], flagged)].tolist():
                if origin_of(block_stream(number), index) not in done:
                    yield decode_record(log.file_at(position).view[position % log.file_bytes :])


def _files(disk: Disk, folder: Path) -> MappedSequence | None:
    """The files of a folder; how large they are, the first one tells. None when there is none."""
    names = [name for name in disk.list(folder) if name.isdigit()]
    return MappedSequence(disk, folder, (folder / names[0]).stat().st_size) if names else None


def _flagged(queue: MappedSequence | None) -> Indices:
    """The indices whose units say that their messages are out."""
    found = [np.empty(0, np.int64)]
    for position, file, at, stop in queue.pieces(0, queue.end) if queue is not None else ():
        units = file.array[at:stop].view(BLOCK_UNIT.dtype)
        found.append(position // BLOCK_UNIT.size + np.flatnonzero(units["flags"] & FLAG_DONE))
    return np.concatenate(found)
