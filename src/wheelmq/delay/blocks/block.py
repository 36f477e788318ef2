"""One block: the messages due in one period of time (WheelMQ's own; the seed's ScheduledTempBlock).

The block's own log is the truth: a start writes missing units of the block's queue again from it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from wheelmq.delay.blocks.queue import BlockQueue
from wheelmq.delay.refs import is_long
from wheelmq.delay.settings import BlockSettings
from wheelmq.formats.buffer import Buffer
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.block import (
    BLOCK_CHECKPOINT_SLOT_BYTES,
    BLOCK_TOPIC,
    BLOCK_UNIT,
    FLAG_DONE,
    FLAG_LONG,
    REMOVED,
    BlockCheckpoint,
)
from wheelmq.formats.disk.message import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    Host,
    Message,
    Record,
    encode_record,
    record_bytes,
)
from wheelmq.formats.disk.origin import STREAM_BITS
from wheelmq.formats.disk.paths import BlockPaths
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.commit_log import HEAD_BYTES, CommitLog
from wheelmq.store.follower import NotNext
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.recovery import InternedNames, LogDamaged, LogScan, Rows
from wheelmq.store.store import PropertiesTooLong, RecordTooLong
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.failpoint import reach
from wheelmq.system.mapped_file import MappedFile

log = logging.getLogger(__name__)

LOG_STEP_BYTES: Final = 256 << 10
QUEUE_STEP_BYTES: Final = 64 << 10
"""Room on disk that a block's files get at once. It is small because most blocks have few messages."""
_CHECKPOINT_BYTES: Final = 2 * BLOCK_CHECKPOINT_SLOT_BYTES


@dataclass(frozen=True, slots=True)
class Put:
    """The place of a message: its index in its block's queue, and its record's position and size in the log."""

    number: int
    index: int
    position: LogPosition
    size: int
    store_ms: Millis


