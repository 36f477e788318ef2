"""Prepares the log ahead of its end, off the loop: gives it room, populates its pages and creates its next files.

The first store to a page of an allocated file is an expensive fault. A new file needs an fsync, which waits seconds for
a busy disk, and so may the allocation of blocks. None of them may delay the tick. The sparse file of a consume queue
costs a tick little.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from wheelmq.store.commit_log import CommitLog
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.warm_locks import WarmLocks
from wheelmq.system.clock import Clock
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

STEP_BYTES: Final = 8 << 20
"""Bytes per step of populating pages."""
AHEAD_BYTES: Final = 64 << 20
"""Distance ahead of the log's end within which pages are populated: room for 100,000 small messages."""
FIRST_AHEAD_BYTES: Final = 16 << 20
PER_GROWN_BYTE: Final = 4
"""The distance is FIRST_AHEAD_BYTES after the start, and grows by this number of bytes with each byte of the log. A
quiet broker takes little disk space."""
COMING_BYTES_MAX: Final = 512 << 20
"""Limit of the extra distance for messages known to come: the size of a burst of a million small messages."""
STORED_BYTES: Final = 16 << 20
"""Distance ahead of the log's end within which pages are populated for writing, so that the loop has no page faults
there. During a flush a page fault costs the loop a hundred times as much as otherwise."""
FRESH_S: Final = 10.0
"""Age at which pages are populated for writing again, if half of the distance is about to be used.

The system writes dirty pages to disk by itself, usually after 30 s, and the next store is a page fault again.
"""
RESTS_MAX: Final = 4
"""Maximum number of repetitions while the sequence does not grow, because the coming messages may be held.
Afterwards its pages stay clean."""


class PagePreallocator:
    """Gives room to a sequence ahead of its written part, and populates the pages there.

    Each job is one step, so that another sequence can use the worker in between. The worker should have no longer jobs:
    a log that grows by 150 MB/s uses up STORED_BYTES in 0.1 s.
    """

    def __init__(self, files: MappedSequence, worker: Worker, clock: Clock, step_bytes: int = STEP_BYTES) -> None:
        self._files = files
        self._flight = SingleFlight(worker)
        self._clock = clock
        self._step_bytes = step_bytes
        self._populated_to = self._stored_to = 0
        self._has_failed = False
        self._stored_s = 0.0
        self._stored_at = 0
        """Time of the last step populated for writing, and the written position at that time."""
        self._rests = 0

    def poll(self, position: int, ahead_bytes: int, *, stores: bool = False, coming_bytes: int = 0) -> bool:
        """Start a step if pages within `ahead_bytes` after `position` are not populated. Returns whether a step runs.

        `position` is the written end. `stores` populates pages for writing. `coming_bytes` will be appended soon.
        """
        files = self._files
        if stores and self._is_stale(position, coming_bytes, ahead_bytes // 2):
            self._rests = self._rests + 1 if position == self._stored_at else 0
            self._stored_to = position
        start = max(self._stored_to if stores else self._populated_to, position)
        if self._flight.is_running or start >= min(position + ahead_bytes, files.made_to):
            return self._flight.is_running
        file = files.made_at(start)
        at = start % files.file_bytes
        stop = min(at + self._step_bytes, file.size)
        if stores:
            self._stored_to, self._stored_at = start + stop - at, position
            self._stored_s = self._clock.monotonic()
        self._populated_to = max(self._populated_to, start + stop - at)
        gives_room = files.room_job(file, at, stop)

        def job() -> tuple[bool, bool]:
            has_room = gives_room()
            return has_room, file.populate(at, stop, stores=stores and has_room)

        self._flight.submit(job, done=partial(self._prepared, start, start + stop - at), failed=self._warn_once)
        return True

    def _is_stale(self, position: int, coming_bytes: int, enough_bytes: int) -> bool:
        """Return whether to populate pages for writing again, because `enough_bytes` were appended or will be."""
        grown_bytes = position - self._stored_at
        if self._flight.is_running or max(grown_bytes, coming_bytes) < enough_bytes:
            return False
        if not grown_bytes and self._rests >= RESTS_MAX:
            return False
        return self._clock.monotonic() - self._stored_s >= FRESH_S

    def _prepared(self, start: int, stop: int, result: tuple[bool, bool]) -> None:
        has_room, is_populated = result
        if has_room:
            self._files.note_room(start, stop)
        if not is_populated:
            self._warn_once("the system does not support it (Linux before 5.14)")

    def _warn_once(self, why: object) -> None:
        """Log the first failure. Populating only saves time, so a failure has no other effect."""
        if not self._has_failed:
            self._has_failed = True
            log.warning(
                "the broker does not populate pages of %s ahead, which makes sends slower: %s", self._files.folder, why
            )


class FilePreallocator:
    """Creates the next `count` files of a sequence and populates their first bytes. `poll` is called in every tick.

    It starts when at most `left_bytes` of the last file are unused; without `left_bytes`, once that file exists.
    """

    def __init__(
        self,
        files: MappedSequence,
        worker: Worker,
        count: int,
        *,
        populate_bytes: int,
        left_bytes: int | None = None,
        locks: WarmLocks | None = None,
    ) -> None:
        self._files = files
        self._worker = worker
        self._count = count
        self._populate_bytes = populate_bytes
        self._left_bytes = left_bytes
        self._locks = locks
        self._made_for = -1

    def poll(self, position: int) -> None:
        """Create files if it is time. The sequence is written up to `position`."""
        files = self._files
        if files.end == self._made_for or files.start == files.end:
            return
        if self._left_bytes is not None and files.end - position > self._left_bytes:
            return
        self._made_for = files.end
        self._worker.submit(files.ahead_job(self._count, self._populate_bytes), self._take)

    def _take(self, result: Any) -> None:
        if isinstance(result, BaseException):
            log.warning("the broker could not create the next file of %s ahead: %s", self._files.folder, result)
        else:
            self._files.take_ahead(result)
            if self._locks is not None:
                self._locks.lock(result)


class Preallocator:
    """Prepares the commit log ahead of its end. `poll` is called in every tick, and cheap if idle."""

    def __init__(
        self,
        commit_log: CommitLog,
        making: Worker,
        populating: Worker,
        clock: Clock,
        count: int = 2,
        *,
        is_warm: bool = False,
    ) -> None:
        self._log = commit_log
        populate_bytes = commit_log.files.file_bytes if is_warm else STEP_BYTES
        self._locks = WarmLocks(commit_log.files, making, count) if is_warm else None
        self._files = FilePreallocator(
            commit_log.files, making, count, populate_bytes=populate_bytes, locks=self._locks
        )
        self._pages = PagePreallocator(commit_log.files, populating, clock)
        self._began_at = commit_log.end

    def poll(self, coming_bytes: int = 0) -> None:
        """Populate pages, and create files if the log has begun another one. `coming_bytes` will be appended soon."""
        end = self._log.end
        if not self._pages.poll(end, STORED_BYTES, stores=True, coming_bytes=coming_bytes):
            ahead_bytes = min(AHEAD_BYTES, FIRST_AHEAD_BYTES + PER_GROWN_BYTE * (end - self._began_at))
            self._pages.poll(end, ahead_bytes + min(coming_bytes, COMING_BYTES_MAX))
        self._files.poll(end)
        if self._locks is not None:
            self._locks.unlock_before(end)
