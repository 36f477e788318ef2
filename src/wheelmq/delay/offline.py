"""What is pending in a store that no broker has open, read without changing a byte.

It is the rule of recovery (delay.timer.recover) over the log alone: what is parked and not settled, less what a cancel
of Apache RocketMQ names, less what its timercheck says is out where the store was never ours.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import IndexBits
from wheelmq.delay.pending import Pending, State, describe
from wheelmq.delay.timer.mark import Mark, MarkFile, load_check
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, decode_record
from wheelmq.formats.disk.origin import INDEX_BITS
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import slot_time
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan, load_checkpoint
from wheelmq.system.disk import ReadOnlyDisk

INDEX_MASK = (1 << INDEX_BITS) - 1
APACHE_PRECISION_MS = 1000

_INDEX, _DUE, _POSITION, _FLAGS = range(4)
_KEPT = [col.QUEUE_OFFSET, col.DUE_MS, col.POSITION, col.FLAGS]

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
        waiting = _waiting(log, load_checkpoint(disk, paths).log_ms)
        if mark is None:
            waiting = _without_what_is_out(waiting, disk, paths)
        indexed_to = mark.queue_offset if mark is not None else 0
        deletes = (waiting[:, _FLAGS] & col.FLAG_DELETES) != 0
        cancelled = {
            _record(log, position).message.properties[props.TIMER_DEL_UNIQKEY]
            for position in waiting[deletes, _POSITION].tolist()
        }
        for index, _, position, _ in waiting[~deletes].tolist():
            record = _record(log, position)
            properties = record.message.properties
            if delete_key(properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQ_KEY, "")) not in cancelled:
                yield describe(record, State.INDEXED if index < indexed_to else State.PARKED)
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


def _waiting(log: MappedSequence, whole_before_ms: int) -> Kept:
    """Index, due time, log position and flags of what is parked and not settled, cancels of Apache's among it."""
    done = IndexBits()
    chunks: list[Kept] = []
    for rows in LogScan(log, LogPosition(log.start), whole_before_ms=whole_before_ms).chunks():
        settled = rows[:, col.SETTLES]
        done.update(settled[settled != 0] & INDEX_MASK)
        dispatched = (rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0
        decided = (rows[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        chunks.append(rows[dispatched & ~decided & (rows[:, col.DUE_MS] != 0)][:, _KEPT])
        chunks = [left for chunk in chunks if len(left := chunk[~done.get(chunk[:, _INDEX])])]
    return np.concatenate([np.empty((0, len(_KEPT)), np.int64), *chunks])


def _without_what_is_out(waiting: Kept, disk: ReadOnlyDisk, paths: StorePaths) -> Kept:
    check = load_check(disk, paths)
    if check is None:
        return waiting
    slots = np.array([slot_time(due, APACHE_PRECISION_MS) for due in waiting[:, _DUE].tolist()], np.int64)
    return waiting[(slots >= check.last_read_ms) | (waiting[:, _INDEX] >= check.queue_offset)]


def _record(log: MappedSequence, position: int) -> Record:
    return decode_record(log.file_at(position).view[position % log.file_bytes :])
