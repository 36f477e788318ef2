"""Prepares the timer log ahead of its end, as the store prepares the commit log."""

from __future__ import annotations

from typing import Final

from wheelmq.delay.timer.log import TimerLog
from wheelmq.store.preallocator import STEP_BYTES, FilePreallocator, PagePreallocator
from wheelmq.system.clock import Clock
from wheelmq.system.workers import Worker

PAGES_AHEAD_BYTES: Final = 4 << 20
"""Bytes of pages that are written to ahead of the timer log's end: the units of one or a few turns."""


class TimerLogPreallocator:
    """Populates the next pages of the timer log, and creates its next file when the last one is three quarters full."""

    def __init__(
        self, timer_log: TimerLog, making: Worker, populating: Worker, clock: Clock, *, creates_files: bool = True
    ) -> None:
        files = timer_log.files
        self._log = timer_log
        self._files = FilePreallocator(
            files, making, int(creates_files), populate_bytes=STEP_BYTES, left_bytes=files.file_bytes // 4
        )
        self._pages = PagePreallocator(files, populating, clock, PAGES_AHEAD_BYTES // 2)

    def poll(self) -> None:
        end = self._log.end
        self._files.poll(end)
        self._pages.poll(end, PAGES_AHEAD_BYTES, stores=True)
