"""The layout of a batch: the queues over which the sink distributes its rows, with guarantee exactly-once.

A repeated batch must send each row to the same broker as before: a broker appends its rows of a batch once, and knows
nothing of the others. So a queue follows from the content of a row and from the layout, which brokers remember.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import TypeAlias

import msgspec
import numpy as np

from pyspark_rocketmq.brokers import answered, asked_once
from pyspark_rocketmq.cluster import Cluster, read_body, rejected
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.plain_rows import Array, PlainRows
from pyspark_rocketmq.rows import Row
from wheelmq.client.placing import by_hash
from wheelmq.formats.disk.batch import BatchId
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import BatchQueues
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchLayoutHeader

log = logging.getLogger(__name__)

Topics: TypeAlias = dict[str, dict[str, int]]
"""The number of queues at each broker, by topic and name of the broker."""


class SinkLayout:
    """The queues of the topics of a batch. A topic that no broker remembers gets those of its route."""

    def __init__(self, cluster: Cluster, known: Topics) -> None:
        self._cluster = cluster
        self.topics = dict(known)
        self._queues: dict[str, list[Queue]] = {}

    def queue(self, row: Row) -> Queue:
        """Return the queue of a row. Raises TopicGone, BrokerError.

        Java's producers choose the same queue for a sharding key.
        """
        queues, message = self.queues(row.topic), row.message
        if message.order_key is not None:
            return queues[by_hash(message.order_key, len(queues))]
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        return queues[zlib.crc32(keys.encode(), zlib.crc32(message.content)) % len(queues)]

    def places(self, rows: PlainRows) -> Array:
        """Return the place of each row's queue in `queues`, as chosen by `queue`. Raises TopicGone, BrokerError."""
        hashes = np.fromiter(map(zlib.crc32, rows.bodies.to_pylist()), np.int64, len(rows))
        return hashes % len(self.queues(rows.topic))

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic in the batch. Raises TopicGone, BrokerError."""
        found = self._queues.get(topic)
        if found is None:
            found = self._queues[topic] = self._of(topic)
        return found

    def _of(self, topic: str) -> list[Queue]:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = self._cluster.writable(topic)
        if not counts:
            raise BrokerError(f"topic {topic} has no writable queue: check its permission")
        return [Queue(topic, broker, number) for broker in sorted(counts) for number in range(counts[broker])]


def brokers_of(topics: Topics) -> set[str]:
    return {broker for counts in topics.values() for broker in counts}


def merged(layouts: Iterable[Topics]) -> Topics:
    """Return the layout of a batch from those of its tasks. Raises BrokerError if they differ."""
    found: Topics = {}
    for layout in layouts:
        for topic, counts in layout.items():
            if found.setdefault(topic, counts) != counts:
                raise BrokerError(
                    f"the queues of topic {topic} changed while the tasks ran, from {found[topic]} to {counts}: start "
                    "the query again"
                )
    return found


def find_layout(cluster: Cluster, batch: BatchId) -> Topics:
    """Return the layout that brokers remember for a batch; an empty one if none does. Raises BrokerError.

    A broker that does not answer is left out. The batch fails later if it needs this broker.
    """
    saved: dict[str, Topics] = {}
    for broker in sorted(cluster.registered()):
        answer = asked_once(cluster, broker, _request(batch, {}))
        if answer is not None and answer.code == ResponseCode.NO_PERMISSION:
            raise rejected(answer, broker)  # without a look at all layouts, rows could go to other brokers than before
        if answer is None or answer.code != ResponseCode.SUCCESS:
            log.info("broker %s does not return the layout of batch %s: %s", broker, batch, answer)
        else:
            saved[broker] = read_body(answer, BatchQueues).topics
    found = [topics for topics in saved.values() if topics]
    if not found or all(topics == found[0] for topics in found):
        return found[0] if found else {}
    # A layout is stored at all its brokers before a commit. So a layout that a broker lacks has no commit.
    complete = [one for one in found if all(saved.get(broker, one) == one for broker in brokers_of(one))]
    if not complete or any(one != complete[0] for one in complete):
        raise BrokerError(
            f"the brokers remember different layouts of batch {batch}: {msgspec.json.encode(saved).decode()}. Start "
            "all brokers of the topics, and then the query"
        )
    return complete[0]


def save_layout(cluster: Cluster, batch: BatchId, topics: Topics) -> dict[str, int]:
    """Save the layout of a batch at all its brokers.

    Returns the number of rows for each broker that has decided the batch earlier. Raises BrokerError if a broker does
    not answer, or has another layout.
    """
    decided: dict[str, int] = {}
    for broker in sorted(brokers_of(topics)):
        answer = answered(cluster, broker, _request(batch, topics))
        saved = read_body(answer, BatchQueues).topics
        if saved != topics:
            raise BrokerError(
                f"broker {broker} has another layout of batch {batch}, of an earlier run: {saved}, and not {topics}. "
                "Start all brokers of the topics, and then the query"
            )
        if "rows" in answer.ext:
            decided[broker] = int(answer.ext["rows"])
    return decided


def _request(batch: BatchId, topics: Topics) -> Command:
    header = BatchLayoutHeader(job=batch.job, batch=batch.number)
    body = bodies.write(BatchQueues(topics=topics))
    return Command(code=RequestCode.WMQ_BATCH_LAYOUT, ext=headers.write(header), body=body)
