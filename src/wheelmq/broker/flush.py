"""Flushing off the loop: at most one flush of the log and one of the blocks run at a time.

With SYNC_FLUSH, an answer waits for its log position, or for its message in a block (`durability`). One flush frees
all answers that waited before it began (group commit). An answer that waits for the log does not wait for the files of
blocks. With ASYNC_FLUSH, a flush runs every interval. A flush of few pages may wait longer, up to the longer interval.
While a burst of due messages leaves, a flush may wait for several intervals. A plan of the timer requests a flush when
it needs one.

A failed fsync is final: the kernel may have dropped the pages, so nothing may be acknowledged any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.settings import FlushMode, FlushSettings
from wheelmq.delay.blocks.blocks import Blocks, Note
from wheelmq.formats.units import LogPosition
from wheelmq.store.store import Store
from wheelmq.system.memory import PHYSICAL_BYTES
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
BURST_INTERVALS: Final = 10
"""Intervals until a flush that no answer waits for, while a burst leaves. A flush more than halves the speed of the
burst. Most messages that leave are already on disk in parked form."""
BURST_MS_MAX: Final = 5000
"""Maximum milliseconds until such a flush, unless one interval is longer."""
BURST_BYTES_MAX: Final = min(768 << 20, PHYSICAL_BYTES // 20)
"""A burst delays no flush of more bytes than this: a million small messages. The system blocks a thread that writes
to a page once too much of its memory is unwritten (vm.dirty_ratio). This limit is well below that."""


End = Callable[[bool], None]
"""Ends a wait for the disk. Called once: with True when the bytes are on disk, with False if not, or not in time."""


class WaitingAnswers:
    """Finished answers, ordered by the log position or the number of messages in blocks that they wait for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, End]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, position: int, now_ms: int, end: End) -> None:
        self._waiting.append((position, now_ms, end))

    def free(self, durable: int) -> None:
        while self._waiting and self._waiting[0][0] <= durable:
            self._waiting.popleft()[2](True)

    def oldest_ms(self) -> int | None:
        return self._waiting[0][1] if self._waiting else None

    def end_overdue(self, before_ms: int | None) -> None:
        while self._waiting and (before_ms is None or self._waiting[0][1] <= before_ms):
            self._waiting.popleft()[2](False)


class _Side:
    """The log, or the logs of the blocks: its waiting answers and its flushes."""

    def __init__(self, worker: Worker) -> None:
        self.flight = SingleFlight(worker)
        self.answers = WaitingAnswers()
        self.is_wanted = False
        self.due_ms = 0
        """When unflushed bytes are flushed even if no answer waits."""


