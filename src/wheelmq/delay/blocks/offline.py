"""Read the pending messages in the blocks of a store that no broker has open, without changing a byte.

The rule is that of recovery (`Block.recover`): first the records that units on disk name, then the log after them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wheelmq.delay.blocks.block import read_checkpoint
from wheelmq.delay.blocks.queue import BlockQueue
from wheelmq.delay.blocks.records import UnitRecords
from wheelmq.delay.done import DoneBits
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_BLANK, FLAG_DONE, REMOVED, BlockCheckpoint, block_start_ms
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.disk.origin import STREAM_BITS, block_stream, origin_of
from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogDamaged, LogScan, Rows
from wheelmq.system.disk import Disk


class _Files(NamedTuple):
    number: int
    known: BlockCheckpoint
    log: MappedSequence
    queue: MappedSequence | None


def waiting_in_blocks(disk: Disk, paths: StorePaths, done: DoneBits) -> Iterator[Record]:
    """Yield the records of the messages in blocks that `done` does not settle, by block number. Raises OSError."""
    found = (_find(disk, BlockPaths(paths.blocks / name), name) for name in disk.list(paths.blocks))
    for files in sorted(filter(None, found), key=lambda files: files.number):
        for rows in _rows(files):
            origins = rows[:, col.QUEUE_OFFSET] | origin_of(block_stream(files.number), 0)
            for position in rows[~done.get(origins), col.POSITION].tolist():
                yield decode_record(files.log.file_at(position).view[position % files.log.file_bytes :])


def _find(disk: Disk, folder: BlockPaths, name: str) -> _Files | None:
    start_ms = block_start_ms(name)
    log = None if start_ms is None else _files(disk, folder.log)
    if start_ms is None or log is None:
        return None
    checkpoint = read_checkpoint(disk, folder.checkpoint)
    if checkpoint is not None:
        known = checkpoint[1]
        number = known.number
    else:  # the first record has the number
        known = BlockCheckpoint(0, start_ms, Millis(start_ms + 1000))
        number = next((int(rows[0, col.QUEUE_ID]) for rows in LogScan(log, LogPosition(0)).chunks()), 0)
    if known.log_position == REMOVED or not 0 < number < 1 << STREAM_BITS:
        return None
    return _Files(number, known, log, _files(disk, folder.queue))


def _rows(files: _Files) -> Iterator[Rows]:
    """Yield rows of the records in the log whose units are not flagged as settled."""
    known, position, end, flagged = files.known, 0, 0, np.empty(0, np.int64)
    if files.queue is not None:
        queue = BlockQueue(files.queue)
        queue.end = files.queue.end // BLOCK_UNIT.size
        flags = [first + np.flatnonzero(units["flags"] & FLAG_DONE) for first, units in queue.chunks()]
        flagged = np.concatenate([flagged, *flags])
        position, end = queue.resume(known, files.log.end), queue.end
        records = UnitRecords(files.log, files.number)
        for first, units in queue.chunks():
            waits = np.flatnonzero(units["flags"] & (FLAG_DONE | FLAG_BLANK) == 0)
            rows = records.read(first + waits, units[waits])
            yield rows[rows[:, col.SIZE] > 0]
    scan = LogScan(files.log, LogPosition(position))
    for rows in scan.chunks():
        yield rows[(rows[:, col.QUEUE_OFFSET] >= end) & ~np.isin(rows[:, col.QUEUE_OFFSET], flagged)]
    pieces = files.log.pieces(scan.end, files.log.end)
    if scan.end < known.log_position and any(file.array[at:stop].any() for _, file, at, stop in pieces):
        raise LogDamaged(errno.EIO, f"no record at {scan.end}, but records after it", str(files.log.folder))


def _files(disk: Disk, folder: Path) -> MappedSequence | None:
    """Return the files of a folder, or None when there are none. The first file gives the size of all."""
    names = [name for name in disk.list(folder) if name.isdigit()]
    return MappedSequence(disk, folder, (folder / names[0]).stat().st_size) if names else None
