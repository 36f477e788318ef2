"""The index of messages by key: it follows the log, beside the loop (RocketMQ: IndexService).

Nothing waits for it. It reads the log up to where queue units were written, adds each key to the last of its files, and
begins another when that is full. Where it goes on after a stop is told by its files; what a power cut may have torn is
taken back to what the last snapshot knows to be on disk, or removed, and made anew from the log.

A query may miss what is stored this moment. A cancel may not: `find_all` finds every record before `indexed_to`, or
says that it cannot.
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
from wheelmq.system.disk import MappedFile
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

STEP_BYTES: Final = 16 << 20
"""How much of the log one job reads."""
GATHER_S: Final = 0.02
"""What comes within so long is added together: each job wakes a thread that wants the interpreter's lock."""
GATHER_BYTES: Final = 256 << 10
"""Unless it is so much of the log."""
UNKEYED_MAX: Final = 1000
"""So many records without a key are looked at between two files, which may join."""
NEWEST_FILES: Final = 2
"""So many files are always searched for all records with a key."""
CLOSE_BYTES_MAX: Final = 256 << 20
"""What a stop may still add; the rest is added after the next start."""

RETRY_S: Final = 1.0
"""How long to wait after what could not be done, such as making a file on a full disk."""


class IndexMatches(NamedTuple):
    """Where records with a key are, oldest first, and how far the index reaches."""

    positions: list[LogPosition]
    last_ms: Millis
    last_position: LogPosition


