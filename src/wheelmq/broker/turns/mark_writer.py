"""Make turns durable on a worker: sync the timer log, then write the mark for it, then Apache's timercheck.

A sync that succeeds after a failed one proves nothing, so a failed sync fails the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.delay.timer import apache_export
from wheelmq.delay.timer.mark import CheckFile, Mark
from wheelmq.delay.timer.timer import Timer
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

CHECK_MS: Final = 1000
"""While the fallback is active, timercheck is written at this interval, so that Apache does not read slots whose
messages are settled."""


class MarkWriter:
    """Saves the state of the timer after each change of its log. Times are monotonic milliseconds."""

    def __init__(
        self,
        store: Store,
        timer: Timer,
        check_file: CheckFile,
        worker: Worker,
        health: StoreHealth,
        earliest_in_hand_ms: Callable[[], int | None],
    ) -> None:
        """`earliest_in_hand_ms` returns the least time of the references that are being released."""
        self._store = store
        self._timer = timer
        self._check_file = check_file
        self._worker = worker
        self._health = health
        self._earliest_in_hand_ms = earliest_in_hand_ms
        self._saves = 0
        self._check_ms = 0

    def is_saving(self) -> bool:
        return self._saves > 0

    def save(self, done: Callable[[], None] | None = None) -> None:
        """Sync the timer log and write the mark, on the worker. `done` runs once both are on disk."""
        timer = self._timer
        self._saves += 1
        upto, sync = timer.log.sync_job()
        mark = timer.mark()

        def job() -> None:
            sync()
            reach("mark.before")
            self._write(mark)

        self._worker.submit(job, lambda result: self._saved(upto, done, result))

    def _write(self, mark: Mark) -> None:
        assert self._timer.log.files.synced(mark.timer_log_position)
        self._timer.mark_file.write(mark)

    def _saved(self, upto: int, done: Callable[[], None] | None, result: Any) -> None:
        self._saves -= 1
        if isinstance(result, BaseException):
            log.critical("a flush of the timer log failed: %s", result)
            self._health.fail(result)
            return
        self._timer.log.note_synced(upto)
        self._note_check()
        if done is not None:
            done()

    def poll(self) -> None:
        """Begin to write timercheck if the commit log is on disk as far as it says. Runs in every tick."""
        self._check_file.poll()

    def refresh_check(self, now_ms: int) -> None:
        """Have timercheck written again if CHECK_MS have passed. A running save has it written at its end."""
        if now_ms >= self._check_ms and not self._saves:
            self._check_ms = now_ms + CHECK_MS
            self._note_check()

    def _note_check(self) -> None:
        """Have timercheck written for the present state if the timer log is on disk."""
        timer = self._timer
        if timer.log.synced == timer.log.end:
            self._check_file.note(timer.timercheck(self._earliest_in_hand_ms()))

    def close(self) -> None:
        """Stop cleanly: write timer log, wheel, mark and timercheck to disk, prepared for Apache's broker."""
        timer = self._timer
        self._store.flush()
        self._sync_timer_log()
        mark = timer.mark()
        in_hand_ms = self._earliest_in_hand_ms()
        last_read_ms = timer.timercheck(in_hand_ms).last_read_ms
        apache_export.prepare(timer, last_read_ms)
        self._sync_timer_log()
        timer.wheel.sync()
        timer.mark_file.write(mark)
        self._check_file.write(timer.timercheck(in_hand_ms)._replace(last_read_ms=last_read_ms))

    def _sync_timer_log(self) -> None:
        upto, sync = self._timer.log.sync_job()
        sync()
        self._timer.log.note_synced(upto)
