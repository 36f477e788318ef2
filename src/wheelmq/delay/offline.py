"""What is pending in a store that no broker has open, read without changing a byte.

It is the rule of recovery (delay.timer.recover) over the log alone: what is parked and not settled, less what a cancel
of Apache RocketMQ names, less what its timercheck says is out where it has had the store. What waits in its level
queues comes next, due by the default table, and what waits in blocks last.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.offline import waiting_in_blocks
from wheelmq.delay.copies import read
from wheelmq.delay.done import DoneBits
from wheelmq.delay.level_queues import LevelQueues
from wheelmq.delay.levels import DEFAULT_LEVELS, parse_levels
from wheelmq.delay.pending import Pending, State, describe
from wheelmq.delay.timer.adopt import Parked, what_is_out
from wheelmq.delay.timer.mark import Mark, MarkFile, check_is_apaches, load_check
from wheelmq.delay.timer.snapshot import load_done
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import TIMER_STREAM
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan, load_checkpoint
from wheelmq.system.disk import ReadOnlyDisk

_INDEX, _DUE, _POSITION, _FLAGS, _KEY = range(5)
_KEPT = [col.QUEUE_OFFSET, col.DUE_MS, col.POSITION, col.FLAGS, col.KEY_HASH]

Kept = npt.NDArray[np.int64]


def pending_in(root: Path) -> Iterator[Pending]:
    """The pending messages of the store at `root`, in the order in which they were parked.

    No broker can open the store until the iterator is through or closed. Raises StoreLocked when one has it open, and
    OSError when `root` is no store.
    """
    disk, paths = ReadOnlyDisk(), StorePaths(root)
    lock = disk.lock(paths.lock)
    try:
        log = _log(disk, paths)
        mark = _mark(disk, paths)
        levels = LevelQueues(disk, paths, parse_levels(DEFAULT_LEVELS))
        scan = LogScan(log, LogPosition(log.start), whole_before_ms=load_checkpoint(disk, paths).log_ms)
        done = DoneBits()
        done.add_packed(load_done(disk, paths)[1])
        waiting, last_ms = _waiting(scan, levels, done)
        if mark is None or check_is_apaches(disk, paths):
            parked = Parked(waiting[:, _INDEX], waiting[:, _DUE], waiting[:, _POSITION], waiting[:, _KEY])
            waiting = waiting[~what_is_out(parked, load_check(disk, paths), log, last_ms)]
        indexed_to = mark.queue_offset if mark is not None else 0
        deletes = (waiting[:, _FLAGS] & col.FLAG_DELETES) != 0
        cancelled = {
            read(log, position).message.properties[props.TIMER_DEL_UNIQKEY]
            for position in waiting[deletes, _POSITION].tolist()
        }
        for index, position in waiting[~deletes][:, [_INDEX, _POSITION]].tolist():
            record = read(log, position)
            properties = record.message.properties
            if delete_key(properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQ_KEY, "")) not in cancelled:
                yield describe(record, State.INDEXED if index < indexed_to else State.PARKED)
        for one in levels.waiting(log, frozenset(scan.damaged)):
            yield describe(read(log, one.position), State.LEVEL, one.due_ms)
        for record in waiting_in_blocks(disk, paths, done):
            yield describe(record, State.BLOCK)
    finally:
        if lock is not None:
            lock.close()


def _log(disk: ReadOnlyDisk, paths: StorePaths) -> MappedSequence:
    """The commit log; how large its files are, the files tell."""
    names = [name for name in disk.list(paths.commit_log) if name.isdigit()]
    if not names:
        raise FileNotFoundError(errno.ENOENT, "this is no store: it has no commit log", str(paths.commit_log))
    return MappedSequence(disk, paths.commit_log, (paths.commit_log / names[0]).stat().st_size)


def _mark(disk: ReadOnlyDisk, paths: StorePaths) -> Mark | None:
    try:
        return MarkFile(disk, paths).load()
    except FileNotFoundError:
        return None


def _waiting(scan: LogScan, levels: LevelQueues, done: DoneBits) -> tuple[Kept, int]:
    """The columns _KEPT of what is parked and not settled, cancels of Apache's among it; the last record's store time.

    `levels` meets every record too, and what the records settle is added to `done`.
    """
    chunks: list[Kept] = []
    last_ms = 0
    for rows in scan.chunks():
        levels.meet(rows, scan.names)
        last_ms = int(rows[-1, col.STORE_MS])
        done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        dispatched = (rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0
        decided = (rows[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        chunks.append(rows[dispatched & ~decided & (rows[:, col.DUE_MS] != 0)][:, _KEPT])
        chunks = [left for chunk in chunks if len(left := chunk[~done.of(TIMER_STREAM).get(chunk[:, _INDEX])])]
    return np.concatenate([np.empty((0, len(_KEPT)), np.int64), *chunks]), last_ms
