"""Reads the snapshot of a store at a start, and checks that it agrees with log and queues."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wheelmq.formats.disk.message import Record, RecordError, decode_record
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.disk.snapshot import Snapshot, SnapshotDamaged
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.system.disk import Disk

if TYPE_CHECKING:
    from wheelmq.store.store import Store

log = logging.getLogger(__name__)


def load_snapshot(disk: Disk, paths: StorePaths) -> Snapshot | None:
    """Return the snapshot of a store; None without one. A snapshot that cannot be decoded is logged and ignored."""
    raw = disk.read(paths.snapshot)
    if raw is None:
        return None
    try:
        return Snapshot.decode(raw)
    except SnapshotDamaged as error:
        log.warning("recovery ignores %s and reads the whole log: %s", paths.snapshot, error)
        return None


def disagreement(store: Store, snapshot: Snapshot) -> str | None:
    """Return why `snapshot` does not belong to this store, or None.

    The queues must be open. The end of the log need not be known.
    """
    return next(_disagreements(store, snapshot), None)


def _disagreements(store: Store, snapshot: Snapshot) -> Iterator[str]:
    record = _record_at(store, snapshot.record_position)
    if snapshot.position > store.log.files.end or record is None:
        yield f"the log has no record at {snapshot.record_position}"
    elif zlib.crc32(store.log.read(record.position, record.size)) != snapshot.record_crc:
        yield f"the log has another record at {record.position}"
    for position in snapshot.damaged:
        if position < store.log.start:
            continue  # it has expired
        record = _record_at(store, position)
        if record is None or (record.body_is_intact and record.offset_is_possible):
            yield f"the record at {position} is not the damaged record of the snapshot"
    for key, queue in store.queues.items():
        end = snapshot.queue_ends.get(key, queue.start)
        if not _joins(queue, end, snapshot.position):
            yield f"queue {key[1]} of topic {key[0]} has other units than the snapshot says"
    for topic, queue_id in snapshot.queue_ends:
        if store.queues.find(topic, queue_id) is None:
            yield f"queue {queue_id} of topic {topic} is gone"


def _record_at(store: Store, position: LogPosition) -> Record | None:
    """Return the record at a position of a log whose end is not known yet."""
    files = store.log.files
    if not files.start <= position < files.end:
        return None
    try:
        record = decode_record(files.file_at(position).view[position % files.file_bytes :])
    except RecordError:
        return None
    return record if record.position == position else None


def _joins(queue: ConsumeQueue, end: int, position: LogPosition) -> bool:
    """Return whether exactly the units before queue offset `end` belong to records before `position`."""
    if queue.end < end:
        return False
    for offset in (queue.start, end - 1) if queue.start < end else ():
        unit = queue.read(QueueOffset(offset), 1)[0]
        if unit["size"] == 0 or (unit["size"] != BLANK_SIZE and unit["position"] >= position):
            return False
    first = queue.skip_blanks(QueueOffset(max(queue.start, end)))
    if first == queue.end:
        return True
    unit = queue.read(first, 1)[0]
    return bool(unit["size"] == 0 or unit["position"] >= position)
