"""The parts of a broker, composed. Each part takes what it uses, and handlers take the context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from wheelmq.auth.audit import AuditSink
from wheelmq.auth.inner_users import add_inner_user, add_pipeline_user, pipeline_key
from wheelmq.broker.access import AccessControl
from wheelmq.broker.admission.failed_puts import FailedPuts
from wheelmq.broker.admission.overload import OverloadGuard
from wheelmq.broker.admission.sends import Admission
from wheelmq.broker.admission.store_health import StoreHealth
from wheelmq.broker.batches.batches import Batches
from wheelmq.broker.batches.layouts import BatchLayouts
from wheelmq.broker.batches.spool import Spool
from wheelmq.broker.calls import Calls
from wheelmq.broker.context import Context
from wheelmq.broker.durability import Durability
from wheelmq.broker.fast_batch import FastBatch
from wheelmq.broker.fast_release import FastRelease
from wheelmq.broker.fast_send import FastSend
from wheelmq.broker.flush import Flush
from wheelmq.broker.holds import Holds
from wheelmq.broker.hooks import Hooks
from wheelmq.broker.kernel_use import KernelUse
from wheelmq.broker.member_changes import MemberChanges
from wheelmq.broker.message_topics import MessageTopics
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.new_queues import NewQueues
from wheelmq.broker.opening import open_engine
from wheelmq.broker.puts import Puts
from wheelmq.broker.record_dispatch import RecordDispatch
from wheelmq.broker.replication.acks import ReplicaAcks
from wheelmq.broker.replication.apache_log import end_apache_log, has_apache_log
from wheelmq.broker.replication.block_acks import BlockAcks
from wheelmq.broker.replication.block_source import BlockSource
from wheelmq.broker.replication.controller.elections import Elections
from wheelmq.broker.replication.controller.sync_state_changes import SyncStateChanges
from wheelmq.broker.replication.controller.sync_state_set import SyncStateSet
from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.replication.promotion import Promotion
from wheelmq.broker.replication.replica_log import ReplicaLog
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.replication import Replication
from wheelmq.broker.replication.role import Role
from wheelmq.broker.replication.tickets import ReplicaTickets
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings
from wheelmq.broker.slices import Slices
from wheelmq.broker.state.access_tables import AccessTables
from wheelmq.broker.state.clients import Clients
from wheelmq.broker.state.consumer_filters import ConsumerFilters
from wheelmq.broker.state.consumer_offsets import ConsumerOffsets
from wheelmq.broker.state.groups import Groups
from wheelmq.broker.state.locks import QueueLocks
from wheelmq.broker.state.topics import Topics
from wheelmq.broker.statistics import BrokerStats
from wheelmq.broker.steps import Steps
from wheelmq.broker.table_saves import TableSaves
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.broker.transactions.checks import TransactionChecks
from wheelmq.broker.transactions.recovered_ends import RecoveredEnds
from wheelmq.broker.transactions.transactions import Transactions
from wheelmq.broker.turns.coordinator import TurnCoordinator
from wheelmq.broker.turns.opening import open_turns
from wheelmq.broker.upkeep import FileUpkeep, TimerUpkeep
from wheelmq.config.changes import Configuration, Origin
from wheelmq.delay.blocks.blocks import Blocks
from wheelmq.delay.blocks.copies import BlockCopies
from wheelmq.delay.release import Releaser
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.kernels import jit
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.observe.ticks import Ticks
from wheelmq.system.clock import Clock
from wheelmq.system.disk import Disk
from wheelmq.system.unique_ids import UniqueIds
from wheelmq.system.workers import Workers


class ProcessContext(NamedTuple):
    """Objects that a broker gets from the process that starts it."""

    access_key: AccessKey | None = None
    """The access key of the processes of one `wheelmq up`."""
    audit_sink: AuditSink | None = None
    kernel_use: KernelUse | None = None
    """Whether the process runs kernels. None if the process does not load them in the background."""


class Parts:
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
        process: ProcessContext | None = None,
        shell_figures: Callable[[], dict[str, int]] = dict,
    ) -> None:
        """Open the store and compose the parts. `shell_figures` returns the counters of the sockets, by name."""
        self.hooks, process = hooks or Hooks(), process or ProcessContext()
        self.settings, self.clock = settings, clock
        self.health = StoreHealth(clock)
        self.disk, self.workers, self.randomness = disk, workers, randomness
        self.paths = StorePaths(settings.store.path)
        self.role = Role(settings, disk, self.paths)
        recovered_ends = self._open_engine()
        self._open_tables()
        self.sign = self._own_sign(process)
        self.request_counts: Counter[str] = Counter()
        self.access = self._open_access(process)
        self.unique_ids = UniqueIds(self.host.address, clock, disk.owner_id, randomness)
        self.transactions = Transactions(
            self.store, self.topics, self.consumer_offsets, settings, self.role, recovered_ends, workers.background
        )
        self.replica_log = ReplicaLog(self.engine, self.transactions)
        self.flush = Flush(self.store, self.blocks, workers.flushing, workers.blocks, settings.flush, self.health)
        self.holds, self.calls = Holds(clock), Calls()
        self._open_replication()
        self.member_changes = MemberChanges(self.clients, self.consumer_filters, self.calls, settings.consumers)
        self.releaser = Releaser(self.store, self.timer, self.generations)
        self.file_upkeep = FileUpkeep.open(self.engine, self.transactions, self.releaser, settings, workers)
        self.timer_upkeep = TimerUpkeep.open(self.engine, self.releaser, settings, workers)
        self.boot_ms = clock.now_ms()
        self._kernel_use = process.kernel_use or KernelUse()
        self.ticks, self.steps = Ticks(clock), Steps(clock.monotonic)
        self.pipeline = self._open_turns()
        self.overload = OverloadGuard(settings, self.role, self.health, clock, self.ticks)
        self.admission = Admission(
            settings, self.role, self.health, clock, self.ticks, disk, self.paths, self.store.journal, self.in_sync
        )
        self.table_saves = self._open_table_saves()
        self.stats = BrokerStats(self.store, self.topics, settings.broker.cluster)
        self.failed_puts = FailedPuts(settings, self.health, disk, self.paths, self.stats)
        self.fast_send: FastSend | None = None
        """None while the kernels are not in use: the plain code then serves every frame."""
        if jit.available():
            self.use_kernels()
        self.slices = Slices(self.clock, self.holds, lambda: self.settings.requests.response_timeout_ms)
        self.transaction_checks = self._open_transaction_checks()
        self.records = RecordDispatch(self.engine, self.replicas, self.stats, self.holds, self.health, self.steps)
        self.replication = self._compose_replication()
        self.elections = self._open_elections()
        self.puts = self._open_puts()
        self.context = self._open_context()
        self.batches = self._open_batches()
        self.metric_sources = self._open_metric_sources(shell_figures)
        if not self.role.needed_acks:
            self.store.abort_file.accept_log()  # no other broker must have had more
        self.configuration = Configuration(
            BROKER, settings, origin or Origin(), disk=disk, clock=clock, changed=self._settings_changed
        )

    def _open_engine(self) -> RecoveredEnds:
        """Recover the store. A master knows its pending messages, and writes the log itself from now on."""
        is_master, disk = self.role.is_master, self.disk
        if self.role.is_elected and has_apache_log(disk, self.paths):
            raise OSError(
                f"{self.paths.root} has the log of a master of Apache RocketMQ. A controller cannot elect this broker: "
                "start it with an empty store, or promote it before controller_mode is set"
            )
        self.engine, recovered_ends = open_engine(
            self.settings,
            disk=disk,
            clock=self.clock,
            workers=self.workers,
            has_apache_master=not is_master and has_apache_log(disk, self.paths),
            hides_new=self.role.needed_acks > 0 or self.role.is_elected,
        )
        self.store, self.timer, self.block_parts = self.engine.store, self.engine.timer, self.engine.block_parts
        self.generations, self.searches, self.index = self.engine.generations, self.engine.searches, self.engine.index
        self.host = self.engine.host
        if is_master:
            end_apache_log(disk, self.paths)
        return recovered_ends

    def _open_puts(self) -> Puts:
        return Puts(
            self.engine,
            self.transactions,
            self.durability,
            self.settings,
            admission=self.admission,
            health=self.health,
            put_times=self.stats.put_times,
            clock=self.clock,
            randomness=self.randomness,
        )

    def _open_batches(self) -> Batches:
        return Batches(
            self.store,
            self.puts,
            Spool(self.disk, self.paths),
            self.holds,
            layouts=BatchLayouts(self.disk, self.paths),
            fast=FastBatch(self.store, self.settings),
            durability=self.durability,
            want_flush=self.flush.want,
            role=self.role,
            settings=self.settings,
            clock=self.clock,
            worker=self.workers.background,
        )

    def _open_context(self) -> Context:
        return Context(
            settings=self.settings,
            role=self.role,
            clock=self.clock,
            randomness=self.randomness,
            workers=self.workers,
            store=self.store,
            puts=self.puts,
            admission=self.admission,
            failed_puts=self.failed_puts,
            new_queues=self.new_queues,
            holds=self.holds,
            slices=self.slices,
            calls=self.calls,
            hooks=self.hooks,
            stats=self.stats,
            topics=self.topics,
            groups=self.groups,
            consumer_offsets=self.consumer_offsets,
            consumer_filters=self.consumer_filters,
            clients=self.clients,
            locks=self.locks,
        )

    def _open_metric_sources(self, shell_figures: Callable[[], dict[str, int]]) -> MetricSources:
        return MetricSources(
            settings=self.settings,
            clock=self.clock,
            boot_ms=self.boot_ms,
            engine=self.engine,
            releaser=self.releaser,
            pipeline=self.pipeline,
            transactions=self.transactions,
            topics=self.topics,
            groups=self.groups,
            consumer_offsets=self.consumer_offsets,
            clients=self.clients,
            stats=self.stats,
            timer_rates=self.timer_upkeep.rates,
            admission=self.admission,
            overload=self.overload,
            ticks=self.ticks,
            steps=self.steps,
            role=self.role,
            replicas=self.replicas,
            request_counts=self.request_counts,
            kernel_use=self._kernel_use,
            shell_figures=shell_figures,
        )

    def _open_replication(self) -> None:
        settings = self.settings.replication
        tickets = ReplicaTickets(self.clock) if self.settings.auth.authentication_enabled else None
        self.epochs = Epochs(self.disk, self.paths)
        self.in_sync = SyncStateSet() if self.role.is_elected else None
        """The replicas in sync at the controller; None without one."""
        shown_to = self.store.hidden_tail.start
        self.replicas = Replicas(
            self.store.log,
            self.epochs,
            self.role,
            settings,
            self.clock,
            tickets,
            self.in_sync,
            replicated_to=self.store.log.end if shown_to is None else shown_to,
            note_replicated=self.store.abort_file.note_replicated,
        )
        self.acks = ReplicaAcks(self.replicas, settings, self.clock)
        self.block_source = BlockSource(
            self.blocks, self.timer.pending.done, self.replicas, self.holds, settings, self.clock
        )
        self.block_acks = BlockAcks(self.block_source, settings, self.clock)
        self.durability = Durability(self.flush, self.replicas, self.acks, self.block_source, self.block_acks)

    def _compose_replication(self) -> Replication:
        self.block_copies = BlockCopies(
            self.store,
            self.blocks,
            self.block_parts.wheel,
            self.block_parts.intake,
            self.timer.pending,
            self.workers.blocks,
            self.flush.want,
        )
        promotion = Promotion(
            self.engine,
            self.role,
            self.epochs,
            self.replica_log,
            self.block_copies,
            self.records,
            self.transactions,
            self.topics,
            self.consumer_offsets,
            self.replicas,
        )
        return Replication(
            self.engine,
            self.role,
            self.epochs,
            self.replicas,
            self.acks,
            self.block_source,
            self.block_acks,
            self.replica_log,
            promotion,
            self.topics,
            self.randomness,
        )

    def _open_elections(self) -> Elections | None:
        if self.in_sync is None:
            return None
        membership = SyncStateChanges(
            self.in_sync, self.replicas, self.block_source, self.store.log, self.settings.controller, self.clock
        )
        return Elections(self.role, self.replication, self.in_sync, membership)

    def _open_tables(self) -> None:
        settings, disk, tables = self.settings, self.disk, self.workers.tables
        self.topics = Topics(disk, self.paths, self.clock, settings, tables)
        self.groups = Groups(disk, self.paths, self.clock, settings.consumers, tables)
        self.new_queues = NewQueues(self.store.queues)
        self.consumer_offsets = ConsumerOffsets(disk, self.paths, self.store.queues.end)
        self.consumer_filters = ConsumerFilters(disk, self.paths, self.clock, settings.consumers)
        self.clients = Clients()
        self.locks = QueueLocks(settings.consumers.lock_expiry_ms)

    def _own_sign(self, process: ProcessContext) -> Callable[[Command], None] | None:
        """Return the function that signs the broker's own requests to name servers and to other brokers."""
        key = self.settings.auth.inner_access_key or process.access_key
        return None if key is None else key.sign

    def _open_access(self, process: ProcessContext) -> AccessControl:
        """Load users and lists, and the access keys of WheelMQ's own processes. Raises ConfigError, OSError."""
        settings, auth = self.settings, self.settings.auth
        tables = AccessTables(self.disk, self.paths, self.clock, auth, self.workers.tables)
        self.pipeline_key = pipeline_key(self.disk, self.paths.config)
        add_pipeline_user(tables.users, self.pipeline_key, settings.broker.cluster)
        for key in (process.access_key, auth.inner_access_key):
            if key is not None:
                add_inner_user(tables.users, key)
        here = MessageTopics(settings, self.engine)
        return AccessControl(settings, tables, here, self.clock, self.request_counts, process.audit_sink)

    def _open_table_saves(self) -> TableSaves:
        return TableSaves(
            self.topics,
            self.groups,
            self.consumer_offsets,
            self.consumer_filters,
            self.access.tables,
            worker=self.workers.background,
        )

    def _open_transaction_checks(self) -> TransactionChecks:
        return TransactionChecks(
            self.transactions,
            self.store,
            self.settings,
            self.role,
            self.clients,
            self.calls,
            self.admission.rejection,
            self.access.may_check_transaction,
        )

    def use_kernels(self) -> None:
        """Serve sends and releases by kernels from now on. No round may run. Does nothing if they are in use."""
        if self.fast_send is not None:
            return
        arrays = TopicArrays(self.topics, self.store.queues, self.settings)
        self.releaser.append_by(FastRelease(self.store, self.generations, arrays))
        self.fast_send = FastSend(
            self.store,
            self.timer.congestion,
            arrays,
            self.settings,
            self.durability,
            admission=self.admission,
            overload=self.overload,
            hooks=self.hooks,
            access=self.access,
            put_times=self.stats.put_times,
        )

    def _open_turns(self) -> TurnCoordinator:
        return open_turns(
            self.store,
            self.timer,
            self.block_parts.walk,
            self.block_parts.turns,
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

    @property
    def blocks(self) -> Blocks:
        return self.block_parts.blocks

    def _settings_changed(self, fields: frozenset[str]) -> None:
        """Update the parts that keep copies of settings. The other parts read a setting when they need it."""
        self.admission.check_disk()
        if self.fast_send is not None:
            self.fast_send.take_settings()
        if "auto_create_topic" in fields:
            self.topics.add_model()
        if fields & {"timer_stop_enqueue", "timer_stop_dequeue"}:
            self.timer_upkeep.stops.take_settings()
        if fields & {"auto_create_topic", "broker_permission"}:
            self.topics.renew_version()
