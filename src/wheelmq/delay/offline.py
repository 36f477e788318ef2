"""List the pending messages of a store that no broker has open, without changing a byte.

The rule is that of recovery (delay.timer.recover), applied to the log alone. If Apache used the store, the messages
that its timercheck and delayOffset.json show as delivered, or that its cancels name, are left out.

The order is that of origins: levels, blocks, then the timer queue. A message of a level is due at the time in its queue
unit. Without the unit, the default level table gives the delay.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wheelmq.delay import refs as ref
from wheelmq.delay.blocks.offline import waiting_in_blocks
from wheelmq.delay.done import DoneBits
from wheelmq.delay.levels import offsets as level_offsets
from wheelmq.delay.levels.table import DEFAULT_LEVELS, level_delay_ms, parse_levels
from wheelmq.delay.pending_message import PendingMessage, State, describe
from wheelmq.delay.redelivery import ParkedRecord, delivered, read
from wheelmq.delay.refs import ParkedRows, parked_rows
from wheelmq.delay.timer.apache_import import Parked, settled_by_apache
from wheelmq.delay.timer.mark import Mark, MarkFile, check_is_apaches, load_check
from wheelmq.delay.timer.snapshot import load_done
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import (
    INDEX_BITS,
    INDEX_MASK,
    Stream,
    by_stream,
    origin_index,
    stream_number,
    timer_origin,
)
from wheelmq.formats.disk.parked import delete_key, delete_keys, key_hash, level_due_time
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.names import SCHEDULE_TOPIC
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import LogScan, load_checkpoint
from wheelmq.system.disk import ReadOnlyDisk


def pending_in(root: Path) -> Iterator[PendingMessage]:
    """Yield the pending messages of the store at `root`, by origin. In each queue, this is the order of parking.

    No broker can open the store until the iterator is exhausted or closed. Raises StoreLocked, and OSError when `root`
    is no store.
    """
    disk, paths = ReadOnlyDisk(), StorePaths(root)
    lock = disk.lock(paths.lock)
    try:
        log = _log(disk, paths)
        mark = _mark(disk, paths)
        is_adopted = mark is None or check_is_apaches(disk, paths)
        scan = LogScan(log, LogPosition(log.start), whole_before_ms=load_checkpoint(disk, paths).log_ms)
        done = DoneBits()
        done.add_packed(load_done(disk, paths)[1])
        waiting, last_ms = _waiting(scan, done)
        in_level = waiting[:, ref.ORIGIN] < timer_origin(0)
        yield from _in_levels(disk, paths, log, waiting[in_level], is_adopted=is_adopted)
        waiting = waiting[~in_level]
        for record in waiting_in_blocks(disk, paths, done):
            yield describe(record, State.BLOCK)
        if is_adopted:
            indices = waiting[:, ref.ORIGIN] & INDEX_MASK
            parked = Parked(indices, waiting[:, ref.FIRE_MS], waiting[:, ref.POSITION], waiting[:, ref.KEY_HASH])
            waiting = waiting[~settled_by_apache(parked, load_check(disk, paths), log, last_ms)]
        indexed_to = mark.queue_offset if mark is not None else 0
        deletes = (waiting[:, ref.FLAGS] & ref.FLAG_DELETE) != 0
        cancelled = _cancelled(log, waiting, deletes)
        for origin, position in waiting[~deletes][:, [ref.ORIGIN, ref.POSITION]].tolist():
            record = read(log, position)
            properties = record.message.properties
            if delete_key(properties.get(props.REAL_TOPIC, ""), properties.get(props.UNIQ_KEY, "")) not in cancelled:
                yield describe(record, State.INDEXED if origin_index(origin) < indexed_to else State.PARKED)
    finally:
        if lock is not None:
            lock.close()


def _cancelled(log: MappedSequence, waiting: ParkedRows, deletes: npt.NDArray[np.bool_]) -> set[str]:
    """Return the first delete key of each cancel in `waiting` that a waiting message has too."""
    hashes = set(waiting[~deletes, ref.KEY_HASH].tolist())
    found: set[str] = set()
    for position in waiting[deletes, ref.POSITION].tolist():
        keys = delete_keys(read(log, position).message.properties)
        found.update([key for key in keys if key_hash(key) in hashes][:1])
    return found


def _log(disk: ReadOnlyDisk, paths: StorePaths) -> MappedSequence:
    """Return the commit log. Its first file gives the size of its files."""
    names = [name for name in disk.list(paths.commit_log) if name.isdigit()]
    if not names:
        raise FileNotFoundError(errno.ENOENT, "this is not a store: it has no commit log", str(paths.commit_log))
    return MappedSequence(disk, paths.commit_log, (paths.commit_log / names[0]).stat().st_size)


def _mark(disk: ReadOnlyDisk, paths: StorePaths) -> Mark | None:
    try:
        return MarkFile(disk, paths).load()
    except FileNotFoundError:
        return None


def _waiting(scan: LogScan, done: DoneBits) -> tuple[ParkedRows, int]:
    """Return the pending rows with Apache's cancels, and the last record's store time. Adds origins to `done`."""
    chunks: list[ParkedRows] = []
    last_ms = 0
    for rows in scan.chunks():
        last_ms = int(rows[-1, col.STORE_MS])
        done.update(rows[rows[:, col.SETTLES] != 0, col.SETTLES])
        decided = (rows[:, col.FLAGS] & col.FLAG_DECIDED) != 0
        intact = ~np.isin(rows[:, col.POSITION], list(scan.damaged))
        chunks.append(parked_rows(rows[intact & ~decided & (rows[:, col.PARKS] != 0)]))
        chunks = [left for chunk in chunks if len(left := chunk[~done.get(chunk[:, ref.ORIGIN])])]
    return np.concatenate([np.empty((0, ref.PARKED_COLUMNS), np.int64), *chunks]), last_ms


def _in_levels(
    disk: ReadOnlyDisk, paths: StorePaths, log: MappedSequence, waiting: ParkedRows, *, is_adopted: bool
) -> Iterator[PendingMessage]:
    """Yield the messages of `waiting` in level queues that Apache RocketMQ has not delivered."""
    offsets = level_offsets.load(disk, paths)
    if is_adopted if offsets is None else not offsets.wheelmq:
        floors = {} if offsets is None else offsets.offset_table
        streams = (waiting[:, ref.ORIGIN] >> INDEX_BITS).tolist()
        first = np.array([floors.get(stream_number(Stream(stream)), 0) for stream in streams], np.int64)
        waiting = waiting[(waiting[:, ref.ORIGIN] & INDEX_MASK) >= first]
        copied = delivered(log, (ParkedRecord(*row) for row in waiting[:, [ref.POSITION, ref.STORE_MS]].tolist()))
        waiting = waiting[~np.isin(waiting[:, ref.POSITION], list(copied))]
    levels_ms = parse_levels(DEFAULT_LEVELS)
    for stream, mine in by_stream(waiting[:, ref.ORIGIN]):
        level = stream_number(stream)
        units = _units(disk, paths, level)
        for origin, position, store_ms in waiting[mine][:, [ref.ORIGIN, ref.POSITION, ref.STORE_MS]].tolist():
            record = read(log, position)
            due_ms = units.get(origin_index(origin))
            if due_ms is None:
                due_ms = level_due_time(record.message.properties, store_ms, level_delay_ms(levels_ms, level))
            yield describe(record, State.LEVEL, Millis(due_ms))


def _units(disk: ReadOnlyDisk, paths: StorePaths, level: int) -> dict[int, int]:
    """Return the tag codes of the units in the queue of a level, by queue offset."""
    found: dict[int, int] = {}
    folder = paths.consume_queue(SCHEDULE_TOPIC, level - 1)
    for name in disk.list(folder):
        raw = disk.read(folder / name) if name.isdigit() else None
        if raw:
            units = np.frombuffer(raw, QUEUE_UNIT.dtype, len(raw) // QUEUE_UNIT.size)
            there = np.flatnonzero((units["size"] > 0) & (units["size"] != BLANK_SIZE))
            first = int(name) // QUEUE_UNIT.size
            found.update(zip((first + there).tolist(), units["tag_code"][there].tolist(), strict=True))
    return found
