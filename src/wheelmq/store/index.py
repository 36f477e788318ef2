"""The message index: finds records by key. Jobs on a worker build it from the log (RocketMQ: IndexService).

It reads the log up to the last record with a queue unit. After a stop the files show where to continue. A file torn by
a power cut is rolled back to the entries that the last snapshot knows to be on disk, or removed.

A query may miss a record that was just stored. A cancel must not: `find_all` finds each one before `indexed_to`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from wheelmq.formats.disk.index import (
    INDEX_HEADER,
    INDEX_UNIT,
    STEPS_MAX,
    ChainTooLong,
    IndexDamaged,
    IndexMark,
    IndexSize,
    all_with_hash,
    find_key,
    index_file_name,
    index_hash,
    index_keys,
    is_index_file_name,
    is_time_matched,
    put_key,
    roll_back,
)
from wheelmq.formats.disk.message import (
    BLANK,
    BLANK_MAGIC,
    SYS_TRANSACTION,
    Message,
    RecordError,
    decode_record,
    find_record,
)
from wheelmq.formats.kernels import index as kernel
from wheelmq.formats.kernels import jit
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.store import Store
from wheelmq.system.mapped_file import MappedFile
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

STEP_BYTES: Final = 16 << 20
"""Maximum bytes of the log that one job reads."""
GATHER_S: Final = 0.02
"""Records that arrive within this time are indexed by one job, because each job takes the interpreter's lock."""
GATHER_BYTES: Final = 256 << 10
"""A backlog of this size is indexed at once, without waiting for GATHER_S."""
UNKEYED_MAX: Final = 1000
"""Maximum number of records without a key that are checked between two files, to find out whether they join."""
NEWEST_FILES: Final = 2
"""Number of newest files in which `find_all` always searches."""
CLOSE_BYTES_MAX: Final = 256 << 20
"""Maximum bytes of the log that a stop still indexes. The rest is indexed after the next start."""

ROOM_BYTES: Final = 1 << 20
"""A file takes disk space for its units in steps of this size."""
KEY_BYTES_MIN: Final = 2
"""The least bytes of a record per key: one character, and the separator before the next key."""

RETRY_S: Final = 1.0
"""Delay before a retry after a failure, such as creating a file on a full disk."""


class IndexMatches(NamedTuple):
    """Positions of records with a key, oldest first, and the last record of the index."""

    positions: list[LogPosition]
    last_ms: Millis
    last_position: LogPosition


