"""The store as the broker sees it: open, append, dispatch, read, flush, close."""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.checkpoint import CHECKPOINT, CHECKPOINT_FILE_BYTES
from wheelmq.formats.disk.index import IndexMark
from wheelmq.formats.disk.message import (
    BLANK_BYTES,
    SYS_TRANSACTION,
    SYS_TRANSACTION_COMMIT,
    Host,
    Message,
    encode_record,
    record_bytes,
)
from wheelmq.formats.disk.origin import NO_ORIGIN, ORIGIN_PROPERTY_BYTES, Origin, origin_of, origin_text
from wheelmq.formats.disk.parked import delay_facts
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.snapshot import Snapshot
from wheelmq.formats.java import java_long, tag_code
from wheelmq.formats.kernels import scan as col
from wheelmq.formats.kernels.journal import (
    COLUMNS,
    FLAG_DELETE,
    POSITION,
    QUEUE,
    QUEUE_OFFSET,
    SIZE,
    STORE_MS,
    TAG_CODE,
)
from wheelmq.formats.names import SCHEDULE_TOPIC, topic_problem
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store import recovery
from wheelmq.store.abort_file import AbortFile
from wheelmq.store.commit_log import CommitLog
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.store.hidden_tail import HiddenTail
from wheelmq.store.journal import Journal, Rows
from wheelmq.store.mapped import MappedSequence, room_step
from wheelmq.store.queues import QueueTable
from wheelmq.store.settings import StoreSettings
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk, DiskFull
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

LOG_ROOM_BYTES_MAX: Final = 4 << 20
"""Disk space that the commit log takes at a time, unless its files are warm."""
LOOPBACK: Final = Host(b"\x7f\0\0\1", 10911)


class Appended(NamedTuple):
    position: LogPosition
    size: int
    queue_offset: QueueOffset
    store_ms: Millis


class PropertiesTooLong(ValueError):
    """The property block of a message would not fit its 16-bit length."""


class RecordTooLong(ValueError):
    """A record would not fit into a file of the log."""


class BatchTooLong(RecordTooLong):
    """The records of a batch would not fit into one file of the log."""


def log_room_bytes(settings: StoreSettings) -> int:
    """Return the disk space that the commit log takes at a time."""
    size = settings.log_file_bytes
    return size if settings.log_files_warm else room_step(size, LOG_ROOM_BYTES_MAX)