class MessageIndex:
    """The index files of a store."""

    def __init__(self, store: Store, worker: Worker, size: IndexSize) -> None:
        """Open the index files. Raises ValueError when `size` leaves no room for an entry."""
        if size.slots < 1 or size.units < 2:
            raise ValueError(f"an index file needs 1 slot and 2 units or more, not {size.slots} and {size.units}")
        self._store = store
        self._worker = worker
        self._size = size
        self._folder = store.paths.index
        self._files: list[MappedFile] = []
        self._adding, self._next_in = threading.Lock(), threading.Lock()
        self._wanted = np.zeros(1, np.int64)
        """1 while somebody waits for `_adding`."""
        self._mark: IndexMark | None = None
        self._is_busy = self._sync_has_failed = False
        self._failure = ""
        self._again_s = 0.0
        self.gather_s = GATHER_S
        self._gathered_s = 0.0
        """When the next job begins, if little has come."""
        self._reached = LogPosition(0)
        """How far the running job has come; its own."""
        self.indexed_to = store.log.start
        """Records before this position are in the index."""
        self._load()
        self._may_lack_room = bool(self._files)

    # Following -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Add what has queue units by now, if it is not being done; called in every tick."""
        begin_s = self.next_s()
        if begin_s is None:
            return
        now_s = self._store.clock.monotonic()
        job = self._next_job(self._store.dispatched_to) if begin_s <= now_s else None
        if job is not None:
            self._is_busy = True
            self._gathered_s = now_s + self.gather_s
            self._worker.submit(job, self._followed)

    def expedite(self) -> None:
        """Somebody asks: gather no more before what there is is added."""
        self._gathered_s = 0.0

    def next_s(self) -> float | None:
        """When `look` has something to do, by the clock that never goes back; None when it has nothing to do."""
        behind_bytes = self._store.dispatched_to - self.indexed_to
        if self._is_busy or behind_bytes <= 0:
            return None
        if self._failure:
            return self._again_s
        return 0.0 if behind_bytes >= GATHER_BYTES else self._gathered_s

    def close(self) -> None:
        """Add the rest, if it is not too much, and bring the index to disk; no job may run any more."""
        upto = LogPosition(min(self._store.dispatched_to, self.indexed_to + CLOSE_BYTES_MAX))
        try:
            while not self._failure and (job := self._next_job(upto)) is not None:
                job()
                self.indexed_to = self._reached
        except (OSError, RecordError) as error:
            log.error("messages behind log position %d are not in the index yet: %s", self._reached, error)
        try:
            if self._files:
                self._files[-1].sync(self._size.file_bytes)
        except OSError as error:
            log.error("the last index file is not on disk, and made anew at the next start: %s", error)
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
        """Add the records of a log file from byte `at` to byte `stop`. Raises OSError, DiskFull."""
        if self._may_lack_room:  # Apache's are sparse, and a store into a hole of a full disk is SIGBUS
            self._store.disk.give_room(self._files[-1].path, 0, self._size.file_bytes)
            self._may_lack_room = False
        self._reached = LogPosition(base + at)
        while at < stop:
            with self._alone():
                at, outcome = self._add_many(source, base, at, stop)
            self._reached = LogPosition(base + at)
            if outcome == kernel.NOT_MINE:
                at = self._add_one(source, base, at)
            elif outcome == kernel.FILE_END:
                at = source.size
            self._reached = LogPosition(base + at)

    def _add_many(self, source: MappedFile, base: int, at: int, stop: int) -> tuple[int, int]:
        if not jit.available() or not self._files:
            return at, kernel.NOT_MINE
        state = np.array([at], np.int64)
        file = self._files[-1].array
        slots, units = self._size.slots, self._size.units
        outcome = kernel.index_log(source.array, base, stop, file, slots, units, state, self._wanted)
        return int(state[kernel.AT]), int(outcome)

    def _add_one(self, source: MappedFile, base: int, at: int) -> int:
        """Add what stands at byte `at`; where the next stands. Raises RecordError for no record with none behind."""
        if BLANK.unpack_from(source.view, at) == (source.size - at, BLANK_MAGIC):
            return source.size
        try:
            record = decode_record(source.view[at:])
            if record.position != base + at:
                raise RecordError(f"it names log position {record.position}")
        except RecordError as error:
            following = find_record(source.view, at + 1, base)
            if following is None:
                raise
            log.critical(
                "the record at log position %d has changed since it was stored, and no key finds it: %s",
                base + at,
                error,
            )
            return following
        if _is_keyed(record.message):
            for key in index_keys(record.message.properties):
                code = index_hash(record.message.topic, key)
                if not self._put(code, record.position, record.store_ms):
                    self._begin_file()
                    has_room = self._put(code, record.position, record.store_ms)
                    assert has_room, "a new index file has room for an entry"
        return at + record.size

    def _put(self, code: int, position: LogPosition, store_ms: Millis) -> bool:
        """Add a unit; False when there is no file with room for it."""
        if not self._files:
            return False
        with self._alone():
            return put_key(self._files[-1].view, self._size, code, position, store_ms)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else reads or writes a chain meanwhile.

        Of the job and the loop, which are all there are, who asks first is next, and a job that adds many gives way.
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
        """Begin a file behind the last one, which is brought to disk. Raises OSError."""
        head = b""
        if self._files:
            last = self._files[-1]
            last.sync(last.size)
            header = INDEX_HEADER.unpack(last.view)
            self._store.index_ms = Millis(header["end_ms"])
            end = (header["end_ms"], header["end_position"])
            head = INDEX_HEADER.pack(end[0], end[0], end[1], end[1], 0, 0)
        file = self._store.disk.map(self._folder / self._next_name(), self._size.file_bytes)
        file.populate(0, self._size.units_at)
        file.view[: len(head)] = head
        self._files.append(file)

    def _next_name(self) -> str:
        """The name of a file that is begun now: behind those there are, and behind the one that the snapshot knows, be
        it gone and the clock set back: what is named before that one counts as whole."""
        known = [self._files[-1].path.name] if self._files else []
        if self._store.index_mark is not None:
            known.append(self._store.index_mark.name)
        return max([index_file_name(self._store.clock.now_ms()), *(f"{int(name) + 1:017d}" for name in known)])

    def _followed(self, result: object) -> None:
        self._is_busy = False
        self.indexed_to = max(self._reached, self._store.log.start)  # what was read may have expired meanwhile
        failure = f"{type(result).__name__}: {result}" if isinstance(result, BaseException) else ""
        if failure and failure != self._failure:
            log.error("messages behind log position %d are not in the index yet: %s", self.indexed_to, failure)
        self._failure = failure
        self._again_s = self._store.clock.monotonic() + RETRY_S

    # Reading -------------------------------------------------------------------------------------------------------

    def find(self, topic: str, key: str, begin_ms: Millis, end_ms: Millis, most: int) -> IndexMatches:
        """The records with a key that were stored from `begin_ms` to `end_ms`, at most `most`, the newest ones.

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
        """All records with a key that stand before `indexed_to` and at or behind `since()`, oldest first; and perhaps
        others, also such as have another key with the same hash.

        Raises IndexDamaged where a file does not hold what it should, ChainTooLong where too many keys share a slot.
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
        """Bring the last file to disk: what is known to be there then, None for nothing.

        It runs where the jobs of the index run, and so between them. Raises OSError.
        """
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
        """Give up the files whose last record is gone, but for the last file; what removes them."""
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
        """Take the files that are whole; remove those that may not be, and all behind them."""
        disk, store = self._store.disk, self._store
        names = sorted(name for name in disk.list(self._folder) if is_index_file_name(name))
        for i, name in enumerate(names):
            file = self._whole_file(name)
            if file is None or not self._joins(file):
                for gone in names[i:]:
                    log.warning("index file %s is removed and made anew from the log", gone)
                    disk.remove(self._folder / gone)
                break
            self._files.append(file)
        for file in reversed(self._files):
            header = INDEX_HEADER.unpack(file.view)
            if header["end_position"] >= store.log.start and header["end_ms"] > 0:
                self.indexed_to = self._behind(header)
                break

    def _whole_file(self, name: str) -> MappedFile | None:
        """The file, when what it holds is known to be on disk and names what is in the log. Raises OSError."""
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
        """Whether a file was full, and so brought to disk, before the checkpoint was written.

        Its header is a page like any other: one that a power cut left out says nothing, and belongs to no full file.
        """
        header, known_ms = INDEX_HEADER.unpack(file.view), self._store.index_ms
        if header["end_ms"] == known_ms:
            is_first = all(INDEX_HEADER.unpack(one.view)["end_ms"] < known_ms for one in self._files)
            return bool(is_first and header["count"] >= self._size.units)
        return bool(header["count"] > 1 and header["end_ms"] < known_ms)

    def _taken_back(self, file: MappedFile) -> bool:
        """Take a file that was written when the stop came back to what is known to be on disk; whether that can be.

        That is the file of the mark, and those before it, which are on disk whole.
        """
        mark = self._store.index_mark
        if mark is None or file.path.name > mark.name:
            return False
        if file.path.name < mark.name:
            return True
        if not 1 < mark.next_unit <= self._size.units:
            return False
        self._store.disk.give_room(file.path, 0, self._size.file_bytes)
        last = INDEX_UNIT.unpack(file.view, self._size.units_at + (mark.next_unit - 1) * INDEX_UNIT.size)
        end_ms = self._store.log.record_store_ms(LogPosition(last["position"]))
        return end_ms is not None and roll_back(file.view, self._size, mark.next_unit, mark.position, end_ms)

    def _joins(self, file: MappedFile) -> bool:
        """Whether no record with a key stands between the files before and this one: one may have been removed."""
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
        """Where to go on behind the last record of a file; that record may have had more keys than a full one took."""
        position = LogPosition(header["end_position"])
        record = self._store.log.record_at(position)
        if record is None or header["count"] >= self._size.units:
            return position
        return LogPosition(position + record.size)


def _is_keyed(message: Message) -> bool:
    """Whether the record of a message has keys in the index; one that rolls a transaction back has none."""
    return message.sys_flag & SYS_TRANSACTION != SYS_TRANSACTION and bool(index_keys(message.properties))
