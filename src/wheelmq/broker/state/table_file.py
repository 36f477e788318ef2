"""A JSON table of the config folder that is written off the loop.

A write stores all changes made before it began, so a thousand changes cost one write. A rest of its length follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from wheelmq.store import config_file
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.rate_limited_log import RateLimitedLog
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

WRITE_INTERVAL_MS: Final = 1000
"""Time from a change to its write when no answer waits for it. A kill can lose the changes of this time."""
RETRY_MS: Final = 100
"""Time from a failed write to the next one when an answer waits."""
REST_MS_MAX: Final = 1000
"""Maximum rest after a write. After a disk has hung for a minute, no new topic waits for another minute."""
WAITERS_MAX: Final = 10_000
"""Answers that can wait for one table."""

Saved = Callable[[OSError | None], None]
"""Called when a write has ended, with its error if it failed."""


class TableFile:
    """Writes the value that `take` returns to `path`. Times are monotonic milliseconds."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        clock: Clock,
        worker: Worker,
        take: Callable[[], Any],
        written: Callable[[int, OSError | None], None] = lambda upto, error: None,
        *,
        private: bool = False,
    ) -> None:
        """`written` is called after each write, with the number of changes in it and its error, before any waiter.

        Only its owner can read a `private` file.
        """
        self.path = path
        self._disk = disk
        self._clock = clock
        self._flight = SingleFlight(worker)
        self._take = take
        self._written = written
        self._is_private = private
        self._changes = 0
        self._saved = 0
        """Changes that the file holds."""
        self._due_ms = 0
        self._rest_until_ms = 0
        self._waiting: list[tuple[int, Saved]] = []
        """Each with the change that it waits for, in the order of the changes."""
        self._log = RateLimitedLog(log, clock.monotonic)

    @property
    def changes(self) -> int:
        return self._changes

    @property
    def saved(self) -> int:
        return self._saved

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < WAITERS_MAX

    def note_change(self) -> None:
        if self._changes == self._saved:
            self._due_ms = self._now_ms() + WRITE_INTERVAL_MS
        self._changes += 1

    def when_saved(self, done: Saved) -> None:
        """Call `done` once all changes up to now are on disk, or the write of them has failed."""
        if self._changes == self._saved:
            done(None)
        else:
            self._waiting.append((self._changes, done))

    def poll(self, monotonic_ms: int) -> None:
        if self._changes == self._saved:
            return
        due_ms = self.next_ms()
        if due_ms is None or due_ms > monotonic_ms:
            return
        upto, value = self._changes, self._take()
        self._flight.submit(
            lambda: config_file.save(self._disk, self.path, value, private=self._is_private),
            done=lambda _: self._ended(upto, monotonic_ms, None),
            failed=lambda error: self._ended(upto, monotonic_ms, error),
        )

    def next_ms(self) -> int | None:
        if self._changes == self._saved or self._flight.is_running:
            return None
        return max(self._rest_until_ms, 0 if self._waiting else self._due_ms)

    def save_now(self) -> None:
        """Write the table on the calling thread, for a clean stop."""
        if self._changes > self._saved:
            try:
                config_file.save(self._disk, self.path, self._take(), private=self._is_private)
                self._saved = self._changes
                self._written(self._saved, None)
            except OSError as error:
                log.error(
                    "the broker could not write %s at the stop, and its last changes are lost: %s", self.path, error
                )

    def _ended(self, upto: int, began_ms: int, failure: Exception | None) -> None:
        now_ms = self._now_ms()
        self._rest_until_ms = now_ms + min(now_ms - began_ms, REST_MS_MAX)
        error: OSError | None = None
        if failure is not None:
            error = failure if isinstance(failure, OSError) else OSError(f"{type(failure).__name__}: {failure}")
            self._rest_until_ms, self._due_ms = now_ms + RETRY_MS, now_ms + WRITE_INTERVAL_MS
            self._log.warn("failed", "the broker could not write %s, and will try again: %s", self.path, error)
        else:
            self._saved = max(self._saved, upto)
            self._due_ms = now_ms + WRITE_INTERVAL_MS
        self._written(upto, error)
        ended = [done for change, done in self._waiting if change <= upto]
        self._waiting = [one for one in self._waiting if one[0] > upto]
        for done in ended:
            done(error)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()
