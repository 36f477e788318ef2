"""The offsets of processed messages that a group commits, for tools that show its lag (option commitGroupOffsets).

Spark's checkpoint is the progress of the query. So a failed commit is only logged, and tried again with the next ones.
"""

from __future__ import annotations

import logging
from collections.abc import Set

from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.errors import BrokerError
from pyspark_rocketmq.offsets import Offsets, Queue
from pyspark_rocketmq.pulls import pull_request
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.codes import ResponseCode

log = logging.getLogger(__name__)


class GroupOffsets:
    """The commits of one group. `begun_at` are the offsets at which the stream began: no commit stores them."""

    def __init__(self, group: str, begun_at: Offsets) -> None:
        self._group = group
        self._seen = begun_at
        self._committed: dict[Queue, int] = dict(begun_at)
        """The last committed offset of each queue."""

    def commit(self, cluster: Cluster, offsets: Offsets, silent: Set[str] = frozenset()) -> None:
        """Commit the offsets of all queues but those at `silent` brokers, and log those that fail.

        Offsets that equal the last ones are not tried again, so that an idle stream does not repeat a warning.
        """
        if offsets == self._seen:
            return
        self._seen = offsets
        absent, failed = set(silent), set[tuple[str, str]]()
        for queue, offset in offsets.items():
            place = (queue.topic, queue.broker)
            if self._committed.get(queue) == offset or queue.broker in absent or place in failed:
                continue
            try:
                cluster.locate(queue.topic, queue.broker)
                self._store(cluster, queue, offset)
            except (BrokerError, TopicGone) as error:
                log.warning(
                    "the offsets of group %s in topic %s at %s were not committed: %s", self._group, *place, error
                )
                failed.add(place)
                if isinstance(error, BrokerError) and error.is_passing:
                    absent.add(queue.broker)
            else:
                self._committed[queue] = offset

    def _store(self, cluster: Cluster, queue: Queue, offset: int) -> None:
        """Store an offset at the broker of its queue. Raises BrokerError."""
        try:
            cluster.commit(self._group, queue, offset)
        except BrokerError as error:
            if error.answer is None or error.answer.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            everything = Subscription.of_tags(queue.topic, "*")  # a broker creates a new group at its first pull
            cluster.call(queue.broker, pull_request(self._group, queue, offset, 1, everything))
            cluster.commit(self._group, queue, offset)