class Flush:
    def __init__(
        self,
        store: Store,
        blocks: Blocks,
        worker: Worker,
        block_worker: Worker,
        settings: FlushSettings,
        health: StoreHealth,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._settings = settings
        self._health = health
        self._of_log = _Side(worker)
        self._of_blocks = _Side(block_worker)
        """Its answers wait for a number of messages put into blocks."""
        self._sides = self._of_log, self._of_blocks
        self._thorough_ms = 0
        self._patience_ms = 0
        """Additional milliseconds that the log waits for a flush in a burst."""

    @property
    def is_sync(self) -> bool:
        return self._settings.mode is FlushMode.SYNC

    def wait_for_log(self, position: LogPosition, end: End) -> None:
        """Call `end` once the log is on disk up to `position`, or with False after a failure or a timeout."""
        if position <= self._store.log.synced:
            end(True)
        else:
            self._wait(self._of_log, position, end)

    def wait_for_blocks(self, put_count: int, end: End) -> None:
        """Do the same once the first `put_count` messages of blocks since the start are on disk."""
        if put_count <= self._blocks.synced:
            end(True)
        else:
            self._wait(self._of_blocks, put_count, end)

    def _wait(self, side: _Side, upto: int, end: End) -> None:
        if self._health.failure is not None:
            end(False)
        else:
            side.answers.add(upto, self._store.clock.monotonic_ms(), end)
            side.is_wanted = True

    def want(self) -> None:
        """Flush all unflushed bytes as soon as the running flush has ended."""
        for side in self._sides:
            side.is_wanted |= self._is_behind(side)

    def is_asked_for(self) -> bool:
        is_wanted = self._of_log.is_wanted or self._of_blocks.is_wanted
        return is_wanted and any(self._can_begin(side) for side in self._sides)

    def _can_begin(self, side: _Side) -> bool:
        return side.is_wanted and not side.flight.is_running and self._is_behind(side)

    def tick(self, now_ms: int, *, is_burst: bool = False) -> None:
        """Begin the flushes that are due, in monotonic milliseconds. With ASYNC_FLUSH, a burst delays them."""
        self._patience_ms = self._burst_patience_ms() if is_burst and not self.is_sync else 0
        self._answer_overdue(now_ms - self._settings.sync_timeout_ms)
        if self._begins(self._of_log, now_ms):
            self._thorough_ms = now_ms + self._settings.thorough_interval_ms
            upto, flush_log = self._store.flush_job()
            self._of_log.flight.submit(
                flush_log, done=lambda _: self._log_flushed(upto), failed=partial(self._flush_failed, "log")
            )
        if self._begins(self._of_blocks, now_ms):
            put_count, flush_blocks = self._blocks.flush_job()
            self._of_blocks.flight.submit(
                flush_blocks,
                done=lambda notes: self._blocks_flushed(put_count, notes),
                failed=partial(self._flush_failed, "blocks"),
            )

    def _burst_patience_ms(self) -> int:
        if self._store.log.end - self._store.log.synced > BURST_BYTES_MAX:
            return 0
        interval_ms = self._settings.interval_ms
        return max(0, min(BURST_INTERVALS * interval_ms, BURST_MS_MAX) - interval_ms)

    def _begins(self, side: _Side, now_ms: int) -> bool:
        """Return whether a flush of `side` begins now. Sets the time of the next one then."""
        if not self._is_behind(side) or side.flight.is_running or self._health.failure is not None:
            return False
        if not side.is_wanted and now_ms < self._flush_ms(side):
            return False
        side.is_wanted = False
        side.due_ms = now_ms + self._settings.interval_ms
        return True

    def _is_behind(self, side: _Side) -> bool:
        if side is self._of_log:
            return self._store.log.synced < self._store.log.end
        return self._blocks.synced < self._blocks.end

    def _flush_ms(self, side: _Side) -> int:
        if side is self._of_blocks:
            return side.due_ms
        due_ms = side.due_ms + self._patience_ms
        pages = (self._store.log.end - self._store.log.synced) // PAGE_BYTES
        return due_ms if pages >= self._settings.least_pages else max(due_ms, self._thorough_ms)

    def next_ms(self) -> int | None:
        """Return when the next flush is due or an answer has waited too long; None if nothing waits."""
        waits: list[int] = []
        for side in self._sides:
            began_ms = side.answers.oldest_ms()
            if began_ms is not None:
                waits.append(began_ms + self._settings.sync_timeout_ms)
            if self._is_behind(side) and not side.flight.is_running and self._health.failure is None:
                waits.append(self._flush_ms(side))
        return min(waits, default=None)

    def cancel_waiting(self) -> None:
        """Answer all waiting requests after a disk failure. Nothing is flushed or acknowledged any more."""
        self._answer_overdue(None)

    def _answer_overdue(self, before_ms: int | None) -> None:
        for side in self._sides:
            side.answers.end_overdue(before_ms)

    def _log_flushed(self, upto: LogPosition) -> None:
        if self._health.failure is None:
            self._store.note_flushed(upto)
            self._of_log.answers.free(upto)

    def _blocks_flushed(self, put_count: int, notes: list[Note]) -> None:
        if self._health.failure is None:
            self._blocks.note_flushed(put_count, notes)
            self._of_blocks.answers.free(put_count)

    def _flush_failed(self, side: str, error: Exception) -> None:
        log.critical("a flush of the %s failed: %s", side, error)
        self._health.fail(error)
