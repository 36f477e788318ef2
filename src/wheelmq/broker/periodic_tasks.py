"""Periodic tasks of the broker, which run in its ticks in addition to serving.

They save tables that change too often for a write per change, write checkpoints, and delete expired state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.background_jobs import log_failure, run_at_stop, run_in_background
from wheelmq.system.disk import StoreRemoved
from wheelmq.system.memory import FreedMemory
from wheelmq.system.single_flight import SingleFlight

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

log = logging.getLogger(__name__)

FILTERS_PERSIST_MS: Final = 10_000
"""As in Apache RocketMQ, which has no setting for it either."""
CLIENTS_EXPIRE_MS: Final = 10_000
LOCK_LOOK_MS: Final = 1000
CHECKPOINT_REST: Final = 9
"""Rest of the disk after a checkpoint, as a multiple of the time that the checkpoint took."""


class PeriodicTasks:
    """Tasks that run at intervals. Times are monotonic milliseconds."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._every: list[tuple[int, int, Callable[[], None]]] = []
        self._checkpoints = SingleFlight(broker.workers.background)
        self._checkpoint_from_ms = 0
        self._files = (broker.topics.file, broker.groups.file)
        settings, lane = broker.settings, broker.block_scheduler
        block_checkpoints = SingleFlight(broker.workers.background)
        self.every(
            settings.offsets_persist_ms,
            lambda: run_in_background(broker.consumer_offsets.save_job(), broker.workers.background),
        )
        self.every(
            FILTERS_PERSIST_MS, lambda: run_in_background(broker.consumer_filters.save_job(), broker.workers.background)
        )
        self.every(settings.checkpoint_ms, self._write_checkpoint)
        self.every(settings.checkpoint_ms, lambda: lane.write_checkpoints(block_checkpoints))
        self.every(CLIENTS_EXPIRE_MS, self._expire_clients)
        self.every(settings.clean_resource_interval_ms, self._expire_files)
        self.every(LOCK_LOOK_MS, self._check_lock)

    def every(self, interval_ms: int, chore: Callable[[], None]) -> None:
        """Run `chore` in a tick, every `interval_ms`."""
        self._every.append((self._broker.clock.monotonic_ms() + interval_ms, interval_ms, chore))

    def run_due(self, monotonic_ms: int) -> None:
        """Run the due chores, begin the due writes of tables, and serve sends that waited for new queues."""
        for i, (due_ms, interval_ms, chore) in enumerate(self._every):
            if due_ms <= monotonic_ms:
                self._every[i] = (monotonic_ms + interval_ms, interval_ms, chore)
                chore()
        for file in self._files:
            file.poll(monotonic_ms)
        self._broker.new_queues.tick()

    def waits_ms(self, monotonic_ms: int) -> list[int]:
        """Return the times until each chore, and each write of a table, is due."""
        waits = [due_ms - monotonic_ms for due_ms, _, _ in self._every] + [0] * (len(self._broker.new_queues) > 0)
        return waits + [due_ms - monotonic_ms for file in self._files if (due_ms := file.next_ms()) is not None]

    def save_tables(self) -> None:
        """Write all tables that have changed, for a clean stop."""
        for file in self._files:
            file.save_now()
        for table in (self._broker.consumer_offsets, self._broker.consumer_filters):
            run_at_stop(table.save_job())

    def _write_checkpoint(self) -> None:
        """Write a checkpoint, unless one is running or the disk rests after one.

        With thousands of queues, a checkpoint keeps the disk busy for seconds.
        """
        broker = self._broker
        began_ms = broker.clock.monotonic_ms()
        if self._checkpoints.is_running or began_ms < self._checkpoint_from_ms:
            return
        job = broker.store.checkpoint_job()
        if job is None:
            return

        def rest(result: object) -> None:
            now_ms = broker.clock.monotonic_ms()
            self._checkpoint_from_ms = now_ms + CHECKPOINT_REST * (now_ms - began_ms)
            log_failure(result)

        self._checkpoints.submit(job, done=rest, failed=rest)

    def _expire_clients(self) -> None:
        broker = self._broker
        broker.locks.drop_lapsed(broker.clock.monotonic_ms())
        connections, groups = broker.clients.expire(broker.clock.monotonic_ms() - broker.settings.client_expiry_ms)
        for connection in connections:
            connection.close()
        broker.member_changes.note_left(groups)

    def _expire_files(self) -> None:
        broker = self._broker
        broker.expiry.poll()
        broker.admission.check_disk()
        broker.health.run_or_reject(self._expire_blocks)
        run_in_background(broker.timer.drop_log(), broker.workers.background)

    def _expire_blocks(self) -> int:
        jobs = list(self._broker.block_scheduler.expire(self._broker.clock.now_ms()))
        for job, done in jobs:
            self._broker.workers.background.submit(job, done)
        return len(jobs)

    def _check_lock(self) -> None:
        """Fail the broker if its store was removed or replaced: it would lose everything that it stores."""
        broker = self._broker

        def done(result: object) -> None:
            if isinstance(result, StoreRemoved) and broker.health.failure is None:
                log.critical("%s", rejection_text(result))
                broker.health.fail(result)

        broker.workers.tables.submit(lambda: broker.disk.check_locked(broker.paths.root), done)