class Store:
    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: Clock,
        *,
        host: Host = LOOPBACK,
        levels_ms: tuple[Millis, ...] = (Millis(1000),),
    ) -> None:
        paths = self.paths = StorePaths(settings.path)
        self.settings = settings
        self.host = host
        """The address that records carry as their store host."""
        self.levels_ms = levels_ms
        """Delays of the levels from 1 on. In SCHEDULE_TOPIC_XXXX the tag code of a unit is its record's store time plus
        the delay."""
        self.disk = disk
        self.clock = clock
        disk.make_folder(paths.root)
        self._lock = disk.lock(paths.lock)
        log_files = MappedSequence(disk, paths.commit_log, settings.log_file_bytes, room_bytes=log_room_bytes(settings))
        self.log = CommitLog(log_files, clock)
        self.queues = QueueTable(disk, paths, settings.queue_file_bytes, settings.mapped_queue_files_max)
        self.journal = Journal()
        self.hidden_tail = HiddenTail(disk, paths)
        self._flushing_ms = self._flushed_ms = Millis(0)
        self.dispatched_ms = Millis(0)
        """Store time of the last record with a queue unit."""
        self.has_units_too_many = False
        """Whether records of the journal have units, because a dispatch failed after some of them."""
        self._sync_has_failed = False
        self.dispatched_count = 0
        self.abort_file = AbortFile(disk, paths)
        self.last_stop_was_clean = not self.abort_file.existed
        self.dispatched_to = self.log.start
        """Records before this log position have their queue units."""
        self.units_synced_to = self.log.start
        """The units of records before this log position are on disk."""
        self.last_position: LogPosition | None = None
        """Position of the last record with a queue unit; None without one."""
        self.index_ms = Millis(0)
        """Store time of the last record whose index entries are on disk. The next checkpoint stores it."""
        self.index_mark: IndexMark | None = None
        """The part of the message index that is on disk, from the snapshot of the last start."""

    def recover(
        self,
        on_rows: Callable[[Rows, recovery.InternedNames], None],
        resume: Callable[[], Snapshot | None] = lambda: None,
        *,
        hides_new: bool = False,
    ) -> None:
        """Find the end of the log and repair the queues. `on_rows` gets the rows of every scanned record, in order.

        `resume` is called once the queues are open. It may return a snapshot of this store, from whose end the scan
        starts. With `hides_new`, consumers do not yet see records without queue units. Raises LogDamaged, DiskFull, and
        OSError for queues that cannot be read.
        """
        began_s = self.clock.monotonic()
        self._reject_extended_queues()
        self.queues.load()
        self.hidden_tail.open(hides=hides_new)
        for remove in self.queues.drop_before(self.log.start) if self.log.start else ():
            if remove is not None:
                remove()
        checkpoint = recovery.load_checkpoint(self.disk, self.paths)
        self.index_ms = Millis(checkpoint.index_ms)
        start = synced = self.log.start
        snapshot = resume()
        if snapshot is not None:
            start, synced = snapshot.position, snapshot.record_position
            self.last_position, self.log.last_store_ms = snapshot.record_position, snapshot.store_ms
            self.index_mark = snapshot.message_index
        whole_before_ms, last_ms = checkpoint.log_ms, self.log.last_store_ms
        scan = recovery.LogScan(self.log.files, start, whole_before_ms=whole_before_ms, last_ms=last_ms)
        for rows in scan.chunks():
            self._note_last(rows[(rows[:, col.FLAGS] & col.FLAG_DISPATCHED) != 0, col.POSITION])
            self.log.last_store_ms = Millis(max(self.log.last_store_ms, int(rows[:, col.STORE_MS].max())))
            known = np.logical_and.accumulate(rows[:, col.STORE_MS] < checkpoint.log_ms)
            synced = LogPosition(max(synced, int(rows[known, col.POSITION].max(initial=0))))
            for row in self._redo(rows, checkpoint.redo_from_ms, scan.names):
                scan.set_aside(rows[row])
            on_rows(rows, scan.names)
        reach("recover.scanned")
        self.log.files.cut(scan.end)
        self.log.end = self.dispatched_to = scan.end
        self.hidden_tail.end_at(scan.end)
        self.log.damaged |= frozenset(scan.damaged)
        for row, queue in enumerate(self.queues):
            queue.cut_log(scan.end)
            self.queues.next_offset[row] = queue.end
        reach("recover.cut")
        self._sync_tail(synced)
        self.abort_file.write()
        elapsed_s = self.clock.monotonic() - began_s
        log.info("the log ends at %d; recovery read it from %d in %.3f s", self.log.end, start, elapsed_s)
        if self.log.last_store_ms < checkpoint.log_ms:
            log.critical(
                "the log ends %d ms before records that the checkpoint says were on disk: they are missing",
                checkpoint.log_ms - self.log.last_store_ms,
            )

    def _note_last(self, positions: Rows) -> None:
        if len(positions):
            self.last_position = LogPosition(int(positions[-1]))

    def _redo(self, scanned: Rows, from_ms: int, names: recovery.InternedNames) -> list[int]:
        """Write missing queue units of scanned records again. Returns the indexes of records with an impossible offset.

        These are records stored since `from_ms`, and records after the end that their queue had at its opening, because
        queue files may be deleted to rebuild them.
        """
        at = np.flatnonzero(scanned[:, col.FLAGS] & col.FLAG_DISPATCHED)
        queue_rows = self.queue_rows(scanned[at, col.TOPIC], scanned[at, col.QUEUE_ID], names)
        at, queue_rows = at[queue_rows >= 0], queue_rows[queue_rows >= 0]
        rows = scanned[at]
        opened_ends = self.queues.next_offset[queue_rows]
        starts = np.array([queue.start for queue in self.queues], np.int64)[queue_rows]
        is_new = rows[:, col.QUEUE_OFFSET] >= opened_ends
        if is_new.any():
            self.hidden_tail.note_missing(LogPosition(int(rows[is_new.argmax(), col.POSITION])))
        missing = (rows[:, col.STORE_MS] >= from_ms) | is_new
        missing &= rows[:, col.QUEUE_OFFSET] >= starts
        at, rows, queue_rows = at[missing], rows[missing], queue_rows[missing]
        units = np.zeros((len(rows), COLUMNS), np.int64)
        units[:, QUEUE] = queue_rows
        units[:, QUEUE_OFFSET] = rows[:, col.QUEUE_OFFSET]
        units[:, POSITION] = rows[:, col.POSITION]
        units[:, SIZE] = rows[:, col.SIZE]
        units[:, TAG_CODE] = self._tag_codes(rows, names)
        found: list[int] = at[self.queues.write_again(units)].tolist()
        return found

    def _tag_codes(self, rows: Rows, names: recovery.InternedNames) -> Rows:
        """Return the tag codes of scanned records. In a level's queue the tag code is the due time."""
        in_level = rows[:, col.TOPIC] == names.intern(SCHEDULE_TOPIC)
        return np.where(in_level, self.level_dues_ms(rows), rows[:, col.TAG_CODE])

    def level_dues_ms(self, rows: Rows) -> Rows:
        """Return the due times of scanned records in the queues of levels."""
        levels_ms = np.array(self.levels_ms, np.int64)
        dues_ms = rows[:, col.STORE_MS] + levels_ms[np.clip(rows[:, col.QUEUE_ID], 0, len(levels_ms) - 1)]
        return np.where(rows[:, col.DUE_MS] != 0, rows[:, col.DUE_MS], dues_ms)

    def _level_due_ms(self, queue_id: int, store_ms: Millis) -> Millis:
        """Return the due time of a message that is stored now in a level's queue and contains no due time."""
        levels_ms = self.levels_ms
        return Millis(store_ms + levels_ms[min(queue_id, len(levels_ms) - 1)])

    def queue_rows(self, topics: Rows, queue_ids: Rows, names: recovery.InternedNames) -> Rows:
        """Return the row in the queue table for each interned topic and queue id; -1 for an invalid queue."""
        pairs: list[int] = (topics << 32 | queue_ids & 0xFFFF_FFFF).tolist()
        found = {
            pair: -1 if pair < 0 else self._queue_row(names.name(pair >> 32), pair & 0xFFFF_FFFF)
            for pair in sorted(set(pairs))
        }
        return np.array([found[pair] for pair in pairs], np.int64)

    def _queue_row(self, topic: str, queue_id: int) -> int:
        if topic_problem(topic) or not 0 <= queue_id < 1 << 31:
            return -1
        return self.queues.row(topic, queue_id)

    def _sync_tail(self, synced: LogPosition) -> None:
        """Sync the log from `synced` on, because recovered records may be in memory only."""
        self.log.synced = synced
        upto, sync = self.log.sync_job()
        sync()
        self.log.note_synced(upto)
        self.dispatched_ms = self._flushed_ms = self.log.last_store_ms

    def append(self, message: Message, *, settles: Origin = NO_ORIGIN, real_queue: int = -1) -> Appended:
        """Append one message. `dispatch` writes its queue unit. Raises PropertiesTooLong, RecordTooLong, DiskFull.

        A record that settles a parked message carries that message's origin in `settles`. `real_queue` is the row of
        the target queue of the parked or settled message. After any exception neither log nor journal has the record.
        """
        encoded = _encode_properties(message, settles)
        size = self._record_bytes(message, len(encoded))
        self._check_size(size)
        self.log.reserve(size)
        row = self.queues.row(message.topic, message.queue_id)
        dispatched = message.sys_flag & SYS_TRANSACTION in (0, SYS_TRANSACTION_COMMIT)
        queue_offset = QueueOffset(int(self.queues.next_offset[row])) if dispatched else QueueOffset(0)
        store_ms = self.log.store_ms()
        record = encode_record(
            message,
            encoded,
            queue_offset=queue_offset,
            position=self.log.end,
            store_ms=store_ms,
            store_host=self.host,
        )
        if dispatched:
            facts = delay_facts(message.topic, message.queue_id, message.properties, store_ms)
            due_ms = facts.due_ms or (self._level_due_ms(message.queue_id, store_ms) if facts.stream else 0)
            self.journal.prepare(
                row,
                queue_offset,
                self.log.end,
                len(record),
                due_ms if facts.unit_has_due else tag_code(message.properties.get(props.TAGS)),
                store_ms,
                due_ms,
                settles,
                facts.key_hash,
                FLAG_DELETE if facts.deletes else 0,
                real_queue,
                origin_of(facts.stream, queue_offset) if facts.stream else NO_ORIGIN,
            )
        position = self.log.append(record, store_ms)
        if dispatched:
            self.queues.next_offset[row] = queue_offset + 1
            self.journal.add_prepared()
        return Appended(position, len(record), queue_offset, store_ms)

    def _reject_extended_queues(self) -> None:
        """Reject queues that Apache RocketMQ wrote with enableConsumeQueueExt. Raises OSError.

        Their units contain addresses in another file, where ours have the hash of a tag, or a due time.
        """
        beside = self.paths.consume_queues_ext
        if self.disk.list(beside):
            raise OSError(
                f"{beside} exists: enableConsumeQueueExt was on, so queue units have addresses in that folder in "
                f"place of tags and times. Remove it and {self.paths.consume_queues}: the next start writes the "
                "queues again from the log"
            )

    def reserve(self, messages: list[Message], *, settles: Origin = NO_ORIGIN, more_bytes: int = 0) -> None:
        """Reserve room in one file for `messages`, which are appended next and can then no longer be rejected.

        `settles` is an origin of the size of theirs, and `more_bytes` has the records that follow. Raises
        PropertiesTooLong, BatchTooLong, DiskFull.
        """
        size = more_bytes + sum(self._record_bytes(one, len(_encode_properties(one, settles))) for one in messages)
        if size > self.record_bytes_max:
            raise BatchTooLong(
                f"the batch needs records of {size} bytes in one log file. The limit is {self.record_bytes_max} bytes, "
                f"because log_file_bytes (mappedFileSizeCommitLog) is {self.settings.log_file_bytes}. Send a smaller "
                "batch"
            )
        for one in messages:
            self.queues.row(one.topic, one.queue_id)
        self.log.reserve(size)

    def check_room(self, message: Message, growth_bytes: int) -> None:
        """Raise RecordTooLong if the record of `message`, longer by `growth_bytes`, does not fit into a log file."""
        self._check_size(self._record_bytes(message, len(props.encode(message.properties))) + growth_bytes)

    def properties_room(self, message: Message, settles: Origin = NO_ORIGIN) -> int:
        """Return the bytes of properties that a record of `message` may have; negative if its body is too long."""
        origin_bytes = ORIGIN_PROPERTY_BYTES if settles else 0
        return self.record_bytes_max - self._record_bytes(message, origin_bytes)

    @property
    def record_bytes_max(self) -> int:
        """The size of the longest record that a log file holds, with the blank after it."""
        return self.settings.log_file_bytes - BLANK_BYTES

    def _check_size(self, size: int) -> None:
        if size > self.record_bytes_max:
            raise RecordTooLong(
                f"the message needs a record of {size} bytes, including the properties that delivery adds. The limit "
                f"is {self.record_bytes_max} bytes, because log_file_bytes (mappedFileSizeCommitLog) is "
                f"{self.settings.log_file_bytes}. Send a smaller message"
            )

    def _record_bytes(self, message: Message, properties_bytes: int) -> int:
        hosts_bytes = len(message.born_host.address) + len(self.host.address)
        topic_bytes = len(message.topic.encode())
        return record_bytes(topic_bytes, len(message.body), properties_bytes, hosts_bytes=hosts_bytes)

    def real_queue(self, properties: dict[str, str]) -> int:
        """Return the row of the target queue of a parked message; -1 if its properties contain none."""
        topic, queue_id = properties.get(props.REAL_TOPIC), java_long(properties.get(props.REAL_QID, ""))
        return -1 if topic is None or queue_id is None else self._queue_row(topic, queue_id)

    def shown_end(self, queue: ConsumeQueue) -> QueueOffset:
        """Return the queue offset up to which consumers may see a queue."""
        start = self.hidden_tail.start
        if start is None or queue.start == queue.end:
            return queue.end
        last = queue.read(QueueOffset(queue.end - 1), 1)[0]
        return queue.end if last["position"] < start else queue.first_at(start)

    def is_shown(self, position: LogPosition) -> bool:
        """Return whether consumers may see the record at a log position."""
        start = self.hidden_tail.start
        return start is None or position < start

    def dispatchable(self, upto: LogPosition) -> int:
        """Return the number of records in the journal that end at or before `upto`."""
        rows = self.journal.rows()
        if upto >= self.log.end:
            return len(rows)
        return bisect_right(range(len(rows)), upto, key=lambda i: LogPosition(int(rows[i, POSITION] + rows[i, SIZE])))

    def dispatch(self, count: int | None = None) -> tuple[Rows, dict[int, int]]:
        """Write the queue units of the first `count` records in the journal, or of all, and remove them from it.

        Returns their rows, and the new bytes by queue row. Raises DiskFull. Then the journal stays as it is for the
        next attempt.
        """
        count = self.journal.count if count is None else count
        rows = self.journal.rows()[:count]
        reach("dispatch.before")
        had_too_many, self.has_units_too_many = self.has_units_too_many, True
        grown = self.queues.write(rows)
        self.has_units_too_many = had_too_many and count < self.journal.count
        reach("dispatch.units")
        self.dispatched_count += count
        if count:
            self.dispatched_ms = Millis(int(rows[-1, STORE_MS]))
        self._note_last(rows[:, POSITION])
        rows, journal = self.journal.take(count), self.journal
        self.dispatched_to = LogPosition(int(journal.table[0, POSITION])) if journal.count else self.log.end
        return rows, grown

    def flush_job(self) -> tuple[LogPosition, Callable[[], Any]]:
        """Return the log's end and the job that syncs the log up to it, off the loop too. Then call `note_flushed`."""
        self._flushing_ms = self._last_ms()
        upto, sync = self.log.sync_job()

        def job() -> None:
            sync()
            reach("flush.log_synced")

        return upto, job

    def flush(self) -> None:
        upto, job = self.flush_job()
        job()
        self.note_flushed(upto)

    def _last_ms(self) -> Millis:
        count = self.journal.count
        return Millis(int(self.journal.table[count - 1, STORE_MS])) if count else self.dispatched_ms

    def note_flushed(self, upto: LogPosition) -> None:
        self.log.note_synced(upto)
        self._flushed_ms = self._flushing_ms

    def note_index_synced(self, upto_ms: Millis) -> None:
        """Note that the index entries of records stored up to `upto_ms` are on disk. Safe off the loop."""
        self.index_ms = upto_ms

    def checkpoint_job(self) -> Callable[[], Any] | None:
        """Return the job that syncs the queues and writes the checkpoint; None if all units are synced.

        It may run off the loop. The checkpoint covers only the log flushed and the queue units written before this
        call. After a failed sync there is no further checkpoint: the next start must write the lost units again.
        """
        sync_queues = [queue.sync_job() for queue in self.queues if queue.unsynced]
        upto = self.dispatched_to
        if not sync_queues:
            self.units_synced_to = upto
            return None
        body = CHECKPOINT.pack(self._flushed_ms, self.dispatched_ms, self.index_ms, 0, 0)

        def job() -> None:
            if self._sync_has_failed:
                raise OSError(errno.EIO, "queue units may not be on disk; the next start writes them again")
            try:
                for sync in sync_queues:
                    sync()
            except OSError:
                self._sync_has_failed = True
                raise
            self.units_synced_to = upto
            reach("checkpoint.before")
            self.disk.replace(self.paths.checkpoint, body.ljust(CHECKPOINT_FILE_BYTES, b"\0"))
            reach("checkpoint.written")

        return job

    def close(self) -> None:
        """Stop cleanly: sync everything, then remove the abort file, unless queue units are not on disk."""
        upto, flush = self.flush_job()
        flush()
        self.note_flushed(upto)
        checkpoint = self.checkpoint_job()
        try:
            if checkpoint is not None:
                checkpoint()
            self.abort_file.remove()
        except OSError as error:
            log.error("the stop is not clean: %s", error)
        self._lock.close()


def _encode_properties(message: Message, settles: Origin) -> bytes:
    """Return the property block of the record of `message`. Raises PropertiesTooLong."""
    assert props.WMQ_ORIGIN not in message.properties
    encoded = props.encode(message.properties)
    if settles:
        encoded += props.encode({props.WMQ_ORIGIN: origin_text(settles)})
    if len(encoded) > props.PROPERTIES_BYTES_MAX:
        raise PropertiesTooLong(f"{len(encoded)} bytes of properties; the limit is {props.PROPERTIES_BYTES_MAX}")
    return encoded


__all__ = ["Appended", "BatchTooLong", "DiskFull", "PropertiesTooLong", "RecordTooLong", "Store"]
