"""Take back the flags of settled messages whose settling records a truncation of the commit log removes."""

from __future__ import annotations

from wheelmq.delay.blocks.block import read_checkpoint
from wheelmq.delay.done import Origins
from wheelmq.formats.disk.block import BLOCK_UNIT, FLAG_DONE, block_start_ms
from wheelmq.formats.disk.origin import INDEX_MASK, block_stream, by_stream
from wheelmq.formats.disk.paths import BlockPaths, StorePaths
from wheelmq.store.mapped import MappedSequence
from wheelmq.system.disk import Disk


def unflag(disk: Disk, paths: StorePaths, queue_file_bytes: int, origins: Origins) -> int:
    """Clear the flag of each message of `origins`, in a store that no broker has open. Returns their number.

    All of it is on disk on return. Raises OSError.
    """
    by_number = {stream: origins[mine] & INDEX_MASK for stream, mine in by_stream(origins)}
    cleared = 0
    for name in disk.list(paths.blocks):
        folder = BlockPaths(paths.blocks / name)
        found = read_checkpoint(disk, folder.checkpoint) if block_start_ms(name) is not None else None
        indices = None if found is None else by_number.get(block_stream(found[1].number))
        if indices is None:
            continue
        files = MappedSequence(disk, folder.queue, queue_file_bytes, step_bytes=BLOCK_UNIT.size)
        for index in indices.tolist():
            at = index * BLOCK_UNIT.size
            if at >= files.end:
                continue
            file = files.file_at(at)
            units = file.array[at % files.file_bytes :][: BLOCK_UNIT.size].view(BLOCK_UNIT.dtype)
            if units["flags"][0] & FLAG_DONE:
                units["flags"][0] &= ~FLAG_DONE
                cleared += 1
        files.sync_job(0, files.end)()
    return cleared
