"""Snapshots: shorten the scan of the log at a start. A tick takes a snapshot, and a worker writes it.

A snapshot copies what the log up to its end P defines. It is written once log and queue units are on disk up to P.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.pending import PendingInBlocks
from wheelmq.delay.blocks.role import BlockRole
from wheelmq.delay.done import DoneBits
from wheelmq.delay.timer.mark import Mark
from wheelmq.delay.timer.timer import Timer
from wheelmq.formats.disk.index import IndexMark
from wheelmq.formats.disk.origin import KIND_BLOCK, KIND_SHIFT, Stream
from wheelmq.formats.disk.snapshot import IndexedTimers, Snapshot
from wheelmq.formats.kernels.journal import REAL_QUEUE, SETTLES
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.store.index import MessageIndex
from wheelmq.store.store import Store
from wheelmq.system.failpoint import reach
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker

log = logging.getLogger(__name__)

RECORD_SIZE_BYTES: Final = 4
"""A record begins with its size."""


class _Taken(NamedTuple):
    position: LogPosition
    durable_from: LogPosition
    """The log must be on disk up to here first. The done bits may come from records after `position`."""
    record_position: LogPosition
    record: memoryview
    store_ms: Millis
    damaged: frozenset[LogPosition]
    queue_ends: npt.NDArray[np.int64]
    """Ends of the queues, by the row of the queue."""
    done: DoneBits
    ends: dict[Stream, QueueOffset]
    """Ends of the streams of `done`."""
    waiting: npt.NDArray[np.int64]
    """Numbers of pending messages, by the row of the real queue."""
    mark: Mark
    """E and T of the timer log on disk."""
    timer_log_sums: Callable[[], dict[int, int]]
    blocks_gone: dict[int, LogPosition]


class Snapshots:
    """Takes and writes the snapshots of a store."""

    def __init__(
        self,
        store: Store,
        timer: Timer,
        blocks: Blocks,
        block_role: BlockRole,
        in_blocks: PendingInBlocks,
        index: MessageIndex | None,
        background: Worker,
        may_take: Callable[[], bool] = lambda: True,
    ) -> None:
        """No snapshot is taken while `may_take` returns False, because it would hide ends of transactions."""
        self._store = store
        self._timer = timer
        self._blocks = blocks
        self._block_role = block_role
        self._in_blocks = in_blocks
        self._index = index
        self._flight = SingleFlight(background)
        self._settings = store.settings
        self._may_take = may_take
        self.index_mark: IndexMark | None = None
        """The part of the message index that is on disk according to the last snapshot."""
        self._taken: _Taken | None = None
        self._last_position = store.log.start
        self._last_indexed_to = self._indexed_to()
        self._last_ms = store.clock.monotonic_ms()

    def poll(self, monotonic_ms: int) -> None:
        """Take a snapshot if it is due, and write it once the log is on disk up to P. Runs at each tick's end."""
        if self._flight.is_running:
            return
        if self._taken is None:
            if self.is_due(monotonic_ms):
                self._taken = self._take()
                self._last_ms = monotonic_ms if self._taken is not None else self._last_ms
        elif self._store.log.synced >= self._taken.durable_from:
            job, self._taken = self._job(self._taken), None
            self._flight.submit(job, failed=_log_failure)

    def close(self) -> None:
        """Flush the log and write a last snapshot. No job may run any more. Raises OSError of the log."""
        self._store.flush()
        taken = self._take()
        if taken is not None:
            try:
                self._job(taken)()
            except OSError as error:
                _log_failure(error)

    def is_due(self, monotonic_ms: int) -> bool:
        """Return whether the next `poll` takes a snapshot, if nothing prevents it."""
        grown = self._store.log.end - self._last_position
        waited_ms = monotonic_ms - self._last_ms
        if not (grown or self._indexed_to() != self._last_indexed_to) or waited_ms < self._settings.checkpoint_ms:
            return False
        return grown >= self._settings.snapshot_log_bytes or waited_ms >= self._settings.snapshot_ms

    def _indexed_to(self) -> int:
        return (self._timer.mark_file.last or Mark()).queue_offset

    def _take(self) -> _Taken | None:
        """Copy the values that the log defines, up to the last record with a queue unit.

        Later records wait for replicas. Messages that they settle count as settled. A start finds the records again.
        Returns None without a record, after a failed dispatch, or while `may_take` returns False.
        """
        store, timer = self._store, self._timer
        if store.last_position is None or store.has_units_too_many or not self._may_take():
            return None
        self._last_position, self._last_indexed_to = store.dispatched_to, self._indexed_to()
        position = store.last_position
        mark = timer.mark_file.last or Mark()
        record_bytes = int.from_bytes(store.log.read(position, RECORD_SIZE_BYTES), "big")
        return _Taken(
            store.dispatched_to,
            store.log.end,
            position,
            store.log.read(position, record_bytes),
            store.dispatched_ms,
            store.log.damaged,
            np.array([queue.end for queue in store.queues], np.int64),
            timer.pending.done.copy(),
            timer.ends() | self._block_role.ends(),
            self._waiting(),
            mark,
            timer.log.sums_job(mark.timer_log_position),
            self._blocks.gone(),
        )

    def _waiting(self) -> npt.NDArray[np.int64]:
        """Return the numbers of pending messages by the row of the real queue, without those settled by the journal."""
        waiting, rows = self._in_blocks.outside_blocks(), self._store.journal.rows()
        settles = rows[:, SETTLES]
        mine = (settles != 0) & (settles >> KIND_SHIFT != KIND_BLOCK) & (rows[:, REAL_QUEUE] >= 0)
        np.subtract.at(waiting, rows[mine, REAL_QUEUE], 1)
        return waiting

    def _job(self, taken: _Taken) -> Callable[[], None]:
        """Return the job that syncs the queues and writes the snapshot `taken`. The job raises OSError."""
        store = self._store
        assert store.log.files.synced(taken.durable_from)
        checkpoint = store.checkpoint_job()

        def job() -> None:
            if checkpoint is not None:
                checkpoint()
            index, sums = self._sync_index(), taken.timer_log_sums()
            reach("snapshot.before")
            store.disk.replace(store.paths.snapshot, self._snapshot_of(taken, index, sums).encode())
            self.index_mark = index
            reach("snapshot.written")

        return job

    def _sync_index(self) -> IndexMark | None:
        try:
            return self._index.sync() if self._index is not None else None
        except OSError as error:
            log.error(
                "the flush of the last index file failed: a start after an unclean stop writes the file again: %s",
                error,
            )
            return None

    def _snapshot_of(self, taken: _Taken, index: IndexMark | None, sums: dict[int, int]) -> Snapshot:
        queues = self._store.queues
        ends, waiting = enumerate(taken.queue_ends.tolist()), enumerate(taken.waiting.tolist())
        indexed = IndexedTimers(QueueOffset(taken.mark.queue_offset), taken.mark.timer_log_position, sums)
        return Snapshot(
            position=taken.position,
            record_position=taken.record_position,
            record_crc=zlib.crc32(taken.record),
            store_ms=taken.store_ms,
            damaged=tuple(sorted(taken.damaged)),
            queue_ends={queues.key(row): QueueOffset(end) for row, end in ends if end},
            done=taken.done.packed(taken.ends),
            message_index=index,
            waiting={queues.key(row): count for row, count in waiting if count},
            timers=indexed if sums else None,
            blocks_gone=taken.blocks_gone,
        )


def _log_failure(error: Exception) -> None:
    log.error("the broker could not write the snapshot for the next start: %s", error)
