"""The broker's metrics as metric families (RocketMQ: DefaultStoreMetricsManager).

They have Apache RocketMQ's names where it has the metric. Our own begin with `wheelmq_`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from wheelmq.broker.kernel_use import KernelState
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.overdue import overdue
from wheelmq.broker.overview import LATENESS_MS, waiting_by_place
from wheelmq.delay import intake
from wheelmq.formats.certificate import DAY_MS
from wheelmq.observe.histogram import Histogram
from wheelmq.store.ship_status import read_statuses

BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Bounds of the distribution of indexed messages (RocketMQ: TimerMetrics.timerDist)."""

OUTCOMES: Final = ("released", "rolled", "dead_letter", "early", "unreadable", "too_long", "failed")
"""Outcomes of staged messages (delay.release). Each has its sample from the start, for alarms."""

ARMED_BY: Final = ("pipeline", "wheel_lane", "index_lane", "near_lane", "block_lane", "recovery")
"""Parts that arm messages. Each has its sample from the start, so that an alarm sees its first message."""

TURN_S: Final = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
FINISH_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
TICK_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 1.0)


class Families:
    """Creates the families of one broker. The labels of each sample identify the broker."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        settings = sources.settings
        node = {"cluster": settings.broker.cluster, "node_type": "broker", "node_id": settings.broker.name}
        self._labels = {**node, "storage_type": "local", "storage_medium": "disk"}

    def all(self) -> Iterator[Metric]:
        yield from self._store()
        yield from self._behind()
        yield from self._by_topic()
        yield self._waiting()
        yield self._snapshot()
        yield from self._blocks()
        yield from self._shipping()
        yield from self._transactions()
        yield from self._replication()
        yield from self._own()
        yield from self._tls()

    # Families ------------------------------------------------------------------------------------------------------

    def _store(self) -> Iterator[Metric]:
        store = self._sources.engine.store
        log = store.log
        yield self._gauge("rocketmq_storage_size", "Bytes of the log", log.end - log.start)
        yield self._gauge("rocketmq_storage_flush_behind_bytes", "Bytes of the log not on disk", log.end - log.synced)
        yield self._gauge(
            "rocketmq_storage_dispatch_behind_bytes", "Bytes without queue units", log.end - store.dispatched_to
        )

    def _behind(self) -> Iterator[Metric]:
        sources, timer = self._sources, self._sources.engine.timer
        oldest_ms = sources.pipeline.pace.oldest_unindexed_ms(sources.clock.monotonic_ms())
        yield self._gauge("rocketmq_timer_enqueue_lag", "Parked and not indexed", timer.queue.end - timer.indexed_to)
        yield self._gauge("rocketmq_timer_enqueue_latency", "Age of the oldest of them, ms", oldest_ms)
        found = overdue(sources)
        yield self._gauge("rocketmq_timer_dequeue_lag", "Due and not released", found.messages)
        yield self._gauge(
            "rocketmq_timer_dequeue_latency", "How late the first of them is, seconds", found.late_ms / 1000
        )

    def _by_topic(self) -> Iterator[Metric]:
        timer = self._sources.engine.timer
        for name, text, column, kind in (
            ("rocketmq_timing_messages", "Pending", intake.PENDING, GaugeMetricFamily),
            ("rocketmq_timer_enqueue", "Parked since the start", intake.PARKED, CounterMetricFamily),
            ("rocketmq_timer_dequeue", "Settled since the start", intake.SETTLED, CounterMetricFamily),
        ):
            family = kind(name, text, labels=[*self._labels, "topic"])
            for topic, count in sorted(
                self._sources.engine.store.queues.by_topic(timer.pending.counts.table[:, column]).items()
            ):
                family.add_metric([*self._labels.values(), topic], count)
            yield family

    def _waiting(self) -> Metric:
        """Return the pending messages by place. Their sum equals the sum over the topics."""
        family = GaugeMetricFamily(
            "wheelmq_waiting_messages", "Pending, by where they wait", labels=[*self._labels, "where"]
        )
        for where, count in waiting_by_place(self._sources).items():
            family.add_metric([*self._labels.values(), where], count)
        return family

    def _snapshot(self) -> Metric:
        """Return the messages in the slots of the wheel between each bound and the bound before it.

        As in Apache RocketMQ, the first slot is that of the present second, and each cancel subtracts one message.
        """
        wheel, now_ms = self._sources.engine.timer.wheel, self._sources.clock.now_ms()
        family = GaugeMetricFamily(
            "rocketmq_timer_message_snapshot", "Indexed, by how far off", labels=[*self._labels, "timer_bound_s"]
        )
        edges = [0, *(bound_s * 1000 // wheel.precision_ms for bound_s in BOUNDS_S)]
        counts = wheel.messages_in(now_ms, edges[-1])
        for bound_s, (first, end) in zip(BOUNDS_S, itertools.pairwise(edges), strict=True):
            family.add_metric([*self._labels.values(), str(bound_s)], int(counts[first:end].sum()))
        return family

    def _replication(self) -> Iterator[Metric]:
        role, replicas = self._sources.role, self._sources.replicas
        yield self._gauge("wheelmq_is_master", "Whether the broker is the master of its name", int(role.is_master))
        yield self._gauge("wheelmq_replicas", "Connected replicas", len(replicas.acked()))
        yield self._gauge("wheelmq_replication_lag_bytes", "Bytes that no replica has", replicas.lag_bytes())
        yield self._gauge("wheelmq_replication_lag_seconds", "Age of the oldest of them", replicas.lag_ms() / 1000)

    def _own(self) -> Iterator[Metric]:
        sources, timer = self._sources, self._sources.engine.timer
        yield self._histogram(
            "wheelmq_release_lateness_milliseconds",
            "From the due time of a message to its release",
            sources.releaser.lateness_ms,
            LATENESS_MS,
        )
        yield self._histogram(
            "wheelmq_tick_seconds", "Length of rounds, and of ticks that had work", sources.ticks.wall, TICK_S
        )
        yield self._counter(
            "wheelmq_tick_step_failures", "Failed steps of rounds and ticks", "step", dict(sources.steps.failures)
        )
        armed_by = {**dict.fromkeys(ARMED_BY, 0), **timer.pending.armed_by}
        yield self._counter("wheelmq_timers_armed", "References armed", "by", armed_by)
        outcomes = {**dict.fromkeys(OUTCOMES, 0), **sources.releaser.counts}
        yield self._counter("wheelmq_timers_settled", "What became of them", "how", outcomes)
        yield self._total("wheelmq_timers_refused", "Sends for a slot that is too full", timer.congestion.refused)
        yield self._total(
            "wheelmq_timers_not_noted", "Parked without room to be noted", timer.pending.notes.passed_over
        )
        yield self._kernels()
        yield from self._pipeline()

    def _kernels(self) -> Metric:
        """Return a sample for each state of the kernels: 1 for the present one."""
        family = GaugeMetricFamily("wheelmq_kernels", "1 for their state", labels=[*self._labels, "state"])
        for state in KernelState:
            family.add_metric([*self._labels.values(), state], int(state is self._sources.kernel_use.state))
        return family

    def _pipeline(self) -> Iterator[Metric]:
        sources, timer = self._sources, self._sources.engine.timer
        figures = sources.pipeline.figures
        yield self._counter("wheelmq_turn_rows", "Rows of turns", "what", dict(figures.rows))
        yield self._histogram("wheelmq_turn_seconds", "From plan to commit of a turn", figures.seconds, TURN_S)
        yield self._total("wheelmq_pipeline_turns", "Turns committed", timer.turns.turn)
        held = timer.turns.is_held(sources.clock.monotonic_ms())
        yield self._gauge("wheelmq_pipeline_lease_held", "1 when a pipeline holds the lease", int(held))
        fallback, now_ms = sources.pipeline.fallback, sources.clock.now_ms()
        yield self._gauge(
            "wheelmq_fallback_active", "1 while the broker does the work of the pipeline", int(fallback.is_active)
        )
        yield self._total("wheelmq_fallback_indexed", "Messages that the broker indexed itself", fallback.indexed)
        ahead = GaugeMetricFamily(
            "wheelmq_walked_ahead_seconds", "From now to the last slot that was read", labels=[*self._labels, "by"]
        )
        ahead.add_metric([*self._labels.values(), "pipeline"], (timer.scans.walked_through_ms - now_ms) / 1000)
        ahead.add_metric([*self._labels.values(), "broker"], (timer.scans.covered_through_ms - now_ms) / 1000)
        yield ahead
        yield self._gauge(
            "wheelmq_skipped_slots", "Slots that the broker could not read and tries again", len(timer.scans.skipped)
        )
        slots = {"pipeline": figures.slots_walked, "broker": fallback.wheel_lane.slots_walked}
        yield self._counter("wheelmq_slots_walked", "Slots with units that were read", "by", slots)

    def _blocks(self) -> Iterator[Metric]:
        blocks = self._sources.engine.blocks
        yield self._gauge("wheelmq_blocks", "Blocks that are there", len(blocks))
        yield self._gauge("wheelmq_blocks_flush_behind", "Messages of blocks not on disk", blocks.end - blocks.synced)
        family = CounterMetricFamily(
            "wheelmq_block_messages", "Put in blocks since the start", labels=list(self._labels)
        )
        family.add_metric(list(self._labels.values()), blocks.end)
        yield family

    def _shipping(self) -> Iterator[Metric]:
        """Yield the metrics of `wheelmq ship`, with a sample for each target."""
        store, now_ms = self._sources.engine.store, self._sources.clock.now_ms()
        labels = [*self._labels, "target"]
        age = GaugeMetricFamily("wheelmq_ship_age_seconds", "From the last complete copy to now", labels=labels)
        lag = GaugeMetricFamily("wheelmq_ship_behind_bytes", "Bytes of the log that are not shipped", labels=labels)
        text = "Failed attempts of the shipper since its start"
        failures = CounterMetricFamily("wheelmq_ship_failures", text, labels=labels)
        for status in read_statuses(store.disk, store.paths):
            values, age_ms = [*self._labels.values(), status.target], status.age_ms(now_ms)
            age.add_metric(values, math.inf if age_ms is None else age_ms / 1000)
            lag.add_metric(values, max(0, store.log.end - max(status.log_end, store.log.start)))
            failures.add_metric(values, status.failures)
        yield from (age, lag, failures)

    def _transactions(self) -> Iterator[Metric]:
        counts = self._sources.transactions.counts
        for name, text, by_topic, kind in (
            ("rocketmq_half_messages", "Whose transactions have not ended", counts.waiting(), GaugeMetricFamily),
            ("rocketmq_commit_messages", "Committed since the start", counts.committed, CounterMetricFamily),
            ("rocketmq_rollback_messages", "Rolled back since the start", counts.rolled_back, CounterMetricFamily),
            ("wheelmq_given_up_messages", "Nobody is asked for any more", counts.given_up, CounterMetricFamily),
        ):
            family = kind(name, text, labels=[*self._labels, "topic"])
            for topic, count in sorted(by_topic.items()):
                family.add_metric([*self._labels.values(), topic], count)
            yield family
        latency = HistogramMetricFamily(
            "rocketmq_finish_message_latency", "From birth to commit, seconds", labels=[*self._labels, "topic"]
        )
        for topic, seconds in sorted(counts.seconds.items()):
            latency.add_metric([*self._labels.values(), topic], *_buckets(seconds, FINISH_S))
        yield latency

    def _tls(self) -> Iterator[Metric]:
        """Yield the metrics of encrypted connections, if the broker has a certificate."""
        figures = self._sources.shell_figures()
        expires_ms = figures.get("tls_certificate_expires_ms")
        if expires_ms is None:
            return
        days = (expires_ms - self._sources.clock.now_ms()) / DAY_MS
        yield self._gauge("wheelmq_tls_certificate_expiry_days", "Days until the certificate expires", days)
        yield self._total(
            "wheelmq_tls_certificate_reloads", "Certificates loaded after the start", figures["tls_reloads"]
        )
        yield self._gauge(
            "wheelmq_tls_waiting", "Connections before their first byte or handshake", figures["tls_waiting"]
        )
        outcomes = {
            "tls": figures["tls_handshakes"],
            "failed": figures["tls_failed_handshakes"],
            "late": figures["tls_late_handshakes"],
            "plain": figures["tls_plain"],
            "rejected_plain": figures["tls_rejected_plain"],
        }
        yield self._counter("wheelmq_tls_connections", "New connections by their outcome", "how", outcomes)

    # Kinds of families ---------------------------------------------------------------------------------------------

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _total(self, name: str, text: str, count: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), count)
        return family

    def _counter(self, name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, count in sorted(counts.items()):
            family.add_metric([*self._labels.values(), key], count)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram, bounds: tuple[float, ...]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), *_buckets(histogram, bounds))
        return family


def _buckets(histogram: Histogram, bounds: tuple[float, ...]) -> tuple[list[tuple[str, float]], float]:
    """Return the number of values at or below each bound, and the sum of all values."""
    buckets = [(str(bound), float(histogram.count_to(bound))) for bound in bounds]
    return [*buckets, ("+Inf", float(histogram.count))], histogram.total
