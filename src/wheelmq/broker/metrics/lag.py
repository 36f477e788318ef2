"""The lag of consumer groups, by topic: in messages, and in milliseconds since the oldest of them was stored."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.group_progress import GroupTopics, QueueProgress, queue_progress, store_time_ms
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.metrics.builder import FamilyBuilder, FamilySteps
from wheelmq.formats.names import RETRY_PREFIX, is_system_group
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.metric_families import MetricKind

QUEUES_PER_STEP: Final = 64
"""Queues that are read between two pauses."""
LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")
FAMILIES: Final = (
    ("rocketmq_consumer_lag_messages", "Messages that the group has not consumed"),
    ("rocketmq_consumer_lag_latency", "Age of the oldest message that the group has not consumed, milliseconds"),
    ("rocketmq_consumer_inflight_messages", "Messages that the group has pulled and not consumed"),
    ("rocketmq_consumer_queueing_latency", "Age of the oldest message that the group has not pulled, milliseconds"),
    ("rocketmq_consumer_ready_messages", "Messages that the group has not pulled"),
)


def lag_families(sources: MetricSources, build: FamilyBuilder) -> FamilySteps:
    """Yield the families of consumer groups, and whether they have all queues."""
    families = [build.empty(MetricKind.GAUGE, name, text, *LABELS) for name, text in FAMILIES]
    walk = GroupTopics(sources)
    for group, topic in walk:
        name = topic.topic_name
        labels = group, name, *_flags(sources, group, name)
        lag = _Lag(sources, name)
        for number, queue in enumerate(queue_progress(sources, group, topic), 1):
            lag.add(queue)
            if number % QUEUES_PER_STEP == 0:
                yield None
        for family, value in zip(families, lag.values(), strict=True):
            family.add(value, *labels)
        yield None
    yield from families
    yield build.gauge(
        "wheelmq_consumer_lag_complete",
        "1 if the lag of all groups was counted, 0 with too many queues",
        int(walk.is_complete),
    )


def _flags(sources: MetricSources, group: str, topic: str) -> tuple[str, str]:
    """Return the values of `is_retry` and `is_system`."""
    is_system = sources.topics.is_system(topic) or is_system_group(group)
    return str(topic.startswith(RETRY_PREFIX)).lower(), str(is_system).lower()


class _Lag:
    """The lag of one group in one topic."""

    def __init__(self, sources: MetricSources, topic: str) -> None:
        self._sources = sources
        self._topic = topic
        self._unconsumed = self._inflight = self._ready = 0
        self._unconsumed_since_ms: Millis | None = None
        self._ready_since_ms: Millis | None = None

    def add(self, queue: QueueProgress) -> None:
        """Add the messages of one queue."""
        self._unconsumed += queue.lag
        self._inflight += min(queue.pulled, queue.end) - min(queue.committed, queue.end)
        self._ready += max(0, queue.end - queue.pulled)
        if queue.lag:
            self._unconsumed_since_ms = self._earlier_ms(self._unconsumed_since_ms, queue.queue_id, queue.committed)
        if queue.pulled < queue.end:
            self._ready_since_ms = self._earlier_ms(self._ready_since_ms, queue.queue_id, queue.pulled)

    def values(self) -> tuple[int, int, int, int, int]:
        """Return the values of the families, in their order."""
        waited_ms, ready_ms = self._age_ms(self._unconsumed_since_ms), self._age_ms(self._ready_since_ms)
        return self._unconsumed, waited_ms, self._inflight, ready_ms, self._ready

    def _earlier_ms(self, known_ms: Millis | None, queue_id: int, offset: int) -> Millis | None:
        """Return the earlier one of `known_ms` and the store time of a message."""
        stored_ms = store_time_ms(self._sources, self._topic, queue_id, offset)
        return min((one for one in (known_ms, stored_ms) if one is not None), default=None)

    def _age_ms(self, since_ms: Millis | None) -> int:
        return 0 if since_ms is None else max(0, self._sources.clock.now_ms() - since_ms)
