"""The work of a broker's ticks, and of its clean stop: one list, in its order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.context import Context
from wheelmq.broker.count_audit import LOOK_MS
from wheelmq.broker.index_pacing import IndexPacing
from wheelmq.broker.member_changes import CLIENTS_EXPIRE_MS
from wheelmq.broker.record_dispatch import DISPATCH
from wheelmq.broker.statistics import RATES_SAMPLE_MS
from wheelmq.broker.store_tasks import store_tasks
from wheelmq.broker.table_saves import FILTERS_PERSIST_MS
from wheelmq.broker.task_list import TickTask, TickTime, every
from wheelmq.broker.timer_progress import TIMER_RATES_SAMPLE_MS, TimerProgressLog
from wheelmq.observe.stats import SAMPLE_MS
from wheelmq.store.index import MessageIndex

log = logging.getLogger(__name__)

CHORES: Final = "chores"
TIMER_CHORES: Final = "timer chores"
"""Names that several tasks share in the log and in the metrics."""
ROUNDS_MS = 2
"""Maximum milliseconds between ticks while rounds run. A tick has 21 steps and does not follow each round."""


def broker_tasks(context: Context) -> list[TickTask]:
    """Return all tasks of a broker, in their order."""
    return [*_periodic_tasks(context), *_tick_tasks(context)]


def _periodic_tasks(context: Context) -> list[TickTask]:
    """Return the work that ticks do at intervals. An interval of 0 turns it off."""
    settings, clock, background = context.settings, context.clock, context.workers.background
    audit_ms = LOOK_MS if settings.timer.check_metrics_enable else 0
    engine = context.store, context.timer, context.block_scheduler, context.expiry
    found: list[tuple[int, Callable[[], object]]] = [
        (settings.consumers.offsets_persist_ms, context.table_saves.save_offsets),
        (FILTERS_PERSIST_MS, context.table_saves.save_filters),
        (CLIENTS_EXPIRE_MS, lambda: context.locks.drop_lapsed(clock.monotonic_ms())),
        (CLIENTS_EXPIRE_MS, lambda: context.member_changes.drop_silent(clock.monotonic_ms())),
        *store_tasks(*engine, context.health, context.workers, settings),
        (settings.expiry.interval_ms, context.admission.check_disk),
        (SAMPLE_MS, context.stats.sample),
        (RATES_SAMPLE_MS, context.stats.sample_rates),
        (TIMER_RATES_SAMPLE_MS, context.timer_rates.sample),
        (audit_ms, context.count_audit.check_clock),
        (settings.timer.flush_interval_ms, lambda: run_in_background(context.timer_metrics.save_job(), background)),
        (settings.timer.progress_log_interval_ms, TimerProgressLog(context.timer, context.releaser).write),
        (settings.transactions.metrics_interval_ms, context.transactions.save_counts),
    ]
    return [every(CHORES, interval_ms, function, clock) for interval_ms, function in found if interval_ms > 0]


def _tick_tasks(context: Context) -> list[TickTask]:
    """Return the work of each tick in its order, and of a clean stop in its order."""
    run, pending, armed = context.health.run_or_reject, context.timer.pending, context.timer.pending.armed
    release_s, warm = context.settings.requests.release_slice_ms / 1000, context.prefetcher
    return [
        TickTask(
            CHORES, lambda at: context.table_saves.poll(at.monotonic_ms), lambda at: context.table_saves.next_ms()
        ),
        TickTask(CHORES, lambda at: context.new_queues.tick(), lambda at: context.new_queues.next_ms()),
        TickTask(CHORES, lambda at: context.health.poll(at.monotonic_ms)),
        TickTask(
            "arm near timers",
            lambda at: pending.arm_near(at.wall_ms),
            lambda at: at.after_wall_ms(pending.next_near_ms()),
        ),
        TickTask(
            "blocks",
            lambda at: context.block_scheduler.tick(at.wall_ms),
            lambda at: at.after_wall_ms(context.block_scheduler.next_ms()),
        ),
        TickTask(TIMER_CHORES, lambda at: context.timer_log_preallocator.poll()),
        TickTask(TIMER_CHORES, lambda at: context.block_prefetcher.poll()),
        *([] if warm is None else [TickTask(TIMER_CHORES, lambda at: warm.poll(at.wall_ms))]),
        TickTask(
            TIMER_CHORES, lambda at: context.timer_stops.poll(at.monotonic_ms), lambda at: context.timer_stops.next_ms()
        ),
        TickTask(
            "transaction checks",
            lambda at: run(lambda: context.transaction_checks.tick(at.monotonic_ms)),
            lambda at: context.transaction_checks.next_ms(),
        ),
        TickTask(
            "transactions",
            lambda at: run(lambda: context.transactions.tick(at.monotonic_ms)),
            lambda at: context.transactions.next_ms(),
            close=lambda: run(context.transactions.say_all),
            closes_after_failure=True,
        ),
        TickTask(
            "take due timers",
            lambda at: context.releaser.take_due(at.wall_ms),
            lambda at: at.after_wall_ms(armed.next_fire_ms()),
        ),
        TickTask(
            "release",
            lambda at: run(lambda: context.releaser.release(at.wall_ms, release_s, at.requests_s)),
            lambda at: at.monotonic_ms if context.releaser.has_more() else context.releaser.next_retry_ms(),
        ),
        TickTask(
            DISPATCH,
            lambda at: context.records.run(),
            lambda at: at.monotonic_ms if context.records.has_records else None,
            close=context.records.close,
            closes_after_failure=True,
        ),
        *_answer_tasks(context),
        *_file_tasks(context),
    ]


def _answer_tasks(context: Context) -> list[TickTask]:
    """Return the tasks that answer requests, or send them."""

    def held_next_ms(at: TickTime) -> int | None:
        return at.monotonic_ms if context.holds.has_more() else context.holds.next_deadline_ms()

    return [
        TickTask(
            "pipeline",
            lambda at: context.pipeline.tick(at.wall_ms, at.monotonic_ms),
            lambda at: context.pipeline.next_ms(at.monotonic_ms),
        ),
        TickTask(
            "slices",
            lambda at: context.slices.tick(),
            lambda at: at.monotonic_ms if context.slices.has_more() else None,
        ),
        TickTask("held requests", lambda at: context.holds.expire(at.monotonic_ms), held_next_ms),
        TickTask(
            "calls", lambda at: context.calls.expire(at.monotonic_ms), lambda at: context.calls.next_deadline_ms()
        ),
        TickTask("notify members", lambda at: context.member_changes.notify_members()),
        TickTask(
            "flush",
            lambda at: context.flush.tick(at.monotonic_ms, is_burst=context.releaser.is_burst_leaving()),
            lambda at: context.flush.next_ms(),
        ),
    ]


def _file_tasks(context: Context) -> list[TickTask]:
    """Return the tasks that write files no request waits for, and that end the files at a stop."""
    index, pacing = context.index, context.index_pacing
    return [
        TickTask("timer check", lambda at: context.count_audit.poll(), lambda at: context.count_audit.next_ms()),
        TickTask("transactions", close=context.transactions.close),
        TickTask(CHORES, close=context.table_saves.close, closes_after_failure=True),
        TickTask("pipeline", close=context.pipeline.close),
        TickTask(TIMER_CHORES, close=context.timer_metrics.close),
        *([] if index is None or pacing is None else [_index_task(index, pacing)]),
        TickTask("held queries", lambda at: context.holds.wake(index)),
        TickTask("snapshots", lambda at: context.snapshots.poll(at.monotonic_ms), close=context.snapshots.close),
        TickTask("blocks", close=context.block_scheduler.close),
        TickTask(
            "delay offsets", lambda at: context.delay_offsets.poll(at.monotonic_ms), close=context.delay_offsets.close
        ),
        TickTask("files ahead", lambda at: context.preallocator.poll(context.timer.pending.armed.bytes)),
        TickTask("store", close=context.store.close),
    ]


def _index_task(index: MessageIndex, pacing: IndexPacing) -> TickTask:
    return TickTask("message index", lambda at: pacing.poll(), lambda at: pacing.next_ms(), close=index.close)
