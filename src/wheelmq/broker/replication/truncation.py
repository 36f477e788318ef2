"""Truncate a stopped store, so that it can follow a master whose log is another one from some position on.

A former master has records that no replica got before another broker became the master. The new master does not have
them, and the clients were not told that they were replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.blocks.cut import cut_blocks
from wheelmq.delay.blocks.unflag import unflag
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_SHIFT
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)


class CannotTruncate(OSError):
    """Nothing would be left of the log. The replica must start with an empty store."""


def truncate(disk: Disk, settings: BrokerSettings, position: LogPosition) -> int:
    """Remove the log from `position` on. Returns the number of removed records. Raises CannotTruncate, OSError.

    The next start reads the whole log. A kill at any moment leaves a store that is truncated again to the same
    position.
    """
    paths = StorePaths(settings.store.path)
    lock = disk.lock(paths.lock)
    try:
        files = MappedSequence(disk, paths.commit_log, settings.store.log_file_bytes)
        if position <= files.start:
            raise CannotTruncate(
                f"the log in {paths.commit_log} begins at {files.start}, and the master agrees with it only up to "
                f"{position}. Move the store away, and start the replica with an empty one"
            )
        for path in (paths.snapshot, paths.checkpoint):
            disk.remove(path)
        disk.sync_folder(paths.root)
        reach("truncate.begun")
        removed, settled = 0, [np.empty(0, np.int64)]
        scan = LogScan(files, position)
        for rows in scan.chunks():
            removed += len(rows)
            origins = rows[:, col.SETTLES]
            settled.append(origins[origins >> KIND_SHIFT == KIND_BLOCK].copy())
        unflag(disk, paths, settings.blocks.queue_file_bytes, np.concatenate(settled))
        reach("truncate.unflagged")
        Epochs(disk, paths).cut(position)
        reach("truncate.epochs")
        files.cut(position)
        reach("truncate.cut")
        log.warning(
            "the log was truncated from %d to %d: %d records that the present master does not have are removed",
            scan.end,
            position,
            removed,
        )
        return removed
    finally:
        lock.close()


def cut_blocks_to(disk: Disk, clock: Clock, settings: BrokerSettings, keep: Mapping[int, int]) -> None:
    """Remove the units after the first ones in `keep`, by block number, and their messages. Raises OSError."""
    removed = cut_blocks(disk, clock, StorePaths(settings.store.path), settings.blocks, keep)
    log.warning(
        "%d blocks were cut: %d pending messages that the present master does not have are removed", len(keep), removed
    )
