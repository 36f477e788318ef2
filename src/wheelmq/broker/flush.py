"""Flushing: one fsync at a time, off the loop, for everyone who waits for the disk.

With SYNC_FLUSH an answer waits for its log position, or for its message in a block, and one flush frees all that came
before it began (group commit). With ASYNC_FLUSH a flush runs every interval; one of few pages may wait for more, up to
the longer interval. A plan of the timer asks for one when it needs it.
A failed fsync is final: the kernel may have dropped the pages, so nothing may be acknowledged any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wheelmq.broker.connection import Connection
from wheelmq.broker.holds import DurableAnswers
from wheelmq.broker.settings import BrokerSettings, FlushMode
from wheelmq.delay.blocks.blocks import Blocks, Note
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.store.store import Store
from wheelmq.system.offload import Offload

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096


class Flush:
    """Decides when to flush and frees who waited."""

    def __init__(
        self,
        store: Store,
        blocks: Blocks,
        offload: Offload,
        settings: BrokerSettings,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._offload = offload
        self._settings = settings
        self._fail = fail
        self._answers = DurableAnswers()
        self._block_answers = DurableAnswers()
        """Those that wait for messages of blocks, by how many were put."""
        self._has_failed = False
        self._running = False
        self._wanted = False
        self._due_ms = self._thorough_ms = 0

    @property
    def is_sync(self) -> bool:
        return self._settings.flush_mode is FlushMode.SYNC

    def answer_when_durable(
        self, position: LogPosition, connection: Connection, frames: bytes, late: bytes | None = None
    ) -> None:
        """Send `frames` once the log is on disk up to `position`; after a failure they say that it is not.

        `late` is sent in their place then, and when it takes too long; without it, they say FLUSH_DISK_TIMEOUT.
        """
        self._hold(self._answers, position, self._store.log.synced, connection, frames, late)

    def answer_when_blocks_are_durable(
        self, put_count: int, connection: Connection, frames: bytes, late: bytes | None = None
    ) -> None:
        """The same, once the first `put_count` messages of blocks since the start are on disk."""
        self._hold(self._block_answers, put_count, self._blocks.synced, connection, frames, late)

    def _hold(
        self, answers: DurableAnswers, upto: int, synced: int, connection: Connection, frames: bytes, late: bytes | None
    ) -> None:
        if upto <= synced:
            connection.send(frames)
        elif self._has_failed:
            connection.send(late or _as_timed_out(frames))
        else:
            answers.add(upto, int(self._store.clock.monotonic() * 1000), connection, frames, late)
            self._wanted = True

    def want(self) -> None:
        """Flush as soon as the one under way is done."""
        self._wanted = True

    def tick(self, now_ms: int) -> None:
        """Begin a flush if there is reason (monotonic milliseconds)."""
        self._answer_overdue(now_ms - self._settings.sync_flush_timeout_ms)
        if (
            self._has_failed
            or self._running
            or not self._is_behind()
            or not (self._wanted or now_ms >= self._flush_ms())
        ):
            return
        self._running, self._wanted = True, False
        self._due_ms = now_ms + self._settings.flush_interval_ms
        self._thorough_ms = now_ms + self._settings.flush_commit_log_thorough_interval
        upto, flush_log = self._store.flush_job()
        put_count, flush_blocks = self._blocks.flush_job()

        def job() -> list[Note]:
            notes = flush_blocks()
            flush_log()
            return notes

        self._offload.submit(job, lambda result: self._flushed(upto, put_count, result))

    def _is_behind(self) -> bool:
        """Whether anything is not on disk."""
        return self._store.log.synced < self._store.log.end or self._blocks.synced < self._blocks.end

    def _flush_ms(self) -> int:
        """When what is not on disk is flushed though nobody waits for it."""
        pages = (self._store.log.end - self._store.log.synced) // PAGE_BYTES
        is_enough = pages >= self._settings.flush_commit_log_least_pages or self._blocks.synced < self._blocks.end
        return self._due_ms if is_enough else max(self._due_ms, self._thorough_ms)

    def next_ms(self) -> int | None:
        """When the next flush is due, or an answer has waited too long; None when there is nothing to wait for."""
        waits = [ms for answers in self._all_answers() if (ms := answers.oldest_ms()) is not None]
        due_ms = min(waits) + self._settings.sync_flush_timeout_ms if waits else None
        if self._has_failed or self._running or not self._is_behind():
            return due_ms
        return self._flush_ms() if due_ms is None else min(self._flush_ms(), due_ms)

    def give_up(self) -> None:
        """The disk failed: whoever waits for it is told, and nothing is flushed or acknowledged any more."""
        self._has_failed = True
        self._answer_overdue(None)

    def _answer_overdue(self, before_ms: int | None) -> None:
        for answers in self._all_answers():
            for connection, frames, late in answers.take_overdue(before_ms):
                connection.send(late or _as_timed_out(frames))

    def _all_answers(self) -> tuple[DurableAnswers, DurableAnswers]:
        return self._answers, self._block_answers

    def _flushed(self, upto: LogPosition, put_count: int, result: Any) -> None:
        self._running = False
        if isinstance(result, BaseException):
            log.critical("a log could not be brought to disk: %s", result)
            self._fail(result)
        if self._has_failed:
            return
        self._store.note_flushed(upto)
        self._answers.free(upto)
        self._blocks.note_flushed(put_count, result)
        self._block_answers.free(put_count)


def _as_timed_out(frames: bytes) -> bytes:
    """The answers in `frames`, saying FLUSH_DISK_TIMEOUT: the messages are stored, and may not be on disk."""
    changed = []
    at = 0
    while (end := frame.frame_end(frames, at, len(frames))) is not None:
        command = frame.decode(frames, at, end)
        command.code = int(ResponseCode.FLUSH_DISK_TIMEOUT)
        changed.append(frame.encode(command))
        at = end
    return b"".join(changed)
