"""The work of a broker's ticks, and of its clean stop: one list, in its order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.batches.batches import EXPIRY_MS
from wheelmq.broker.count_audit import LOOK_MS
from wheelmq.broker.index_pacing import IndexPacing
from wheelmq.broker.member_changes import CLIENTS_EXPIRE_MS
from wheelmq.broker.parts import Parts
from wheelmq.broker.record_dispatch import DISPATCH
from wheelmq.broker.statistics import RATES_SAMPLE_MS
from wheelmq.broker.store_tasks import store_tasks
from wheelmq.broker.table_saves import FILTERS_PERSIST_MS
from wheelmq.broker.task_list import TickTask, TickTime, every, resting
from wheelmq.broker.timer_progress import TIMER_RATES_SAMPLE_MS, TimerProgressLog
from wheelmq.observe.stats import SAMPLE_MS
from wheelmq.store.index import MessageIndex

log = logging.getLogger(__name__)

CHORES: Final = "chores"
TIMER_CHORES: Final = "timer chores"
"""Names that several tasks share in the log and in the metrics."""
REST_MS: Final = 10
"""Time between two runs of a task that no client waits for. Under load, a tick follows nearly each request."""


def broker_tasks(parts: Parts) -> list[TickTask]:
    return [*_periodic_tasks(parts), *_tick_tasks(parts)]


def _pending_tasks(parts: Parts, *tasks: TickTask) -> tuple[TickTask, ...]:
    """Return `tasks`, which work on pending messages or write what is known about them.

    A slave of Apache RocketMQ has none of them: it does not know its pending messages.
    """
    return tasks if parts.engine.knows_pending else ()


def _periodic_tasks(parts: Parts) -> list[TickTask]:
    """Return the work that ticks do at intervals. An interval of 0 turns it off."""
    settings, clock, background = parts.settings, parts.clock, parts.workers.background
    upkeep = parts.timer_upkeep
    block_parts = parts.block_parts
    files = parts.store, parts.timer, block_parts.checkpoints, block_parts.expiry, parts.file_upkeep.expiry
    found: list[tuple[int, Callable[[], object]]] = [
        (settings.consumers.offsets_persist_ms, parts.table_saves.save_offsets),
        (FILTERS_PERSIST_MS, parts.table_saves.save_filters),
        (CLIENTS_EXPIRE_MS, lambda: parts.locks.drop_lapsed(clock.monotonic_ms())),
        (CLIENTS_EXPIRE_MS, lambda: parts.member_changes.drop_silent(clock.monotonic_ms())),
        *store_tasks(*files, parts.health, parts.workers, settings, knows_pending=parts.engine.knows_pending),
        (settings.expiry.interval_ms, parts.admission.check_disk),
        (EXPIRY_MS, parts.batches.expire),
        (SAMPLE_MS, parts.stats.sample),
        (RATES_SAMPLE_MS, parts.stats.sample_rates),
        (TIMER_RATES_SAMPLE_MS, upkeep.rates.sample),
        (settings.transactions.metrics_interval_ms, parts.transactions.save_counts),
    ]
    if parts.engine.knows_pending:
        audit_ms = LOOK_MS if settings.timer.check_metrics_enable else 0
        found += [
            (audit_ms, upkeep.count_audit.check_clock),
            (settings.timer.flush_interval_ms, lambda: run_in_background(upkeep.metrics.save_job(), background)),
            (settings.timer.progress_log_interval_ms, TimerProgressLog(parts.timer, parts.releaser).write),
        ]
    return [every(CHORES, interval_ms, function, clock) for interval_ms, function in found if interval_ms > 0]


def _tick_tasks(parts: Parts) -> list[TickTask]:
    """Return the work of each tick in its order, and of a clean stop in its order."""
    run, pending, rest = parts.health.run_or_reject, parts.timer.pending, _rest_of(parts)
    stops, snapshots = parts.timer_upkeep.stops, parts.file_upkeep.snapshots
    return [
        TickTask(CHORES, lambda at: parts.table_saves.poll(at.monotonic_ms), lambda at: parts.table_saves.next_ms()),
        TickTask(CHORES, lambda at: parts.new_queues.tick(), lambda at: parts.new_queues.next_ms()),
        rest(TickTask(CHORES, lambda at: parts.health.poll(at.monotonic_ms))),
        *_pending_tasks(
            parts,
            TickTask(
                "arm near timers",
                lambda at: pending.arm_near(at.wall_ms),
                lambda at: at.after_wall_ms(pending.next_near_ms()),
            ),
            TickTask(
                "blocks",
                lambda at: parts.block_parts.walk.tick(at.wall_ms),
                lambda at: at.after_wall_ms(parts.block_parts.walk.next_ms()),
            ),
            *map(rest, _prefetch_tasks(parts)),
            rest(
                TickTask(
                    TIMER_CHORES,
                    lambda at: stops.poll(at.monotonic_ms),
                    lambda at: stops.next_ms(),
                )
            ),
        ),
        TickTask(
            "transaction checks",
            lambda at: run(lambda: parts.transaction_checks.tick(at.monotonic_ms)),
            lambda at: parts.transaction_checks.next_ms(),
        ),
        TickTask(
            "transactions",
            lambda at: run(lambda: parts.transactions.tick(at.monotonic_ms, snapshots.is_due)),
            lambda at: parts.transactions.next_ms(),
            close=lambda: run(parts.transactions.write_ends),
            closes_after_failure=True,
        ),
        _batch_task(parts),
        *_replica_tasks(parts),
        *_release_tasks(parts),
        TickTask(
            DISPATCH,
            lambda at: parts.records.run(),
            lambda at: at.monotonic_ms if parts.records.has_records else parts.records.next_ms(),
            close=parts.records.close,
            closes_after_failure=True,
        ),
        *_answer_tasks(parts),
        *_file_tasks(parts),
    ]


def _release_tasks(parts: Parts) -> list[TickTask]:
    """Return the tasks that release due messages, as long as the broker is the master."""
    role, journal, releaser = parts.role, parts.store.journal, parts.releaser
    release_s = parts.settings.requests.release_slice_ms / 1000

    def takes() -> bool:
        return role.is_master and not journal.is_full

    def release(at: TickTime) -> None:
        if role.is_master:
            parts.health.run_or_reject(lambda: releaser.release(at.wall_ms, release_s, at.requests_s))

    def next_release_ms(at: TickTime) -> int | None:
        if not role.is_master:
            return None
        return at.monotonic_ms if releaser.has_more() else releaser.next_retry_ms()

    return [
        TickTask(
            "take due timers",
            lambda at: releaser.take_due(at.wall_ms) if takes() else None,
            lambda at: at.after_wall_ms(releaser.next_take_ms()) if takes() else None,
        ),
        TickTask("release", release, next_release_ms),
    ]


def _batch_task(parts: Parts) -> TickTask:
    return TickTask(
        "batches",
        lambda at: parts.health.run_or_reject(lambda: parts.batches.tick(at.monotonic_ms)),
        lambda at: parts.batches.next_ms(at.monotonic_ms),
    )


def _replica_tasks(parts: Parts) -> list[TickTask]:
    """Return the tasks of a slave that apply received bytes of its master, and drop the timers that they release."""
    replica_log, replication = parts.replica_log, parts.replication
    role, awaited = parts.role, parts.releaser.awaited
    return [
        TickTask(
            "follow the master",
            lambda at: replica_log.take() if replica_log.has_more() else 0,
            lambda at: at.monotonic_ms if replica_log.has_more() else None,
        ),
        TickTask(
            "copy blocks",
            lambda at: replication.copy_blocks(),
            lambda at: at.monotonic_ms if replication.copies_blocks else None,
        ),
        _rest_of(parts)(
            TickTask(
                "drop released timers",
                lambda at: None if role.is_master else awaited.check(at.wall_ms),
                lambda at: None if role.is_master else at.after_wall_ms(awaited.next_ms(at.wall_ms)),
            )
        ),
    ]


def _prefetch_tasks(parts: Parts) -> list[TickTask]:
    """Return the tasks that bring files and records of timers into memory ahead of their use."""
    upkeep, prefetcher = parts.timer_upkeep, parts.timer_upkeep.prefetcher
    return [
        TickTask(TIMER_CHORES, lambda at: upkeep.log_preallocator.poll()),
        TickTask(TIMER_CHORES, lambda at: upkeep.block_prefetcher.poll()),
        *([] if prefetcher is None else [TickTask(TIMER_CHORES, lambda at: prefetcher.poll(at.wall_ms))]),
    ]


def _answer_tasks(parts: Parts) -> list[TickTask]:
    rest = _rest_of(parts)

    def held_next_ms(at: TickTime) -> int | None:
        return at.monotonic_ms if parts.holds.has_more() else parts.holds.next_deadline_ms()

    return [
        *_pending_tasks(
            parts,
            rest(
                TickTask(
                    "pipeline",
                    lambda at: parts.pipeline.tick(at.wall_ms, at.monotonic_ms),
                    lambda at: parts.pipeline.next_ms(at.monotonic_ms),
                )
            ),
        ),
        TickTask(
            "slices",
            lambda at: parts.slices.tick(),
            lambda at: at.monotonic_ms if parts.slices.has_more() else None,
        ),
        TickTask("held requests", lambda at: parts.holds.expire(at.monotonic_ms), held_next_ms),
        rest(
            TickTask("calls", lambda at: parts.calls.expire(at.monotonic_ms), lambda at: parts.calls.next_deadline_ms())
        ),
        TickTask("notify members", lambda at: parts.member_changes.notify_members()),
        TickTask(
            "replicas",
            lambda at: parts.replicas.tick(at.monotonic_ms) if parts.replicas.links else None,
            lambda at: parts.replicas.next_ms(at.monotonic_ms),
        ),
        TickTask("replica acks", lambda at: parts.acks.poll(at.monotonic_ms), lambda at: parts.acks.next_ms()),
        *_block_replica_tasks(parts),
        TickTask(
            "flush",
            lambda at: parts.flush.tick(at.monotonic_ms, is_burst=parts.releaser.is_burst_leaving()),
            lambda at: parts.flush.next_ms(),
        ),
    ]


def _block_replica_tasks(parts: Parts) -> list[TickTask]:
    source, acks = parts.block_source, parts.block_acks
    return [
        TickTask(
            "replicas of blocks", lambda at: source.tick(at.monotonic_ms), lambda at: source.next_ms(at.monotonic_ms)
        ),
        TickTask("replica acks of blocks", lambda at: acks.poll(at.monotonic_ms), lambda at: acks.next_ms()),
    ]


def _file_tasks(parts: Parts) -> list[TickTask]:
    """Return the tasks that write files no request waits for, and that end the files at a stop."""
    upkeep, metrics, audit = parts.file_upkeep, parts.timer_upkeep.metrics, parts.timer_upkeep.count_audit
    index, pacing, rest = parts.index, upkeep.index_pacing, _rest_of(parts)
    snapshots, offsets = upkeep.snapshots, upkeep.delay_offsets
    return [
        *_pending_tasks(parts, TickTask("timer check", lambda at: audit.poll(), lambda at: audit.next_ms())),
        TickTask("transactions", close=parts.transactions.close),
        TickTask(CHORES, close=parts.table_saves.close, closes_after_failure=True),
        *_pending_tasks(
            parts,
            TickTask("pipeline", close=parts.pipeline.close),
            TickTask(TIMER_CHORES, close=metrics.close),
        ),
        *([] if index is None or pacing is None else [_index_task(index, pacing)]),
        TickTask("held queries", lambda at: parts.holds.wake(index)),
        *_pending_tasks(
            parts,
            rest(TickTask("snapshots", lambda at: snapshots.poll(at.monotonic_ms), close=snapshots.close)),
            TickTask("blocks", close=parts.block_parts.checkpoints.close),
            rest(TickTask("delay offsets", lambda at: offsets.poll(at.monotonic_ms), close=offsets.close)),
        ),
        rest(TickTask("checkpoint of Apache", lambda at: upkeep.apache_checkpoints.poll())),
        rest(TickTask("files ahead", lambda at: upkeep.preallocator.poll(parts.timer.pending.armed.bytes))),
        TickTask("store", close=parts.store.close),
    ]


def _index_task(index: MessageIndex, pacing: IndexPacing) -> TickTask:
    return TickTask("message index", lambda at: pacing.poll(), lambda at: pacing.next_ms(), close=index.close)


def _rest_of(parts: Parts) -> Callable[[TickTask], TickTask]:
    return partial(resting, rest_ms=REST_MS, clock=parts.clock)
