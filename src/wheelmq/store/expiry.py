"""Removes expired files of the store (RocketMQ: CleanCommitLogService, CleanConsumeQueueService).

Log files are removed from the oldest on, once all their records are older than the reserved time, at the configured
hours or when the disk fills. On a nearly full disk their age is ignored. Needed files always stay: the newest file, and
every file from the oldest pending message on. Queue and index files are removed after the log files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from wheelmq.formats.units import LogPosition, Millis
from wheelmq.store.index import MessageIndex
from wheelmq.store.settings import ExpirySettings
from wheelmq.store.store import Store
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

HOUR_MS: Final = 3_600_000


class Expiry:
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
        """No record before this position is needed, and the records that settled the old messages are on disk."""
        self._noted = (store.log.start, store.log.start)

    def note(self) -> None:
        """Note the oldest needed position. It takes effect once log and queue units are on disk up to now.

        Until then the record that settled a parked message may exist only in memory. And the unit of a removed record
        cannot be written again: without it, its queue would assign a queue offset twice.
        """
        if min(self._store.log.synced, self._store.units_synced_to) >= self._noted[1]:
            self._free_to = self._noted[0]
            self._noted = (self._needed_from(), self._store.log.end)

    def poll(self, *, at_once: bool = False) -> None:
        """Remove files if it is time. `at_once` ignores the hour and the disk usage."""
        self.note()
        store = self._store
        used = 100 * store.disk.used_share(store.paths.root)
        forcibly = used > self._settings.forcibly_percent and self._settings.forcibly_enable
        is_hour = time.localtime(store.clock.now_ms() // 1000).tm_hour in self._settings.hours
        if not (at_once or forcibly or is_hour or used > self._settings.used_percent):
            return
        upto = self._expired_to(regardless_of_age=forcibly)
        if upto > store.log.start:
            log.info("the broker deletes the log files before position %d; the disk is %.0f %% full", upto, used)
            self.drop_before(upto)
        elif forcibly and not self._is_stuck:
            log.warning(
                "the disk is %.0f %% full, and the broker still needs all log files: free space on the disk", used
            )
        self._is_stuck = forcibly and upto == store.log.start

    def _expired_to(self, *, regardless_of_age: bool) -> LogPosition:
        store = self._store
        files = store.log.files
        upto = store.log.start
        oldest_ms = store.clock.now_ms() - self._settings.reserved_hours * HOUR_MS
        for _ in range(self._settings.files_max):
            behind = LogPosition(upto + files.file_bytes)
            if behind >= files.end or behind > self._free_to:
                break
            if not regardless_of_age and not self._is_before(behind, Millis(oldest_ms)):
                break
            upto = behind
        return upto

    def _is_before(self, position: LogPosition, oldest_ms: Millis) -> bool:
        """Return whether the first record of the file at `position`, and so each before it, is older than that."""
        store_ms = self._store.log.record_store_ms(position)
        return store_ms is not None and store_ms < oldest_ms

    def drop_before(self, position: LogPosition) -> None:
        """Remove the log before `position` and then its references in queues and index, off the loop.

        The removal of the log files is on disk first. Otherwise a record that reappears after a power cut would have no
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
        log.error("the broker could not delete an expired file: %s", result)
