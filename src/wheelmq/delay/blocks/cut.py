"""Cut the blocks of a stopped store, so that it can copy the blocks of a master.

A former master has messages that no replica got before another broker became the master. The new master may put other
messages at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping

from wheelmq.delay.blocks.block import Block, read_checkpoint
from wheelmq.delay.settings import BlockSettings
from wheelmq.formats.disk.block import block_start_ms
from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach


def cut_blocks(disk: Disk, clock: Clock, paths: StorePaths, settings: BlockSettings, keep: Mapping[int, int]) -> int:
    """Keep only the first units of the blocks in `keep`, by block number, and their records.

    A block without units is removed. Returns the number of removed messages that were not settled. The next start
    reads the whole log, because the snapshot has done bits of removed units. A kill at any moment leaves a store whose
    blocks are checked again. Raises StoreLocked, OSError.
    """
    lock = disk.lock(paths.lock)
    try:
        disk.remove(paths.snapshot)
        disk.sync_folder(paths.root)
        reach("cut.begun")
        removed = 0
        for name in disk.list(paths.blocks):
            folder = paths.blocks / name
            found = read_checkpoint(disk, BlockPaths(folder).checkpoint) if block_start_ms(name) is not None else None
            if found is not None and found[1].number in keep:
                sequence, known = found
                removed += Block(disk, folder, known, settings, clock).cut(known, sequence, keep[known.number])
        return removed
    finally:
        lock.close()
