"""Open connections, and the connected producers and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from wheelmq.broker.metric_sources import MetricSources
from wheelmq.broker.metrics.builder import FamilyBuilder, FamilySteps
from wheelmq.broker.state.clients import Client, Clients
from wheelmq.formats.names import is_system_group
from wheelmq.formats.wire.client_versions import version_text
from wheelmq.formats.wire.metric_families import MetricKind

PROTOCOL: Final = "remoting"
CLIENTS_PER_STEP: Final = 200
"""Clients that are counted between two pauses."""
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
"""Labels of the kinds of consumers (RocketMQ: ConsumeType.typeCN)."""
_CLOSED: Final = {
    "bad_frame": "bad_frames",
    "slow_frame": "slow_frames",
    "rejected": "refused_connections",
    "idle": "idle_connections",
}
"""Reasons for which the server closes connections, and the names of their counters."""


def connection_families(sources: MetricSources, build: FamilyBuilder) -> FamilySteps:
    """Yield the families of connections. A client counts once for each group and connection, as in Apache's broker."""
    producers, consumers = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    yield from _count(_producers(sources.clients), producers)
    yield from _count(_consumers(sources.clients), consumers)
    of_producers = build.empty(
        MetricKind.GAUGE,
        "rocketmq_producer_connections",
        "Producers by client version",
        *("language", "version", "protocol_type"),
    )
    of_consumers = build.empty(
        MetricKind.GAUGE,
        "rocketmq_consumer_connections",
        "Consumers by group and client version",
        *("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
    )
    for family, counts in ((of_producers, producers), (of_consumers, consumers)):
        for labels, count in sorted(counts.items()):
            family.add(count, *labels)
        yield family
    figures = sources.shell_figures()
    yield build.gauge("wheelmq_connections", "Open connections of clients", figures.get("connections", 0))
    closed = {why: figures.get(name, 0) for why, name in _CLOSED.items()}
    yield build.counter("wheelmq_closed_connections", "Connections that the broker closed", "why", closed)


def _count(found: Iterator[tuple[str, ...]], counts: Counter[tuple[str, ...]]) -> Iterator[None]:
    """Count clients by their labels, in small pieces of work."""
    for number, labels in enumerate(found, 1):
        counts[labels] += 1
        if number % CLIENTS_PER_STEP == 0:
            yield None


def _producers(clients: Clients) -> Iterator[tuple[str, ...]]:
    """Yield the labels of each producer. Clients may come and go meanwhile."""
    for members in list(clients.producers.values()):
        yield from map(_client_labels, list(members.values()))


def _consumers(clients: Clients) -> Iterator[tuple[str, ...]]:
    """Yield the labels of each consumer. Clients may come and go meanwhile."""
    for group in list(clients.consumers.values()):
        mode, is_system = _MODES.get(group.consume_type, group.consume_type.lower()), is_system_group(group.name)
        last = mode, PROTOCOL, str(is_system).lower()
        for one in list(group.clients.values()):
            yield (group.name, *_client_labels(one)[:2], *last)


def _client_labels(client: Client) -> tuple[str, str, str]:
    """Return language, version and protocol of a client."""
    return client.language.lower(), version_text(client.version).lower(), PROTOCOL