class Block:
    """The files of one block. `last_store_ms` is the store time of its last record, or 0 while none is known."""

    def __init__(self, disk: Disk, folder: Path, known: BlockCheckpoint, settings: BlockSettings, clock: Clock) -> None:
        self._disk = disk
        self.paths = BlockPaths(folder)
        self.number, self.start_ms, self.end_ms = known.number, known.start_ms, known.end_ms
        files = MappedSequence(disk, self.paths.log, settings.log_file_bytes, step_bytes=LOG_STEP_BYTES)
        self.log = CommitLog(files, clock)
        queue_files = MappedSequence(disk, self.paths.queue, settings.queue_file_bytes, step_bytes=QUEUE_STEP_BYTES)
        self.queue = BlockQueue(queue_files)
        self.durable = 0
        """Messages with an index below this one are on disk."""
        self._checkpoint: MappedFile | None = None
        self._sequence = 0
        self._is_checkpoint_on_disk = False
        self.has_failed = False
        """Whether a sync of its units failed. Only the next start can find out which units are on disk."""
        self.is_said_removed = False
        """Whether the checkpoint on disk says that the block is removed. Then its other files do not count."""
        self.set_aside: set[int] = set()
        """Indices of messages whose records are damaged. Their done bits are 1, but no record settles them."""

    @property
    def last_store_ms(self) -> Millis:
        return self.log.last_store_ms

    @property
    def is_behind(self) -> bool:
        return self.durable < self.queue.end

    # Put and read --------------------------------------------------------------------------------------------------

    def put(self, message: Message, due_ms: Millis, store_ms: Millis, store_host: Host) -> Put:
        """Append a parked message. Raises PropertiesTooLong, RecordTooLong, DiskFull with nothing changed."""
        assert self.start_ms <= due_ms < self.end_ms and message.topic == BLOCK_TOPIC
        assert message.queue_id == self.number and store_ms >= self.last_store_ms
        encoded = props.encode(message.properties)
        if len(encoded) > props.PROPERTIES_BYTES_MAX:
            raise PropertiesTooLong(f"{len(encoded)} bytes of properties; the limit is {props.PROPERTIES_BYTES_MAX}")
        hosts_bytes = len(message.born_host.address) + len(store_host.address)
        size = record_bytes(len(message.topic.encode()), len(message.body), len(encoded), hosts_bytes=hosts_bytes)
        file_bytes = self.log.files.file_bytes
        if size + BLANK_BYTES > file_bytes:
            raise RecordTooLong(
                f"the message needs a record of {size} bytes in its block. The limit is {file_bytes - BLANK_BYTES} "
                f"bytes, because block_log_file_bytes is {file_bytes}. Send a smaller message"
            )
        self.begin()
        self.queue.make_room()
        self.log.reserve(size)
        index = self.queue.end
        record = encode_record(
            message,
            encoded,
            queue_offset=QueueOffset(index),
            position=self.log.end,
            store_ms=store_ms,
            store_host=store_host,
        )
        position = self.log.append(record, store_ms)
        reach("block.logged")
        self.queue.add(position, size, due_ms, _long(due_ms, store_ms))
        reach("block.queued")
        return Put(self.number, index, position, size, store_ms)

    def write_records(self, position: LogPosition, data: Buffer) -> None:
        """Write the records of a copy at `position`, and the blank of the file before. They do not count yet.

        The head of the first record is written last: a kill before that leaves no record. Raises NotNext, DiskFull.
        """
        log, files = self.log, self.log.files
        left = files.file_bytes - log.end % files.file_bytes
        if position != log.end:
            if position != log.end + left or left == files.file_bytes:
                raise NotNext(f"{self.paths.log}: records for byte {position} came, but the log ends at {log.end}")
            file = files.grow(log.end, min(left, BLANK_BYTES))
            if left >= BLANK_BYTES:
                BLANK.pack_into(file.view, log.end % files.file_bytes, left, BLANK_MAGIC)
            log.end = position
        file, at = files.grow(position, len(data)), position % files.file_bytes
        file.view[at + HEAD_BYTES : at + len(data)] = data[HEAD_BYTES:]
        reach("copy.tail")
        file.view[at : at + HEAD_BYTES] = data[:HEAD_BYTES]

    def take_records(self, end: LogPosition, last: LogPosition) -> None:
        """Count the written records up to `end`. The last one is at `last`."""
        self.log.advance(end, self.last_store_ms)
        self.log.last_store_ms = Millis(max(self.last_store_ms, self.log.record_store_ms(last) or 0))

    def end_at(self, end_ms: Millis) -> None:
        """Change the end of the block's period to that of its master. Raises DiskFull.

        The checkpoint says that nothing is on disk, until the next one.
        """
        self.begin()
        self.end_ms = end_ms
        self._put_checkpoint(self._known())

    def record_at(self, position: LogPosition) -> Record | None:
        record = self.log.record_at(position)
        return record if record is not None and record.body_is_intact else None

    # Sync ----------------------------------------------------------------------------------------------------------

    def sync_job(self) -> Callable[[], Callable[[], None]]:
        """Return the job that syncs the present messages, off the loop too. Call the job's result on the loop."""
        index = self.queue.end
        upto, sync = self.log.sync_job()
        checkpoint = None if self._is_checkpoint_on_disk else self._checkpoint

        def note() -> None:
            if upto > self.log.synced:  # only blanks may be new
                self.log.note_synced(upto)
            self.durable = max(self.durable, index)
            self._is_checkpoint_on_disk = True

        def job() -> Callable[[], None]:
            if checkpoint is not None:
                checkpoint.sync(checkpoint.size)
            sync()
            reach("block.synced")
            return note

        return job

    def checkpoint_job(self) -> Callable[[], None] | None:
        """Return the job that syncs the units and writes a checkpoint, or None if nothing changed since the last.

        After a failed sync there are no more jobs: the next start writes the units again that may not be on disk.
        """
        if self.has_failed or not self.queue.is_changed or not self._is_checkpoint_on_disk:
            return None
        sync = self.queue.sync_job()
        reached = self._known()._replace(log_position=self.log.synced, units=self.durable)

        def job() -> None:
            try:
                sync()
            except OSError:
                self.has_failed = True
                raise
            reach("block.checkpoint")
            self._write(reached)

        return job

    def _known(self) -> BlockCheckpoint:
        return BlockCheckpoint(self.number, self.start_ms, self.end_ms)

    def begin(self) -> None:
        """Create a checkpoint that names the block, if there is none. A flush syncs it. Raises DiskFull."""
        if self._checkpoint is None:
            path = self.paths.checkpoint
            checkpoint = self._disk.map(path, _CHECKPOINT_BYTES, sparse=True)
            self._disk.give_room(path, 0, _CHECKPOINT_BYTES)
            self._checkpoint = checkpoint
        if self._sequence == 0:
            self._put_checkpoint(self._known())

    def _put_checkpoint(self, checkpoint: BlockCheckpoint) -> MappedFile:
        assert self._checkpoint is not None
        self._sequence += 1
        raw = checkpoint.pack(self._sequence)
        at = self._sequence % 2 * BLOCK_CHECKPOINT_SLOT_BYTES
        self._checkpoint.view[at : at + len(raw)] = raw
        return self._checkpoint

    def _write(self, checkpoint: BlockCheckpoint) -> None:
        """Write and sync a checkpoint. Safe off the event loop."""
        file = self._put_checkpoint(checkpoint)
        file.sync(file.size)

    # Recovery ------------------------------------------------------------------------------------------------------

    def recover(self, checkpoint: BlockCheckpoint | None, sequence: int, *, is_clean: bool = False) -> None:
        """Find the ends of queue and log, and make them agree. `checkpoint` is the last one that was written whole.

        Units before the checkpoint are checked, and records after it are scanned. After a clean stop (`is_clean`), a
        block that ends where its checkpoint says is not synced.

        Raises LogDamaged when records that were on disk are missing and other data follows, or when a record does not
        belong to the block.
        """
        self._sequence = sequence
        known = checkpoint or self._known()
        queue, files = self.queue, self.log.files
        start = queue.resume(known, files.end)
        if queue.end < known.units:
            log.error("%s: units from %d on are missing, and recovery writes them again", self.paths.folder, queue.end)
        scan = LogScan(files, LogPosition(min(start, files.end)))
        for rows in scan.chunks():
            self._queue_again(rows, scan.names, is_named=checkpoint is not None)
        if scan.end < known.log_position:
            if any(file.array[at:stop].any() for _, file, at, stop in files.pieces(scan.end, files.end)):
                raise self._damaged(scan.end, "it is missing, but records after it were on disk")
            log.critical(
                "%s: the log was on disk up to %d, but ends before that position", self.paths.folder, known.log_position
            )
        files.cut(scan.end)
        queue.cut(queue.end)
        self.log.end = scan.end
        self.log.last_store_ms = self._last_record_store_ms()
        # One byte less than the checkpoint says: the next sync covers this byte, so the disk itself confirms it.
        self.log.synced = LogPosition(max(0, min(scan.end, known.log_position) - 1))
        reach("block.recovered")
        if self.log.end:
            self.begin()
            if is_clean and (self.log.end, queue.end) == (known.log_position, known.units):
                self.log.synced, self.durable, self._is_checkpoint_on_disk = self.log.end, queue.end, True
            else:
                self.sync_job()()()

    def _last_record_store_ms(self) -> Millis:
        for index in range(self.queue.end - 1, -1, -1):
            unit = self.queue.read(index, 1)[0]
            if unit["size"]:
                return self.log.record_store_ms(LogPosition(int(unit["position"]))) or Millis(0)
        return Millis(0)

    def _queue_again(self, rows: Rows, names: InternedNames, *, is_named: bool) -> None:
        """Write the units of records (rows of LogScan). Without `is_named`, they define the block's number and end.

        Raises LogDamaged when a record does not belong to this block, and DiskFull.
        """
        due_ms, indices = rows[:, col.DUE_MS], rows[:, col.QUEUE_OFFSET]
        if not is_named:
            self.number = self.number or int(rows[0, col.QUEUE_ID])
            self.end_ms = Millis(max(self.end_ms, int(due_ms.max()) // 1000 * 1000 + 1000))
        after = np.concatenate(([self.queue.end - 1], indices[:-1]))
        is_ours = (rows[:, col.TOPIC] == names.intern(BLOCK_TOPIC)) & (rows[:, col.QUEUE_ID] == self.number)
        is_ours &= (indices > np.maximum.accumulate(after)) & (0 < self.number < 1 << STREAM_BITS)
        is_in_time = (due_ms >= self.start_ms) & (due_ms < self.end_ms)
        if not (is_ours & is_in_time).all():
            first = int(np.argmin(is_ours & is_in_time))
            why = f"it is due at {due_ms[first]}, which is outside this block"
            if not is_ours[first]:
                why = "it does not belong to this block, or is not in its place"
            raise self._damaged(LogPosition(int(rows[first, col.POSITION])), why)
        flags = np.where(is_long(due_ms - rows[:, col.STORE_MS]), FLAG_LONG, 0)
        self.queue.add_many(indices, rows[:, col.POSITION], rows[:, col.SIZE], due_ms, flags)

    def _damaged(self, position: LogPosition, why: str) -> LogDamaged:
        return LogDamaged(errno.EIO, f"record at {position}: {why}; put a good copy in its place", str(self.paths.log))

    def cut(self, known: BlockCheckpoint, sequence: int, units: int) -> int:
        """Keep only the first `units` units and their records, of a block that nothing else uses.

        All of it is on disk on return. Returns the number of removed messages without the flag of settled ones.
        """
        self._sequence = sequence
        queue = self.queue
        queue.end = queue.files.end // BLOCK_UNIT.size
        removed = sum(
            int(np.count_nonzero((found["size"] > 0) & (found["flags"] & FLAG_DONE == 0)))
            for _, found in queue.chunks(units)
        )
        end = queue.position_after(units)
        self.begin()
        kept = known._replace(log_position=min(known.log_position, end), units=min(known.units, units))
        self._write(kept if units else known._replace(log_position=REMOVED))
        reach("cut.checkpoint")
        if not units:
            remove_files(self._disk, self.paths)
            return removed
        self.log.files.cut(end)
        reach("cut.log")
        queue.cut(units)
        return removed

    # The end of a block --------------------------------------------------------------------------------------------

    def remove_job(self) -> Callable[[], None]:
        """Return the job that removes the block from disk, off the loop too. Nothing may read it. Raises DiskFull.

        It first marks the block as removed: a stop could leave files that look like a block with pending messages.
        """
        self.begin()
        gone = self._known()._replace(log_position=REMOVED)

        def job() -> None:
            self._write(gone)
            self.is_said_removed = True
            reach("block.gone")
            remove_files(self._disk, self.paths)

        return job


def _long(due_ms: Millis, store_ms: Millis) -> int:
    return FLAG_LONG if is_long(due_ms - store_ms) else 0


def remove_files(disk: Disk, paths: BlockPaths) -> None:
    """Remove the files of a block, the checkpoint last. The checkpoint must say that it is removed, or be missing."""
    for folder in (paths.log, paths.queue):
        names = disk.list(folder)
        for name in names:
            disk.remove(folder / name)
            reach("block.removed")
        if names:
            disk.sync_folder(folder)
        disk.remove_folder(folder)
    disk.sync_folder(paths.folder)
    for name in disk.list(paths.folder):
        if name != paths.checkpoint.name:
            disk.remove(paths.folder / name)  # a file that was not completed
    disk.remove(paths.checkpoint)
    disk.remove_folder(paths.folder)


def read_checkpoint(disk: Disk, path: Path) -> tuple[int, BlockCheckpoint] | None:
    """Return sequence and values of the last checkpoint that was written whole, or None when there is none."""
    raw = disk.read(path)
    if raw is None or len(raw) < _CHECKPOINT_BYTES:
        return None
    slots = (raw[:BLOCK_CHECKPOINT_SLOT_BYTES], raw[BLOCK_CHECKPOINT_SLOT_BYTES:])
    found = [slot for slot in map(BlockCheckpoint.unpack, slots) if slot is not None]
    return max(found, default=None)
