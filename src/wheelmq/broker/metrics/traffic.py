"""Messages and bytes that came in and went out, by topic and group, and the outcomes of requests."""

from __future__ import annotations

from typing import Final, NamedTuple

from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.metrics.builder import FamilyBuilder, FamilySteps
from wheelmq.broker.statistics import (
    DLQ_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SIZES,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from wheelmq.formats.names import is_of_retries, is_system_group
from wheelmq.formats.wire.metric_families import MetricFamily, MetricKind, MetricSample

COUNTERS_PER_STEP: Final = 100
"""Counters that are read between two pauses."""
OUTCOMES: Final = (
    *("served", "failed", "unsupported", "rejected", "overloaded", "timed_out"),
    *("unauthenticated", "forbidden"),
)
"""Outcomes of requests. Each has its sample from the start, so that an alarm sees the first request."""


class _Kind(NamedTuple):
    """A family of counters whose keys are a topic, or a topic and a group."""

    name: str
    text: str
    has_group: bool


_KINDS: Final = {
    TOPIC_PUT_NUMS: _Kind("rocketmq_messages_in", "Messages appended to the queues of a topic", False),
    TOPIC_PUT_SIZE: _Kind("rocketmq_throughput_in", "Bytes of these messages, as stored", False),
    GROUP_GET_NUMS: _Kind("rocketmq_messages_out", "Messages that a group has pulled", True),
    GROUP_GET_SIZE: _Kind("rocketmq_throughput_out", "Bytes of these messages, as stored", True),
    DLQ_PUT_NUMS: _Kind("rocketmq_send_to_dlq_messages", "Messages that became dead letters of a group", True),
}


def traffic_families(sources: MetricSources, build: FamilyBuilder) -> FamilySteps:
    """Yield the families of messages, of their sizes, and of requests."""
    families = {name: _empty(kind, build) for name, kind in _KINDS.items()}
    for number, (name, key) in enumerate(sources.stats.counters()):
        family = families.get(name)
        if family is not None:
            _add(sources, family, name, key)
        if number % COUNTERS_PER_STEP == COUNTERS_PER_STEP - 1:
            yield None
    yield from families.values()
    sizes = build.histograms("rocketmq_message_size", "Sizes of stored records, bytes", SIZES)
    sizes.samples.append(MetricSample((), sources.stats.put_bytes, tuple(sources.stats.sizes.cumulated())))
    yield sizes
    outcomes = {**dict.fromkeys(OUTCOMES, 0), **sources.request_counts}
    yield build.counter("wheelmq_requests", "Requests by outcome, without sends that kernels served", "how", outcomes)


def _empty(kind: _Kind, build: FamilyBuilder) -> MetricFamily:
    labels = ("topic", "consumer_group", "is_system") if kind.has_group else ("topic", "is_system")
    return build.empty(MetricKind.COUNTER, kind.name, kind.text, *labels)


def _add(sources: MetricSources, family: MetricFamily, name: str, key: str) -> None:
    """Add the sample of a counter. As in Apache's broker, retry topics and dead-letter topics have none."""
    topic, _, group = key.partition("@")
    if is_of_retries(topic):
        return
    is_system = str(sources.topics.is_system(topic) or is_system_group(group)).lower()
    labels = (topic, group, is_system) if _KINDS[name].has_group else (topic, is_system)
    family.add(sources.stats.total(name, key), *labels)
