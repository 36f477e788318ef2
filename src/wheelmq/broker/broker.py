"""The broker without its sockets.

The shell passes received bytes to `receive`, which serves each request as soon as its frame is complete. After each
round of reading, the shell calls `end_round`. It writes queue units, passes parked messages to the timer and wakes
held requests. Then the answers leave. The shell calls `tick` when `end_round` returns True, and whenever
`next_tick_ms` has passed. A tick releases due messages, begins a flush and runs all other due work. No handler waits
for anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Final

import numpy as np

from wheelmq.broker.admission.failed_puts import FailedPuts
from wheelmq.broker.admission.overload import OverloadGuard
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.admission.store_health import RETRY_MS, StoreHealth
from wheelmq.broker.background_jobs import run_in_background
from wheelmq.broker.calls import Calls
from wheelmq.broker.connection import Connection
from wheelmq.broker.count_audit import LOOK_MS, CountAudit
from wheelmq.broker.dispatch import Dispatch
from wheelmq.broker.fast_release import FastRelease
from wheelmq.broker.fast_send import SENDS, FastSend
from wheelmq.broker.flush import Flush
from wheelmq.broker.holds import Holds
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.index_pacing import IndexPacing
from wheelmq.broker.member_changes import CLIENTS_EXPIRE_MS, MemberChanges
from wheelmq.broker.new_queues import NewQueues
from wheelmq.broker.opening import open_engine
from wheelmq.broker.record_dispatch import DISPATCH, RecordDispatch
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.slices import Slices
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.state.consumer_filters import ConsumerFilters
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.groups import Groups
from wheelmq.broker.state.locks import QueueLocks
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.statistics import RATES_SAMPLE_MS, BrokerStats
from wheelmq.broker.steps import FAILED_STEP_MS, Steps
from wheelmq.broker.store_tasks import store_tasks
from wheelmq.broker.table_saves import FILTERS_PERSIST_MS, TableSaves
from wheelmq.broker.task_list import TaskList, TickTask, TickTime, every
from wheelmq.broker.timer_progress import TIMER_RATES_SAMPLE_MS, TimerProgressLog, TimerRates
from wheelmq.broker.timer_stops import TimerStops
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.broker.transactions.checks import TransactionChecks
from wheelmq.broker.transactions.recovered_ends import RecoveredEnds
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.broker.turns.opening import open_turns
from wheelmq.config.changes import Configuration, Origin
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.levels.offsets import DelayOffsets
from wheelmq.delay.park import ParkSettings
from wheelmq.delay.prefetch import BlockPrefetcher, Prefetcher
from wheelmq.delay.release import Releaser
from wheelmq.delay.snapshots import Snapshots
from wheelmq.delay.timer.log_preallocator import TimerLogPreallocator
from wheelmq.delay.timer.metrics import TimerMetricsTable
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels.warm import warm
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import frame
from wheelmq.observe.stats import SAMPLE_MS
from wheelmq.observe.ticks import Ticks
from wheelmq.store.expiry import Expiry
from wheelmq.store.index import MessageIndex
from wheelmq.store.preallocator import Preallocator
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk, StoreRemoved
from wheelmq.system.unique_ids import UniqueIds
from wheelmq.system.workers import Workers

log = logging.getLogger(__name__)

CHORES: Final = "chores"
TIMER_CHORES: Final = "timer chores"
"""Names that several tasks share in the log and in the metrics."""
ROUNDS_MS = 2
"""Maximum milliseconds between ticks while rounds run. A tick has 21 steps and does not follow each round."""


class Broker:
    """One broker: its components, and the steps of its rounds and ticks."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        disk: Disk,
        clock: Clock,
        workers: Workers,
        randomness: Random,
        origin: Origin | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        warm(log.warning)
        self.hooks = hooks or Hooks()
        self.settings, self.clock = settings, clock
        self.health = StoreHealth(clock)
        self.disk, self.workers, self.randomness = disk, workers, randomness
        self.park_settings = ParkSettings(settings.timer, settings.levels.levels_ms)
        self.configuration = Configuration(
            BROKER, settings, origin or Origin(), disk=disk, clock=clock, changed=self._settings_changed
        )
        self.engine, recovered_ends = open_engine(settings, disk=disk, clock=clock, workers=workers)
        self.store, self.timer, self.block_scheduler = self.engine.store, self.engine.timer, self.engine.block_scheduler
        self.searches, self.index = self.engine.searches, self.engine.index
        self.paths, self.host = self.store.paths, self.engine.host
        self._open_tables()
        self.unique_ids = UniqueIds(self.host.address, clock, disk.owner_id, randomness)
        self.snapshots = self._open_snapshots()
        self.delay_offsets = self._open_delay_offsets()
        self.preallocator = self._open_preallocator()
        self.expiry = self._open_expiry()
        self.flush = Flush(self.store, self.blocks, workers.flushing, workers.blocks, settings.flush, self.health)
        self.dispatch = Dispatch(self)
        self.holds, self.calls = Holds(clock), Calls()
        self.member_changes = MemberChanges(self.clients, self.consumer_filters, self.calls, settings.consumers)
        topic_arrays = TopicArrays(self.topics, self.store.queues, settings) if jit.available() else None
        fast_release = None if topic_arrays is None else FastRelease(self.store, self.blocks, topic_arrays)
        self.releaser = Releaser(self.store, self.timer, self.blocks, fast_release)
        self.index_pacing = None if self.index is None else IndexPacing(self.index, self.releaser, self.store)
        self.boot_ms = clock.now_ms()
        self.ticks, self.steps = Ticks(clock), Steps(clock.monotonic)
        self.pipeline = self._open_turns()
        self.overload = OverloadGuard(settings, self.health, clock, self.ticks)
        self.admission = Admission(settings, self.health, clock, self.ticks, disk, self.paths)
        self._received = 0
        self._served_s = 0.0
        """Seconds that the rounds since the last tick took."""
        self._has_served = False
        """Whether a round has ended since the last tick."""
        self._ticked_ms = self._tick_due_ms = 0
        self.shell_figures: Callable[[], dict[str, int]] = dict  # counters of the shell, by name; the shell sets it
        self.table_saves = TableSaves(
            self.topics, self.groups, self.consumer_offsets, self.consumer_filters, workers.background
        )
        self.stats = BrokerStats(self.store, self.topics, settings.broker.cluster)
        self.failed_puts = FailedPuts(settings, self.health, disk, self.paths, self.stats)
        self.fast_send = None if topic_arrays is None else self._open_fast_send(topic_arrays)
        """None when kernels are off: the plain code then serves every frame."""
        self.slices = Slices(self.clock, self.holds, lambda: self.settings.requests.response_timeout_ms)
        self.timer_metrics, self.timer_rates = TimerMetricsTable(self.timer), TimerRates(self.timer, self.releaser)
        self.count_audit = CountAudit(self.timer, self.blocks, self.timer_metrics, settings, workers.reading)
        self.prefetcher = Prefetcher(self.timer, workers.reading) if settings.timer.warm_enable else None
        self.block_prefetcher = BlockPrefetcher(self.block_scheduler, workers.reading)
        self.timer_log_preallocator = TimerLogPreallocator(
            self.timer.log,
            workers.background,
            workers.populating,
            clock,
            creates_files=settings.store.log_files_ahead > 0,
        )
        self.timer_stops = TimerStops(self.timer, settings)
        self.transactions = self._open_transactions(recovered_ends)
        self.transaction_checks = TransactionChecks(
            self.transactions, self.store, settings, self.clients, self.calls, self.admission.rejection
        )
        self.records = RecordDispatch(self.engine, self.stats, self.holds, self.health, self.steps)
        self.tasks = TaskList([*self._periodic_tasks(), *self._tick_tasks()], self.steps)

    def _periodic_tasks(self) -> list[TickTask]:
        """Return the work that ticks do at intervals. An interval of 0 turns it off."""
        settings, clock, background = self.settings, self.clock, self.workers.background
        audit_ms = LOOK_MS if settings.timer.check_metrics_enable else 0
        engine = self.store, self.timer, self.block_scheduler, self.expiry
        found: list[tuple[int, Callable[[], object]]] = [
            (settings.consumers.offsets_persist_ms, self.table_saves.save_offsets),
            (FILTERS_PERSIST_MS, self.table_saves.save_filters),
            (CLIENTS_EXPIRE_MS, lambda: self.locks.drop_lapsed(clock.monotonic_ms())),
            (CLIENTS_EXPIRE_MS, lambda: self.member_changes.drop_silent(clock.monotonic_ms())),
            *store_tasks(*engine, self.health, self.workers, settings),
            (settings.expiry.interval_ms, self.admission.check_disk),
            (SAMPLE_MS, self.stats.sample),
            (RATES_SAMPLE_MS, self.stats.sample_rates),
            (TIMER_RATES_SAMPLE_MS, self.timer_rates.sample),
            (audit_ms, self.count_audit.check_clock),
            (settings.timer.flush_interval_ms, lambda: run_in_background(self.timer_metrics.save_job(), background)),
            (settings.timer.progress_log_interval_ms, TimerProgressLog(self.timer, self.releaser).write),
            (settings.transactions.metrics_interval_ms, self.transactions.save_counts),
        ]
        return [every(CHORES, interval_ms, function, clock) for interval_ms, function in found if interval_ms > 0]

    def _tick_tasks(self) -> list[TickTask]:
        """Return the work of each tick in its order, and of a clean stop in its order."""
        run, pending, armed = self.health.run_or_reject, self.timer.pending, self.timer.pending.armed
        release_s, warm = self.settings.requests.release_slice_ms / 1000, self.prefetcher
        return [
            TickTask(CHORES, lambda at: self.table_saves.poll(at.monotonic_ms), lambda at: self.table_saves.next_ms()),
            TickTask(CHORES, lambda at: self.new_queues.tick(), lambda at: self.new_queues.next_ms()),
            TickTask(CHORES, lambda at: self.health.poll(at.monotonic_ms)),
            TickTask(
                "arm near timers",
                lambda at: pending.arm_near(at.wall_ms),
                lambda at: at.after_wall_ms(pending.next_near_ms()),
            ),
            TickTask(
                "blocks",
                lambda at: self.block_scheduler.tick(at.wall_ms),
                lambda at: at.after_wall_ms(self.block_scheduler.next_ms()),
            ),
            TickTask(TIMER_CHORES, lambda at: self.timer_log_preallocator.poll()),
            TickTask(TIMER_CHORES, lambda at: self.block_prefetcher.poll()),
            *([] if warm is None else [TickTask(TIMER_CHORES, lambda at: warm.poll(at.wall_ms))]),
            TickTask(
                TIMER_CHORES, lambda at: self.timer_stops.poll(at.monotonic_ms), lambda at: self.timer_stops.next_ms()
            ),
            TickTask(
                "transaction checks",
                lambda at: run(lambda: self.transaction_checks.tick(at.monotonic_ms)),
                lambda at: self.transaction_checks.next_ms(),
            ),
            TickTask(
                "transactions",
                lambda at: run(lambda: self.transactions.tick(at.monotonic_ms)),
                lambda at: self.transactions.next_ms(),
                close=lambda: run(self.transactions.say_all),
                closes_after_failure=True,
            ),
            TickTask(
                "take due timers",
                lambda at: self.releaser.take_due(at.wall_ms),
                lambda at: at.after_wall_ms(armed.next_fire_ms()),
            ),
            TickTask(
                "release",
                lambda at: run(lambda: self.releaser.release(at.wall_ms, release_s, at.requests_s)),
                lambda at: at.monotonic_ms if self.releaser.has_more() else self.releaser.next_retry_ms(),
            ),
            TickTask(
                DISPATCH,
                lambda at: self.records.run(),
                lambda at: at.monotonic_ms if self.records.has_records else None,
                close=self.records.close,
                closes_after_failure=True,
            ),
            *self._answer_tasks(),
            *self._file_tasks(),
        ]

    def _answer_tasks(self) -> list[TickTask]:
        """Return the tasks that answer requests, or send them."""

        def held_next_ms(at: TickTime) -> int | None:
            return at.monotonic_ms if self.holds.has_more() else self.holds.next_deadline_ms()

        return [
            TickTask(
                "pipeline",
                lambda at: self.pipeline.tick(at.wall_ms, at.monotonic_ms),
                lambda at: self.pipeline.next_ms(at.monotonic_ms),
            ),
            TickTask(
                "slices", lambda at: self.slices.tick(), lambda at: at.monotonic_ms if self.slices.has_more() else None
            ),
            TickTask("held requests", lambda at: self.holds.expire(at.monotonic_ms), held_next_ms),
            TickTask("calls", lambda at: self.calls.expire(at.monotonic_ms), lambda at: self.calls.next_deadline_ms()),
            TickTask("notify members", lambda at: self.member_changes.notify_members()),
            TickTask(
                "flush",
                lambda at: self.flush.tick(at.monotonic_ms, is_burst=self.releaser.is_burst_leaving()),
                lambda at: self.flush.next_ms(),
            ),
        ]

    def _file_tasks(self) -> list[TickTask]:
        """Return the tasks that write files no request waits for, and that end the files at a stop."""
        index, pacing = self.index, self.index_pacing
        return [
            TickTask("timer check", lambda at: self.count_audit.poll(), lambda at: self.count_audit.next_ms()),
            TickTask("transactions", close=self.transactions.close),
            TickTask(CHORES, close=self.table_saves.close, closes_after_failure=True),
            TickTask("pipeline", close=self.pipeline.close),
            TickTask(TIMER_CHORES, close=self.timer_metrics.close),
            *([] if index is None or pacing is None else [_index_task(index, pacing)]),
            TickTask("held queries", lambda at: self.holds.wake(index)),
            TickTask("snapshots", lambda at: self.snapshots.poll(at.monotonic_ms), close=self.snapshots.close),
            TickTask("blocks", close=self.block_scheduler.close),
            TickTask(
                "delay offsets", lambda at: self.delay_offsets.poll(at.monotonic_ms), close=self.delay_offsets.close
            ),
            TickTask("files ahead", lambda at: self.preallocator.poll(self.timer.pending.armed.bytes)),
            TickTask("store", close=self.store.close),
        ]

    def _open_tables(self) -> None:
        settings, disk, tables = self.settings, self.disk, self.workers.tables
        self.topics = Topics(disk, self.paths, self.clock, settings, tables)
        self.groups = Groups(disk, self.paths, self.clock, settings.consumers, tables)
        self.new_queues = NewQueues(self.store.queues)
        self.consumer_offsets = ConsumerOffsets(disk, self.paths, self.store.queues.end)
        self.consumer_filters = ConsumerFilters(disk, self.paths, self.clock, settings.consumers)
        self.clients = Clients()
        self.locks = QueueLocks(settings.consumers.lock_expiry_ms)

    def _open_fast_send(self, arrays: TopicArrays) -> FastSend:
        return FastSend(
            self.store,
            self.timer.congestion,
            arrays,
            self.settings,
            self.flush,
            admission=self.admission,
            overload=self.overload,
            hooks=self.hooks,
            put_times=self.stats.put_times,
        )

    def _open_snapshots(self) -> Snapshots:
        return Snapshots(
            self.store,
            self.timer,
            self.block_scheduler,
            self.index,
            self.workers.background,
            hides_nothing=lambda: not self.transactions.has_unsaid_ends,
        )

    def _open_delay_offsets(self) -> DelayOffsets:
        interval_ms = self.settings.levels.flush_interval_ms
        return DelayOffsets(self.store, self.timer.pending.levels.offsets, self.workers.background, interval_ms)

    def _open_preallocator(self) -> Preallocator:
        count, is_warm = self.settings.store.log_files_ahead, self.settings.store.log_files_warm
        return Preallocator(
            self.store.log, self.workers.background, self.workers.populating, self.clock, count, is_warm=is_warm
        )

    def _open_expiry(self) -> Expiry:
        def needed_from() -> LogPosition:
            return min(self.timer.needed_from(), self.block_scheduler.needed_from(), self.transactions.needed_from())

        return Expiry(self.store, self.index, self.settings.expiry, needed_from, self.workers.background)

    def _open_turns(self) -> TurnCoordinator:
        return open_turns(
            self.store,
            self.timer,
            self.block_scheduler,
            self.settings,
            workers=self.workers,
            randomness=self.randomness,
            health=self.health,
            holds=self.holds,
            steps=self.steps,
            want_flush=self.flush.want,
            has_burst=self.releaser.has_burst,
            earliest_in_hand_ms=self.releaser.earliest_in_hand_ms,
        )

    def _open_transactions(self, recovered_ends: RecoveredEnds) -> Transactions:
        return Transactions(
            self.store,
            self.topics,
            self.consumer_offsets,
            self.settings,
            recovered_ends,
            self.workers.background,
            is_snapshot_due=self.snapshots.is_due,
        )

    @property
    def blocks(self) -> Blocks:
        return self.block_scheduler.blocks

    # Called by the shell -------------------------------------------------------------------------------------------

    def receive(self, connection: Connection, buffer: memoryview, end: int) -> int:
        """Serve the complete frames in `buffer[:end]`. Returns the number of bytes served.

        Raises FrameError: close the connection then.
        """
        self.ticks.begin()
        at = 0
        try:
            while at < end and connection.is_open and not connection.must_wait:
                fast = self.fast_send if connection.sends else None
                if fast is not None:
                    at = fast.serve(connection, np.frombuffer(buffer, np.uint8), at, end)
                stop = frame.frame_end(buffer, at, end)
                if stop is None:
                    break
                command = frame.decode(buffer, at, stop)
                connection.sends = command.code in SENDS
                if connection.sends and fast is not self.fast_send:
                    continue  # the kernel has not seen it
                self.dispatch.take(connection, command)
                at = stop
        finally:
            self._received += at
        if at == end or not connection.is_full:
            connection.waiting_since = None
        elif connection.waiting_since is None:
            connection.waiting_since = self.clock.monotonic()
        return at

    def connection_lost(self, connection: Connection) -> None:
        """Remove a closed connection from all tables."""
        self.holds.drop(connection)
        self.calls.drop(connection)
        self.member_changes.note_left(self.clients.lose(connection))

    def end_round(self) -> bool:
        """Finish the round of reading. Returns whether a tick is due. Does nothing once the broker has failed."""
        if self.health.failure is not None:
            return False
        if self._received or self.records.has_records:
            self._finish_round()
        else:
            self.ticks.forget()  # only a part of a frame came: the sender causes its delay
        near_ms = self.timer.pending.next_near_ms()
        is_near = near_ms is not None and near_ms <= self.clock.now_ms()
        is_due = self.flush.is_asked_for() or self.clock.monotonic_ms() >= self._tick_due_ms
        return is_near or is_due or self.records.has_failed

    def _finish_round(self) -> None:
        self.ticks.begin()
        self.steps.begin()
        self.records.run()
        self._served_s += self.ticks.elapsed_s
        self._end(worked=True)
        self._has_served = True
        self._tick_due_ms = min(self._tick_due_ms, self._ticked_ms + ROUNDS_MS)

    def tick(self) -> None:
        """Run the tasks. Once the broker has failed, only answer the requests that wait for the disk."""
        if self.health.failure is not None:
            self.flush.cancel_waiting()
            return
        self.ticks.begin()
        self.steps.begin()
        requests_s = self._served_s + self.ticks.elapsed_s  # releases get as much time as requests had
        self._served_s = 0.0
        count = self.tasks.run(TickTime(self.clock.now_ms(), self.clock.monotonic_ms(), requests_s))
        self._end(worked=bool(count or self._received or self._has_served))
        self._has_served = False

    def _end(self, *, worked: bool) -> None:
        if self.records.has_failed and self.records.has_records:
            return  # messages of this round are not in their queues, so the round goes on
        self.ticks.end(worked=worked)
        self.overload.end_round()
        self._received = 0

    def next_tick_ms(self) -> int:
        """Return the milliseconds until the next tick is needed; 0 for at once."""
        if self.health.failure is not None:
            return RETRY_MS
        if not self._has_served:
            wait_ms = max(self._wait_ms(), FAILED_STEP_MS if self.steps.failed_now else 0)
            self._ticked_ms = self.clock.monotonic_ms()
            self._tick_due_ms = self._ticked_ms + wait_ms
            return wait_ms
        return max(0, self._tick_due_ms - self.clock.monotonic_ms())

    def _wait_ms(self) -> int:
        if self.health.rejection is not None and (self.releaser.has_more() or self.records.has_records):
            return RETRY_MS  # the store takes nothing now
        now = TickTime(self.clock.now_ms(), self.clock.monotonic_ms())
        next_ms = self.tasks.next_ms(now)
        assert next_ms is not None, "some tasks run at intervals"
        return max(0, next_ms - now.monotonic_ms)

    def close(self) -> None:
        """Stop cleanly. Call it when no more requests come and the workers are closed."""
        if isinstance(self.health.failure, StoreRemoved):
            return  # the files at this path are not the broker's
        self.tasks.close(has_failed=self.health.failure is not None)

    # Used by handlers ----------------------------------------------------------------------------------------------

    def _settings_changed(self, fields: frozenset[str]) -> None:
        """Update the parts that keep copies of settings. The other parts read a setting when they need it."""
        self.admission.check_disk()
        if self.fast_send is not None:
            self.fast_send.take_settings()
        if "auto_create_topic" in fields:
            self.topics.add_model()
        if fields & {"timer_stop_enqueue", "timer_stop_dequeue"}:
            self.timer_stops.take_settings()
        if fields & {"auto_create_topic", "broker_permission"}:
            self.topics.renew_version()


def _index_task(index: MessageIndex, pacing: IndexPacing) -> TickTask:
    return TickTask("message index", lambda at: pacing.poll(), lambda at: pacing.next_ms(), close=index.close)
