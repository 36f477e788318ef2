"""The broker's metrics as metric families (RocketMQ: DefaultStoreMetricsManager).

They have Apache RocketMQ's names where it has the metric. Our own begin with `wheelmq_`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from wheelmq.broker.kernel_use import KernelState
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.metrics.builder import STORAGE, FamilyBuilder, FamilySteps, histogram_sample, node_labels
from wheelmq.broker.metrics.connections import connection_families
from wheelmq.broker.metrics.lag import lag_families
from wheelmq.broker.metrics.machine import machine_families
from wheelmq.broker.metrics.traffic import traffic_families
from wheelmq.broker.overdue import overdue
from wheelmq.broker.overview import LATENESS_MS, waiting_by_place
from wheelmq.delay import intake
from wheelmq.formats.certificate import DAY_MS
from wheelmq.formats.wire.metric_families import MetricFamily, MetricKind
from wheelmq.store.ship_status import read_statuses

BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Bounds of the distribution of indexed messages (RocketMQ: TimerMetrics.timerDist)."""

SLOTS_PER_STEP: Final = 16_384
"""Slots of the wheel that are read between two pauses."""

OUTCOMES: Final = ("released", "rolled", "dead_letter", "early", "unreadable", "too_long", "failed")
"""Outcomes of a release (`Releaser.counts`). Each has a sample from the start, for alarms."""

ARMED_BY: Final = ("pipeline", "wheel_lane", "index_lane", "near_lane", "block_lane", "recovery")
"""Parts that arm messages. Each has its sample from the start, so that an alarm sees its first message."""

TURN_S: Final = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
FINISH_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
TICK_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)


