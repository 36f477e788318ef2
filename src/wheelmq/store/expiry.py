"""Which files of the store may go, and when (RocketMQ: CleanCommitLogService, CleanConsumeQueueService).

Log files go from the oldest on, at the hour that was chosen or when the disk fills, once all in them is older than the
reserved time; when the disk is nearly full they go without regard to age. What is needed still stays whatever the disk
says: the newest file, and every file from the first message on that waits in the timer. Queue and index files follow
the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.index import MessageIndex
from wheelmq.store.store import Store
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """Ratios are in percent of the file system's size."""

    reserved_hours: int
    hours: frozenset[int]
    """Of local time."""
    used_ratio: int
    """What is older than the reserved time goes from here on."""
    forcibly_ratio: int
    """What is not needed goes from here on, if `cleans_forcibly`; else what is older than the reserved time."""
    cleans_forcibly: bool
    batch_max: int
    """Log files that go at a time."""


def delete_hours(text: str, name: str = "delete_when") -> frozenset[int]:
    """The hours in a `delete_when`, or in another setting: two digits each, `;` between them. Raises ValueError."""
    words = text.split(";")
    if not all(len(word) == 2 and word.isdecimal() and int(word) < 24 for word in words):
        raise ValueError(f"{name} is {text!r}: write hours from 00 to 23, such as 04 or 04;16")
    return frozenset(map(int, words))


class Expiry:
    """Removes what has expired."""

    def __init__(
        self,
        store: Store,
        index: MessageIndex | None,
        settings: ExpirySettings,
        needed_from: Callable[[], LogPosition],
        background: Worker,
    ) -> None:
        self._store = store
        self._index = index
        self._settings = settings
        self._needed_from = needed_from
        self._background = background
        self._is_stuck = False
        self._free_to = store.log.start
        """Before this nothing is needed, and what says so is on disk."""
        self._noted = (store.log.start, store.log.start)

    def take_settings(self, settings: ExpirySettings) -> None:
        """Go by other settings from now on."""
        self._settings = settings

    def note(self) -> None:
        """Note what is needed now: it counts once log and queue units are on disk up to here.

        What settled a message that waited may still stand in memory alone; and the unit of a record that goes cannot be
        made anew, without which its queue would begin again at an offset that was given.
        """
        if min(self._store.log.synced, self._store.units_synced_to) >= self._noted[1]:
            self._free_to = self._noted[0]
            self._noted = (self._needed_from(), self._store.log.end)

    def poll(self, *, at_once: bool = False) -> None:
        """Remove files if it is time to, or if `at_once` says so: then whatever the hour and the disk."""
        self.note()
        store = self._store
        used = 100 * store.disk.used_share(store.paths.root)
        forcibly = used > self._settings.forcibly_ratio and self._settings.cleans_forcibly
        is_hour = time.localtime(store.clock.now_ms() // 1000).tm_hour in self._settings.hours
        if not (at_once or forcibly or is_hour or used > self._settings.used_ratio):
            return
        upto = self._expired_to(regardless_of_age=forcibly)
        if upto > store.log.start:
            log.info("log files before position %d are removed; the disk is %.0f %% full", upto, used)
            self.drop_before(upto)
        elif forcibly and not self._is_stuck:
            log.warning("the disk is %.0f %% full, and all there is in the log is needed: make room on it", used)
        self._is_stuck = forcibly and upto == store.log.start

    def _expired_to(self, *, regardless_of_age: bool) -> LogPosition:
        """Where the log may begin."""
        store = self._store
        files = store.log.files
        upto = store.log.start
        oldest_ms = store.clock.now_ms() - self._settings.reserved_hours * HOUR_MS
        for _ in range(self._settings.batch_max):
            behind = LogPosition(upto + files.file_bytes)
            if behind >= files.end or behind > self._free_to:
                break
            if not regardless_of_age and not self._is_before(behind, Millis(oldest_ms)):
                break
            upto = behind
        return upto

    def _is_before(self, position: LogPosition, oldest_ms: Millis) -> bool:
        """Whether all before the file that begins at `position` is older than that; its first record is not."""
        store_ms = self._store.log.record_store_ms(position)
        return store_ms is not None and store_ms < oldest_ms

    def drop_before(self, position: LogPosition) -> None:
        """Give up the log before `position`, and what names it; the files go off the loop.

        What names records goes when these are gone for good: a record that came back after a power cut would have no
        place in its queue.
        """
        store, folder = self._store, self._store.log.files.folder
        jobs = [store.log.files.drop_before(position), lambda: store.disk.sync_folder(folder)]
        jobs += store.queues.drop_before(store.log.start)
        if self._index is not None:
            jobs.append(self._index.drop_before(store.log.start))

        def job() -> None:
            for one in jobs:
                if one is not None:
                    one()

        self._background.submit(job, _log_failure)


def _log_failure(result: object) -> None:
    if isinstance(result, BaseException):
        log.error("a file that has expired could not be removed: %s", result)