class MessageIndex:
    def __init__(self, store: Store, worker: Worker, size: IndexSize) -> None:
        """Open the index files. Raises ValueError when `size` leaves no room for an entry."""
        if size.slots < 1 or size.units < 2:
            raise ValueError(f"an index file needs at least 1 slot and 2 units, not {size.slots} and {size.units}")
        self._store = store
        self._flight = SingleFlight(worker, store.clock, retry_s=RETRY_S)
        self._size = size
        self._folder = store.paths.index
        self._files: list[MappedFile] = []
        self._adding, self._next_in = threading.Lock(), threading.Lock()
        self._wanted = np.zeros(1, np.int64)
        """1 while a thread waits for `_adding`."""
        self._mark: IndexMark | None = None
        self._sync_has_failed = False
        self._failure = ""
        self.gather_s = GATHER_S
        self._gathered_s = 0.0
        """When the next job begins if the backlog is small."""
        self._reached = LogPosition(0)
        """Log position that the running job has reached. Only the job writes it."""
        self.indexed_to = store.log.start
        """Records before this position are in the index."""
        self._room_to = 0
        """The units of the last file before this byte have disk space. Only the job uses it."""
        self._load()

    # Following -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Start a job for records with new queue units, unless one runs. Called in every tick."""
        begin_s = self.next_s()
        if begin_s is None:
            return
        now_s = self._store.clock.monotonic()
        job = self._next_job(self._store.dispatched_to) if begin_s <= now_s else None
        if job is not None:
            self._gathered_s = now_s + self.gather_s
            self._flight.submit(job, done=lambda _: self._followed(), failed=self._failed)

    def expedite(self) -> None:
        """Start the next job without waiting for GATHER_S, because a caller needs the index."""
        self._gathered_s = 0.0

    def next_s(self) -> float | None:
        """Return the monotonic time at which `poll` has work; None if it has none."""
        next_s, behind_bytes = self._flight.next_s, self._store.dispatched_to - self.indexed_to
        if next_s is None or behind_bytes <= 0:
            return None
        return next_s if self._failure or behind_bytes >= GATHER_BYTES else self._gathered_s

    def close(self) -> None:
        """Index at most CLOSE_BYTES_MAX more and sync the index. No job may run any more."""
        upto = LogPosition(min(self._store.dispatched_to, self.indexed_to + CLOSE_BYTES_MAX))
        try:
            while not self._failure and (job := self._next_job(upto)) is not None:
                job()
                self.indexed_to = self._reached
        except (OSError, RecordError) as error:
            log.error(
                "the message index does not yet have the messages after log position %d: %s", self._reached, error
            )
        try:
            if self._files:
                self._files[-1].sync(self._size.file_bytes)
        except OSError as error:
            log.error("the flush of the last index file failed, and the next start writes the file again: %s", error)
            self._sync_has_failed, self._mark = True, None
            self._store.disk.remove(self._files[-1].path)

    def _next_job(self, upto: LogPosition) -> Callable[[], None] | None:
        at = self.indexed_to
        if at >= upto:
            return None
        files = self._store.log.files
        base = at - at % files.file_bytes
        stop = min(upto - base, files.file_bytes, at - base + STEP_BYTES)
        return partial(self._follow, files.file_at(at), base, at - base, stop)

    def _follow(self, source: MappedFile, base: int, at: int, stop: int) -> None:
        """Index the records of a log file from byte `at` to byte `stop`. Raises OSError, DiskFull."""
        self._reached = LogPosition(base + at)
        while at < stop:
            self._give_room(stop - at)
            with self._alone():
                at, outcome = self._add_many(source, base, at, stop)
            self._reached = LogPosition(base + at)
            if outcome == kernel.NOT_MINE:
                at = self._add_one(source, base, at)
            elif outcome == kernel.FILE_END:
                at = source.size
            self._reached = LogPosition(base + at)

    def _give_room(self, log_bytes: int) -> None:
        """Give disk space to the units of the keys that `log_bytes` of the log may have. Raises DiskFull.

        A store into a hole of a file is SIGBUS on a full disk. Files of Apache RocketMQ have holes everywhere.
        """
        if not self._files:
            return
        size, file = self._size, self._files[-1]
        count = max(INDEX_HEADER.unpack(file.view)["count"], 1) + log_bytes // KEY_BYTES_MIN + 1
        needed_to = min(size.units_at + count * INDEX_UNIT.size, size.file_bytes)
        if needed_to > self._room_to:
            start, stop = self._room_to, min(-(-needed_to // ROOM_BYTES) * ROOM_BYTES, size.file_bytes)
            self._store.disk.give_room(file.path, start, stop)
            self._room_to = stop

    def _add_many(self, source: MappedFile, base: int, at: int, stop: int) -> tuple[int, int]:
        if not jit.available() or not self._files:
            return at, kernel.NOT_MINE
        state = np.array([at], np.int64)
        file = self._files[-1].array
        slots, units = self._size.slots, self._size.units
        outcome = kernel.index_log(source.read_array, base, stop, file, slots, units, state, self._wanted)
        return int(state[kernel.AT]), int(outcome)

    def _add_one(self, source: MappedFile, base: int, at: int) -> int:
        """Index the record at byte `at`. Returns the byte of the next record. Raises RecordError without one."""
        if BLANK.unpack_from(source.view, at) == (source.size - at, BLANK_MAGIC):
            return source.size
        try:
            record = decode_record(source.view[at:])
            if record.position != base + at:
                raise RecordError(f"the record names log position {record.position}")
        except RecordError as error:
            following = find_record(source.view, at + 1, base)
            if following is None:
                raise
            log.critical(
                "the record at log position %d has changed since it was stored, so the message index has no "
                "entry for it: %s",
                base + at,
                error,
            )
            return following
        if _is_keyed(record.message):
            for key in index_keys(record.message.properties):
                code = index_hash(record.message.topic, key)
                if not self._put(code, record.position, record.store_ms):
                    self._begin_file()
                    self._give_room(record.size)
                    has_room = self._put(code, record.position, record.store_ms)
                    assert has_room, "a new index file has room for an entry"
        return at + record.size

    def _put(self, code: int, position: LogPosition, store_ms: Millis) -> bool:
        if not self._files:
            return False
        with self._alone():
            return put_key(self._files[-1].view, self._size, code, position, store_ms)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the exclusive right to read and write chains.

        Only the job and the loop compete for it, and the first to ask is next. A long job yields to the loop.
        """
        with self._next_in:
            self._wanted[0] = 1
            self._adding.acquire()
            self._wanted[0] = 0
        try:
            yield
        finally:
            self._adding.release()

    def _begin_file(self) -> None:
        """Sync the last file and begin another one. Raises OSError."""
        head = b""
        if self._files:
            last = self._files[-1]
            last.sync(last.size)
            header = INDEX_HEADER.unpack(last.view)
            self._store.note_index_synced(Millis(header["end_ms"]))
            end = (header["end_ms"], header["end_position"])
            head = INDEX_HEADER.pack(end[0], end[0], end[1], end[1], 0, 0)
        size = self._size
        file = self._store.disk.map(self._folder / self._next_name(), size.file_bytes, room_bytes=size.units_at)
        file.populate(0, size.units_at)
        self._room_to = size.units_at
        file.view[: len(head)] = head
        self._files.append(file)

    def _next_name(self) -> str:
        """Return the name of a new file. It is greater than all existing names and the name in the snapshot's mark.

        The mark counts even if its file is gone and the clock was set back: files with smaller names count as complete.
        """
        known = [self._files[-1].path.name] if self._files else []
        if self._store.index_mark is not None:
            known.append(self._store.index_mark.name)
        return max([index_file_name(self._store.clock.now_ms()), *(f"{int(name) + 1:017d}" for name in known)])

    def _failed(self, error: Exception) -> None:
        self._followed(f"{type(error).__name__}: {error}")

    def _followed(self, failure: str = "") -> None:
        """Note the progress of a job that ended. Log its failure if the previous job did not fail with the same one."""
        self.indexed_to = max(self._reached, self._store.log.start)  # the records may have expired meanwhile
        if failure and failure != self._failure:
            log.error(
                "the message index does not yet have the messages after log position %d: %s", self.indexed_to, failure
            )
        self._failure = failure

    # Reading -------------------------------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin_ms: Millis, end_ms: Millis, most: int) -> IndexMatches:
        """Return the newest records with a key that were stored from `begin_ms` to `end_ms`, at most `most`, in order.

        Some may have another key with the same hash.
        """
        code = index_hash(topic, key)
        last = INDEX_HEADER.unpack(self._files[-1].view) if self._files else {"end_ms": 0, "end_position": 0}
        found: set[LogPosition] = set()
        for file in reversed(self._files):
            header = INDEX_HEADER.unpack(file.view)
            if is_time_matched(header, begin_ms, end_ms):
                with self._alone():
                    found.update(find_key(file.view, self._size, code, begin_ms, end_ms, most - len(found)))
            if header["begin_ms"] < begin_ms or len(found) >= most:
                break
        return IndexMatches(sorted(found), Millis(last["end_ms"]), LogPosition(last["end_position"]))

    def find_all(self, topic: str, key: str, since: Callable[[], LogPosition]) -> list[LogPosition]:
        """Return the positions of all records with a key from `since()` to before `indexed_to`, oldest first.

        The result may contain further records, also records with another key of the same hash. Raises IndexDamaged for
        a file with invalid content, and ChainTooLong if too many keys share a slot.
        """
        code = index_hash(topic, key)
        found: set[LogPosition] = set()
        for i, file in enumerate(reversed(self._files)):
            if i >= NEWEST_FILES and INDEX_HEADER.unpack(file.view)["end_position"] < since():
                break
            with self._alone():
                try:
                    found.update(all_with_hash(file.view, self._size, code))
                except IndexDamaged as error:
                    raise IndexDamaged(f"{file.path}: {error}; stop the broker and remove the file") from None
            if len(found) > STEPS_MAX:
                raise ChainTooLong(f"more than {STEPS_MAX} records have that key, or one with its hash")
        return sorted(position for position in found if position >= self._store.log.start)

    def sync(self) -> IndexMark | None:
        """Sync the last file, on the index's worker. Returns the mark of entries on disk, or None. Raises OSError."""
        if not self._files or self._sync_has_failed:
            return None
        file = self._files[-1]
        count = INDEX_HEADER.unpack(file.view)["count"]
        if count <= 1:
            return self._mark
        if self._mark is None or (self._mark.name, self._mark.next_unit) != (file.path.name, count):
            try:
                file.sync(self._size.file_bytes)
            except OSError:
                self._sync_has_failed, self._mark = True, None
                raise
        self._mark = IndexMark(file.path.name, count, LogPosition(max(self._reached, self.indexed_to)))
        return self._mark

    def drop_before(self, log_start: LogPosition) -> Callable[[], None]:
        """Drop the files whose last record is gone, except for the last file. Returns the job that removes them."""
        gone = 0
        while gone < len(self._files) - 1 and INDEX_HEADER.unpack(self._files[gone].view)["end_position"] < log_start:
            gone += 1
        paths = [file.path for file in self._files[:gone]]
        del self._files[:gone]
        self.indexed_to = max(self.indexed_to, log_start)

        def job() -> None:
            for path in paths:
                self._store.disk.remove(path)

        return job

    # Opening -------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Open the complete files. Remove a file that may be incomplete, and all files after it."""
        disk, store = self._store.disk, self._store
        names = sorted(name for name in disk.list(self._folder) if is_index_file_name(name))
        for i, name in enumerate(names):
            file = self._whole_file(name)
            if file is None or not self._joins(file):
                for gone in names[i:]:
                    log.warning("the broker deletes index file %s and writes it again from the log", gone)
                    disk.remove(self._folder / gone)
                break
            self._files.append(file)
        for file in reversed(self._files):
            header = INDEX_HEADER.unpack(file.view)
            if header["end_position"] >= store.log.start and header["end_ms"] > 0:
                self.indexed_to = self._behind(header)
                break

    def _whole_file(self, name: str) -> MappedFile | None:
        """Return the file if its entries are on disk and refer to records in the log; else None. Raises OSError."""
        store = self._store
        try:
            file = store.disk.map(self._folder / name, self._size.file_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            log.warning("%s", error)
            return None
        if not store.last_stop_was_clean and not self._was_full(file) and not self._taken_back(file):
            return None
        return file if INDEX_HEADER.unpack(file.view)["end_position"] < max(store.log.end, 1) else None

    def _was_full(self, file: MappedFile) -> bool:
        """Return whether a file was full, and so synced, before the checkpoint was written.

        The header is a page like any other. Without it after a power cut, the file counts as not full.
        """
        header, known_ms = INDEX_HEADER.unpack(file.view), self._store.index_ms
        if header["end_ms"] == known_ms:
            is_first = all(INDEX_HEADER.unpack(one.view)["end_ms"] < known_ms for one in self._files)
            return bool(is_first and header["count"] >= self._size.units)
        return bool(header["count"] > 1 and header["end_ms"] < known_ms)

    def _taken_back(self, file: MappedFile) -> bool:
        """Roll a file in use at the stop back to the entries on disk. Returns whether that is possible.

        It is possible for the file of the mark. The files before it are complete on disk.
        """
        mark = self._store.index_mark
        if mark is None or file.path.name > mark.name:
            return False
        if file.path.name < mark.name:
            return True
        if not 1 < mark.next_unit <= self._size.units:
            return False
        self._store.disk.give_room(file.path, 0, self._size.units_at)
        last = INDEX_UNIT.unpack(file.view, self._size.units_at + (mark.next_unit - 1) * INDEX_UNIT.size)
        end_ms = self._store.log.record_store_ms(LogPosition(last["position"]))
        return end_ms is not None and roll_back(file.view, self._size, mark.next_unit, mark.position, end_ms)

    def _joins(self, file: MappedFile) -> bool:
        """Return whether the log has no key between the previous file and this one: a file may have been removed."""
        header, commit_log = INDEX_HEADER.unpack(file.view), self._store.log
        at = self._behind(INDEX_HEADER.unpack(self._files[-1].view)) if self._files else commit_log.start
        at = max(at, commit_log.start)
        for _ in range(UNKEYED_MAX):
            if at >= header["begin_position"]:
                return True
            record = commit_log.record_at(at)
            if record is None and commit_log.record_store_ms(at) is None:  # the blank
                at = LogPosition(at - at % commit_log.files.file_bytes + commit_log.files.file_bytes)
            elif record is None or _is_keyed(record.message):
                return False
            else:
                at = LogPosition(at + record.size)
        return False

    def _behind(self, header: dict[str, int]) -> LogPosition:
        """Return the position after a file's last record, or of it: a full file may lack some of its keys."""
        position = LogPosition(header["end_position"])
        record = self._store.log.record_at(position)
        if record is None or header["count"] >= self._size.units:
            return position
        return LogPosition(position + record.size)


def _is_keyed(message: Message) -> bool:
    """Return whether a message has keys in the index. The record of a rollback has none."""
    return message.sys_flag & SYS_TRANSACTION != SYS_TRANSACTION and bool(index_keys(message.properties))