class Families:
    """Creates the families of one broker. The labels of each sample identify the broker."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        labels = node_labels(sources.settings.broker)
        self._node = FamilyBuilder(labels)
        self._build = FamilyBuilder({**labels, **STORAGE})

    def all(self) -> Iterator[MetricFamily]:
        """Yield all families."""
        return (family for family in self.steps() if family is not None)

    def steps(self) -> FamilySteps:
        """Yield all families, and None between other pieces of work. The caller may pause after each."""
        yield from self._store()
        yield from self._behind()
        yield from self._by_topic()
        yield self._waiting()
        yield from self._snapshot()
        yield from self._blocks()
        yield from self._shipping()
        yield from self._transactions()
        yield from self._replication()
        yield from self._own()
        yield from self._tls()
        yield from machine_families(self._sources, self._node, self._build)
        yield from connection_families(self._sources, self._node)
        yield from traffic_families(self._sources, self._node)
        yield from lag_families(self._sources, self._node)

    # Families ------------------------------------------------------------------------------------------------------

    def _store(self) -> Iterator[MetricFamily]:
        store = self._sources.engine.store
        log = store.log
        yield self._build.gauge("wheelmq_log_bytes", "Bytes of the log", log.end - log.start)
        yield self._build.gauge(
            "rocketmq_storage_flush_behind_bytes", "Bytes of the log not on disk", log.end - log.synced
        )
        yield self._build.gauge(
            "rocketmq_storage_dispatch_behind_bytes", "Bytes without queue units", log.end - store.dispatched_to
        )

    def _behind(self) -> Iterator[MetricFamily]:
        sources, timer = self._sources, self._sources.engine.timer
        oldest_ms = sources.pipeline.pace.oldest_waiting_age_ms(sources.clock.monotonic_ms())
        yield self._build.gauge(
            "rocketmq_timer_enqueue_lag", "Parked and not indexed", timer.queue.end - timer.indexed_to
        )
        yield self._build.gauge(
            "rocketmq_timer_enqueue_latency", "Age of the oldest parked message that is not indexed, ms", oldest_ms
        )
        found = overdue(sources)
        yield self._build.gauge("rocketmq_timer_dequeue_lag", "Due and not released", found.messages)
        yield self._build.gauge(
            "rocketmq_timer_dequeue_latency", "Lateness of the first due message, seconds", found.late_ms / 1000
        )

    def _by_topic(self) -> Iterator[MetricFamily]:
        timer, queues = self._sources.engine.timer, self._sources.engine.store.queues
        for name, text, column, kind in (
            ("rocketmq_timing_messages", "Pending", intake.PENDING, MetricKind.GAUGE),
            ("rocketmq_timer_enqueue", "Parked since the start", intake.PARKED, MetricKind.COUNTER),
            ("rocketmq_timer_dequeue", "Settled since the start", intake.SETTLED, MetricKind.COUNTER),
        ):
            family = self._build.empty(kind, name, text, "topic")
            for topic, count in sorted(queues.by_topic(timer.pending.counts.table[:, column]).items()):
                family.add(count, topic)
            yield family

    def _waiting(self) -> MetricFamily:
        """Return the pending messages by place. Their sum equals the sum over the topics."""
        return self._build.gauges(
            "wheelmq_waiting_messages", "Pending, by where they wait", "where", waiting_by_place(self._sources)
        )

    def _snapshot(self) -> FamilySteps:
        """Yield the messages in the slots of the wheel between each bound and the bound before it.

        As in Apache RocketMQ, the first slot is that of the present second, and each cancel subtracts one message.
        """
        wheel, now_ms = self._sources.engine.timer.wheel, self._sources.clock.now_ms()
        family = self._build.empty(
            MetricKind.GAUGE, "rocketmq_timer_message_snapshot", "Indexed, by how far off", "timer_bound_s"
        )
        edges = [0, *(bound_s * 1000 // wheel.precision_ms for bound_s in BOUNDS_S)]
        for bound_s, (first, end) in zip(BOUNDS_S, itertools.pairwise(edges), strict=True):
            count = 0
            for start in range(first, end, SLOTS_PER_STEP):
                slots = min(SLOTS_PER_STEP, end - start)
                count += int(wheel.messages_in(now_ms + start * wheel.precision_ms, slots).sum())
                yield None
            family.add(count, str(bound_s))
        yield family

    def _replication(self) -> Iterator[MetricFamily]:
        role, replicas = self._sources.role, self._sources.replicas
        yield self._build.gauge(
            "wheelmq_is_master", "Whether the broker is the master of its name", int(role.is_master)
        )
        yield self._build.gauge("wheelmq_replicas", "Connected replicas", len(replicas.acked()))
        yield self._build.gauge("wheelmq_replication_lag_bytes", "Bytes that no replica has", replicas.lag_bytes())
        yield self._build.gauge(
            "wheelmq_replication_lag_seconds",
            "Age of the oldest byte that no replica has, seconds",
            replicas.lag_ms() / 1000,
        )

    def _own(self) -> Iterator[MetricFamily]:
        sources, timer = self._sources, self._sources.engine.timer
        yield self._build.histogram(
            "wheelmq_release_lateness_milliseconds",
            "From the due time of a message to its release",
            sources.releaser.lateness_ms,
            LATENESS_MS,
        )
        yield self._build.histogram(
            "wheelmq_tick_seconds", "Length of rounds, and of ticks that had work", sources.ticks.wall, TICK_S
        )
        yield self._build.counter(
            "wheelmq_tick_step_failures", "Failed steps of rounds and ticks", "step", dict(sources.steps.failures)
        )
        armed_by = {**dict.fromkeys(ARMED_BY, 0), **timer.pending.armed_by}
        yield self._build.counter("wheelmq_timers_armed", "References armed", "by", armed_by)
        yield self._build.total("wheelmq_timers_shifted", "Armed later by a stage of the pipeline", timer.shifts.count)
        outcomes = {**dict.fromkeys(OUTCOMES, 0), **sources.releaser.counts}
        yield self._build.counter("wheelmq_timers_settled", "Settled timers, by outcome", "how", outcomes)
        yield self._build.total("wheelmq_timers_refused", "Sends for a slot that is too full", timer.congestion.refused)
        yield self._build.total(
            "wheelmq_timers_not_noted", "Parked without room to be noted", timer.pending.notes.passed_over
        )
        yield self._kernels()
        yield from self._pipeline()

    def _kernels(self) -> MetricFamily:
        """Return a sample for each state of the kernels: 1 for the present one."""
        present = self._sources.kernel_use.state
        return self._build.gauges(
            "wheelmq_kernels",
            "State of the kernels: 1 for the present one",
            "state",
            {one: int(one is present) for one in KernelState},
        )

    def _pipeline(self) -> Iterator[MetricFamily]:
        sources, timer = self._sources, self._sources.engine.timer
        figures = sources.pipeline.figures
        yield self._build.counter("wheelmq_turn_rows", "Rows of turns", "what", dict(figures.rows))
        yield self._build.histogram("wheelmq_turn_seconds", "From plan to commit of a turn", figures.seconds, TURN_S)
        yield self._build.total("wheelmq_pipeline_turns", "Turns committed", timer.turns.turn)
        held = timer.turns.is_held(sources.clock.monotonic_ms())
        yield self._build.gauge("wheelmq_pipeline_lease_held", "1 when a pipeline holds the lease", int(held))
        fallback, now_ms = sources.pipeline.fallback, sources.clock.now_ms()
        yield self._build.gauge(
            "wheelmq_fallback_active", "1 while the broker does the work of the pipeline", int(fallback.is_active)
        )
        yield self._build.total("wheelmq_fallback_indexed", "Messages that the broker indexed itself", fallback.indexed)
        ahead = {"pipeline": timer.scans.walked_through_ms, "broker": timer.scans.covered_through_ms}
        yield self._build.gauges(
            "wheelmq_walked_ahead_seconds",
            "From now to the last slot that was read",
            "by",
            {by: (through_ms - now_ms) / 1000 for by, through_ms in ahead.items()},
        )
        yield self._build.gauge(
            "wheelmq_skipped_slots", "Slots that the broker could not read and tries again", len(timer.scans.skipped)
        )
        slots = {"pipeline": figures.slots_walked, "broker": fallback.wheel_lane.slots_walked}
        yield self._build.counter("wheelmq_slots_walked", "Slots with units that were read", "by", slots)

    def _blocks(self) -> Iterator[MetricFamily]:
        blocks = self._sources.engine.blocks
        yield self._build.gauge("wheelmq_blocks", "Blocks that are there", len(blocks))
        yield self._build.gauge(
            "wheelmq_blocks_flush_behind", "Messages of blocks not on disk", blocks.end - blocks.synced
        )
        yield self._build.total("wheelmq_block_messages", "Put in blocks since the start", blocks.end)

    def _shipping(self) -> Iterator[MetricFamily]:
        """Yield the metrics of `wheelmq ship`, with a sample for each target."""
        store, now_ms = self._sources.engine.store, self._sources.clock.now_ms()
        age, behind, failures = (
            self._build.empty(kind, name, text, "target")
            for kind, name, text in (
                (MetricKind.GAUGE, "wheelmq_ship_age_seconds", "From the last complete copy to now"),
                (MetricKind.GAUGE, "wheelmq_ship_behind_bytes", "Bytes of the log that are not shipped"),
                (MetricKind.COUNTER, "wheelmq_ship_failures", "Failed attempts of the shipper since its start"),
            )
        )
        for status in read_statuses(store.disk, store.paths):
            age_ms = status.age_ms(now_ms)
            age.add(math.inf if age_ms is None else age_ms / 1000, status.target)
            behind.add(max(0, store.log.end - max(status.log_end, store.log.start)), status.target)
            failures.add(status.failures, status.target)
        yield from (age, behind, failures)

    def _transactions(self) -> Iterator[MetricFamily]:
        counts = self._sources.transactions.counts
        yield self._build.gauges(
            "rocketmq_half_messages", "Half messages of transactions that have not ended", "topic", counts.waiting()
        )
        for name, text, by_topic in (
            ("rocketmq_commit_messages", "Committed since the start", counts.committed),
            ("rocketmq_rollback_messages", "Rolled back since the start", counts.rolled_back),
            ("wheelmq_given_up_messages", "Half messages that the broker checks no more", counts.given_up),
        ):
            yield self._build.counter(name, text, "topic", by_topic)
        latency = self._build.histograms(
            "rocketmq_finish_message_latency", "From birth to commit, seconds", FINISH_S, "topic"
        )
        for topic, seconds in sorted(counts.seconds.items()):
            latency.samples.append(histogram_sample(seconds, FINISH_S, topic))
        yield latency

    def _tls(self) -> Iterator[MetricFamily]:
        """Yield the metrics of encrypted connections, if the broker has a certificate."""
        figures = self._sources.shell_figures()
        expires_ms = figures.get("tls_certificate_expires_ms")
        if expires_ms is None:
            return
        days = (expires_ms - self._sources.clock.now_ms()) / DAY_MS
        yield self._build.gauge("wheelmq_tls_certificate_expiry_days", "Days until the certificate expires", days)
        yield self._build.total(
            "wheelmq_tls_certificate_reloads", "Certificates loaded after the start", figures["tls_reloads"]
        )
        yield self._build.gauge(
            "wheelmq_tls_waiting", "Connections before their first byte or handshake", figures["tls_waiting"]
        )
        outcomes = {
            "tls": figures["tls_handshakes"],
            "failed": figures["tls_failed_handshakes"],
            "late": figures["tls_late_handshakes"],
            "plain": figures["tls_plain"],
            "rejected_plain": figures["tls_rejected_plain"],
        }
        yield self._build.counter("wheelmq_tls_connections", "New connections by their outcome", "how", outcomes)
