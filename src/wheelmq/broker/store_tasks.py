"""Periodic work on the files of the store: checkpoints, the check of its lock, and the removal of expired files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from wheelmq.broker.admission.error_text import rejection_text
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.background_jobs import log_failure, run_in_background
from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.blocks.checkpoints import BlockCheckpoints
from wheelmq.delay.blocks.expiry import BlockExpiry
from wheelmq.delay.timer.timer import Timer
from wheelmq.store.expiry import Expiry
from wheelmq.store.store import Store
from wheelmq.system.clock import Clock
from wheelmq.system.disk import StoreRemoved
from wheelmq.system.single_flight import SingleFlight
from wheelmq.system.workers import Worker, Workers

log = logging.getLogger(__name__)

LOCK_CHECK_MS: Final = 1000
CHECKPOINT_REST: Final = 9
"""Rest of the disk after a checkpoint, as a multiple of the time that the checkpoint took."""


def store_tasks(
    store: Store,
    timer: Timer,
    block_checkpoints: BlockCheckpoints,
    block_expiry: BlockExpiry,
    expiry: Expiry,
    health: StoreHealth,
    workers: Workers,
    settings: BrokerSettings,
    *,
    knows_pending: bool,
) -> list[tuple[int, Callable[[], object]]]:
    """Return the tasks, each with its interval in milliseconds."""
    background, clean_ms = workers.background, settings.expiry.interval_ms
    found: list[tuple[int, Callable[[], object]]] = [
        (settings.store.checkpoint_ms, Checkpoints(store, background).begin),
        (clean_ms, expiry.poll),
        (LOCK_CHECK_MS, StoreLockCheck(store, health, workers.tables).begin),
    ]
    if knows_pending:
        found += [
            (settings.store.checkpoint_ms, partial(block_checkpoints.write, SingleFlight(background))),
            (clean_ms, lambda: expire_blocks(block_expiry, store.clock, health, background)),
            (clean_ms, lambda: run_in_background(timer.drop_log(), background)),
        ]
    return found


class Checkpoints:
    """Writes checkpoints of the store, one at a time. The disk rests after each, which may take seconds."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._flight = SingleFlight(worker)
        self._from_ms = 0
        """Monotonic time from which the next checkpoint may begin."""

    def begin(self) -> None:
        """Begin a checkpoint, unless one is running, the disk rests, or the last one has everything."""
        clock = self._store.clock
        began_ms = clock.monotonic_ms()
        if self._flight.is_running or began_ms < self._from_ms:
            return
        job = self._store.checkpoint_job()
        if job is None:
            return

        def rest(result: object) -> None:
            now_ms = clock.monotonic_ms()
            self._from_ms = now_ms + CHECKPOINT_REST * (now_ms - began_ms)
            log_failure(result)

        self._flight.submit(job, done=rest, failed=rest)


class StoreLockCheck:
    """Fails the broker if its store was removed or replaced: it would lose everything that it stores."""

    def __init__(self, store: Store, health: StoreHealth, worker: Worker) -> None:
        self._disk = store.disk
        self._root = store.paths.root
        self._health = health
        self._worker = worker

    def begin(self) -> None:
        self._worker.submit(lambda: self._disk.check_locked(self._root), self._done)

    def _done(self, result: object) -> None:
        if isinstance(result, StoreRemoved) and self._health.failure is None:
            log.critical("%s", rejection_text(result))
            self._health.fail(result)


def expire_blocks(block_expiry: BlockExpiry, clock: Clock, health: StoreHealth, worker: Worker) -> None:
    def expire() -> int:
        jobs = list(block_expiry.jobs(clock.now_ms()))
        for job, done in jobs:
            worker.submit(job, done)
        return len(jobs)

    health.run_or_reject(expire)
