"""Work ahead of a log's end, beside the loop: the next pages populated, on a thread of its own; the next files made.

A page that is touched for the first time is a fault, and for a file that was only allocated a costly one; a file that
has to be made is an allocation and an fsync, which waits seconds for a busy disk. Neither belongs into the tick that
appends. (A file of a consume queue is sparse and synced later, so it costs its tick little.)
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from wheelmq.store.commit_log import CommitLog
from wheelmq.store.mapped import MappedSequence
from wheelmq.store.warm_locks import WarmLocks
from wheelmq.system.clock import Clock
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

STEP_BYTES: Final = 8 << 20
"""Pages are populated in steps of this."""
AHEAD_BYTES: Final = 64 << 20
"""How far ahead of the log's end pages are kept: a burst of 100,000 small messages touches no new one."""
COMING_BYTES_MAX: Final = 512 << 20
"""And as much more for what is known to come, but no more than this: a burst of a million small messages."""
STORED_BYTES: Final = 16 << 20
"""How far ahead of the log's end pages are stored to: the faults are not the loop's then. While a flush is under way
one costs the loop a hundred times as much as else."""
FRESH_S: Final = 10.0
"""The system writes what was stored to by itself, after half a minute as a rule; the next store is a fault again. So it
is stored to once more when that was so long ago, if half of it is about to be used, or the sequence grew by as much.
"""
RESTS_MAX: Final = 4
"""So often while the sequence rests: what is to come may be held. One that rests stays clean."""


class PagePreallocator:
    """Has pages of a sequence populated ahead of what is written, a step at a time, so that another one has a turn.

    Its thread should do nothing that takes longer: a log that takes 150 MB/s is through what was stored to in 0.1 s.
    """

    def __init__(self, files: MappedSequence, worker: Worker, clock: Clock, step_bytes: int = STEP_BYTES) -> None:
        self._files = files
        self._worker = worker
        self._clock = clock
        self._step_bytes = step_bytes
        self._populated_to = self._stored_to = 0
        self._is_populating = self._has_failed = False
        self._stored_s = 0.0
        self._stored_at = 0
        """When a step last was stored to, and what was written then."""
        self._rests = 0

    def poll(self, position: int, ahead_bytes: int, *, stores: bool = False, coming_bytes: int = 0) -> bool:
        """The sequence is written up to `position`: begin a step if one is missing within `ahead_bytes`, and its file
        is there. Whether one is under way."""
        files = self._files
        if stores and self._is_stale(position, coming_bytes, ahead_bytes // 2):
            self._rests = self._rests + 1 if position == self._stored_at else 0
            self._stored_to = position
        start = max(self._stored_to if stores else self._populated_to, position)
        if self._is_populating or start >= min(position + ahead_bytes, files.made_to):
            return self._is_populating
        file = files.made_at(start)
        at = start % files.file_bytes
        stop = min(at + self._step_bytes, file.size)
        if stores:
            self._stored_to, self._stored_at = start + stop - at, position
            self._stored_s = self._clock.monotonic()
        self._populated_to = max(self._populated_to, start + stop - at)
        self._is_populating = True
        self._worker.submit(partial(file.populate, at, stop, stores=stores), self._populated)
        return True

    def _is_stale(self, position: int, coming_bytes: int, enough_bytes: int) -> bool:
        """Whether what was stored to is to be stored to again, since `enough_bytes` have come or are about to."""
        grown_bytes = position - self._stored_at
        if self._is_populating or max(grown_bytes, coming_bytes) < enough_bytes:
            return False
        if not grown_bytes and self._rests >= RESTS_MAX:
            return False
        return self._clock.monotonic() - self._stored_s >= FRESH_S

    def _populated(self, result: Any) -> None:
        """Whatever came of it: it is a help and no promise."""
        self._is_populating = False
        if result is not True and not self._has_failed:
            self._has_failed = True
            why = result if isinstance(result, BaseException) else "the system cannot do that (Linux before 5.14)"
            log.warning("pages of %s are not populated ahead, which makes sends slower: %s", self._files.folder, why)


class FilePreallocator:
    """Has the next `count` files of a sequence made, and their first bytes populated: when so few bytes are left of its
    last file, or as soon as there is that one. `look` is called in every tick."""

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
        """The sequence is written up to `position`."""
        files = self._files
        if files.end == self._made_for or files.start == files.end:
            return
        if self._left_bytes is not None and files.end - position > self._left_bytes:
            return
        self._made_for = files.end
        self._worker.submit(files.ahead_job(self._count, self._populate_bytes), self._take)

    def _take(self, result: Any) -> None:
        if isinstance(result, BaseException):
            log.warning("the next file of %s could not be made ahead: %s", self._files.folder, result)
        else:
            self._files.take_ahead(result)
            if self._locks is not None:
                self._locks.lock(result)


class Preallocator:
    """Keeps ahead of the log. `look` is called in every tick and is cheap when there is nothing to do."""

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

    def poll(self, coming_bytes: int = 0) -> None:
        """Have pages populated, and files made if the log has begun another; so many bytes will be appended soon."""
        end = self._log.end
        if not self._pages.poll(end, STORED_BYTES, stores=True, coming_bytes=coming_bytes):
            self._pages.poll(end, AHEAD_BYTES + min(coming_bytes, COMING_BYTES_MAX))
        self._files.poll(end)
        if self._locks is not None:
            self._locks.unlock_before(end)
