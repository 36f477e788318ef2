"""The progress of consumer groups in the queues of their topics (RocketMQ: ConsumerLagCalculator)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from wheelmq.broker.metric_sources import MetricSources
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.formats.wire.bodies import TopicConfig

QUEUES_MAX: Final = 20_000
"""Queues of groups that are looked at in one pass, so that it never takes long."""


class GroupTopics:
    """One pass over the topics of which groups have committed offsets."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self.is_complete = True
        """Whether the pass has not ended at QUEUES_MAX queues."""

    def __iter__(self) -> Iterator[tuple[str, TopicConfig]]:
        """Yield each group with each of its topics, up to QUEUES_MAX queues."""
        left = QUEUES_MAX
        for group, names in self._sources.consumer_offsets.by_group().items():
            for name in names:
                topic = self._sources.topics.get(name)
                if topic is None:
                    continue
                left -= topic.read_queue_nums
                if left < 0:
                    self.is_complete = False
                    return
                yield group, topic


class QueueProgress(NamedTuple):
    """The queue offsets of a group in one queue."""

    queue_id: int
    committed: int
    """The first message that the group has not consumed."""
    pulled: int
    """The first message that it has not pulled since the start of the broker, at least `committed`."""
    end: int

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


def queue_progress(sources: MetricSources, group: str, topic: TopicConfig) -> Iterator[QueueProgress]:
    """Yield the progress of a group in each queue of a topic that consumers may read.

    It counts as in `wheelmq lag`: a queue without a committed offset counts from its start.
    """
    name, queues = topic.topic_name, sources.engine.store.queues
    committed = sources.consumer_offsets.of(group, name)
    pulled = sources.consumer_offsets.pulled(group, name)
    for queue_id in range(topic.read_queue_nums):
        offset = committed.get(queue_id, 0)
        yield QueueProgress(queue_id, offset, max(offset, pulled.get(queue_id, 0)), queues.end(name, queue_id))


def store_time_ms(sources: MetricSources, topic: str, queue_id: int, offset: int) -> Millis | None:
    """Return the store time of a message, from the head of its record; None without a record."""
    store = sources.engine.store
    queue = store.queues.find(topic, queue_id)
    if queue is None or not offset < queue.end:
        return None
    unit = queue.read(QueueOffset(max(offset, queue.start)), 1)[0]
    return None if unit["size"] == BLANK_SIZE else store.log.head_store_ms(LogPosition(int(unit["position"])))
