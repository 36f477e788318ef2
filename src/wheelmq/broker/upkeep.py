"""The parts that only ticks use: they keep the files of the store, and what is known about timers, in order."""

from __future__ import annotations

from dataclasses import dataclass

from wheelmq.broker.count_audit import CountAudit
from wheelmq.broker.engine import Engine
from wheelmq.broker.index_pacing import IndexPacing
from wheelmq.broker.replication.apache_checkpoints import ApacheCheckpoints
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.timer_progress import TimerRates
from wheelmq.broker.timer_stops import TimerStops
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.delay.levels.offsets import DelayOffsets
from wheelmq.delay.prefetch import BlockPrefetcher, Prefetcher
from wheelmq.delay.release import Releaser
from wheelmq.delay.snapshots import Snapshots
from wheelmq.delay.timer.log_preallocator import TimerLogPreallocator
from wheelmq.delay.timer.metrics import TimerMetricsTable
from wheelmq.formats.units import LogPosition
from wheelmq.store.expiry import Expiry
from wheelmq.store.preallocator import Preallocator
from wheelmq.system.workers import Workers


@dataclass(frozen=True)
class FileUpkeep:
    """The parts that create, save and remove files of the store. No request waits for them."""

    snapshots: Snapshots
    delay_offsets: DelayOffsets
    preallocator: Preallocator
    expiry: Expiry
    apache_checkpoints: ApacheCheckpoints
    index_pacing: IndexPacing | None
    """None if `message_index_enable` is off."""

    @classmethod
    def open(
        cls, engine: Engine, transactions: Transactions, releaser: Releaser, settings: BrokerSettings, workers: Workers
    ) -> FileUpkeep:
        """Compose the parts. Returns them before their first tick."""
        store, timer, index, background = engine.store, engine.timer, engine.index, workers.background
        checkpoints = ApacheCheckpoints(store.disk, store.paths, store.log, background)

        def needed_from() -> LogPosition:
            from_delays = engine.generations.needed_from() if engine.knows_pending else checkpoints.log_start
            return min(from_delays, transactions.needed_from())

        return cls(
            Snapshots(
                store,
                timer,
                engine.blocks,
                engine.block_parts.role,
                engine.block_parts.in_blocks,
                index,
                background,
                may_take=lambda: not transactions.has_unwritten_ends,
            ),
            DelayOffsets(store, timer.pending.levels.offsets, background, settings.levels.flush_interval_ms),
            Preallocator(
                store.log,
                background,
                workers.populating,
                store.clock,
                settings.store.log_files_ahead,
                is_warm=settings.store.log_files_warm,
            ),
            Expiry(store, index, settings.expiry, needed_from, background),
            checkpoints,
            None if index is None else IndexPacing(index, releaser, store),
        )


@dataclass(frozen=True)
class TimerUpkeep:
    """The parts that count timers, check the counts, and read files and records ahead of their use."""

    metrics: TimerMetricsTable
    rates: TimerRates
    count_audit: CountAudit
    prefetcher: Prefetcher | None
    """None if `timerWarmEnable` is off."""
    block_prefetcher: BlockPrefetcher
    log_preallocator: TimerLogPreallocator
    stops: TimerStops

    @classmethod
    def open(cls, engine: Engine, releaser: Releaser, settings: BrokerSettings, workers: Workers) -> TimerUpkeep:
        """Compose the parts. Returns them before their first tick."""
        timer, reading = engine.timer, workers.reading
        metrics = TimerMetricsTable(timer)
        return cls(
            metrics,
            TimerRates(timer, releaser),
            CountAudit(timer, engine.generations, metrics, settings, reading),
            Prefetcher(timer, reading) if settings.timer.warm_enable else None,
            BlockPrefetcher(engine.block_parts.walked, reading),
            TimerLogPreallocator(
                timer.log,
                workers.background,
                workers.populating,
                engine.store.clock,
                creates_files=settings.store.log_files_ahead > 0,
            ),
            TimerStops(timer, settings),
        )
