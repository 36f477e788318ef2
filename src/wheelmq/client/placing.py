"""Selects the queue of a message (RocketMQ: MQFaultStrategy, SelectMessageQueueByHash)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.routes import NoBroker, NotWritable, TopicRoute
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.system.clock import Clock

AVOIDED_S: Final = 10.0
"""How long an unreachable broker is avoided while other brokers are available."""


class Placing:
    """Round-robin selection of queues that avoids failed brokers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._failed_s: dict[str, float] = {}

    def begin_at(self, turn: int) -> None:
        """Start the round-robin at `turn`, so that not all producers start at the same queue."""
        self._turn = turn

    def failed(self, broker_name: str) -> None:
        self._failed_s[broker_name] = self._clock.monotonic()

    def worked(self, broker_name: str) -> None:
        self._failed_s.pop(broker_name, None)

    def pick(self, route: TopicRoute, message: OutgoingMessage, tried: Sequence[str] = ()) -> QueueName:
        """Return the queue for `message`.

        `select` or `order_key` decides if present, `queue_id` restricts the choice. Otherwise the next queue in turn is
        used, if possible of a broker that is not in `tried` and has not failed. Raises NoBroker if the topic has no
        writable queue, and ValueError for a queue that the topic does not have.
        """
        if not route.writable:
            if not route.masters:
                raise NoBroker(f"no master is registered that has topic {route.topic}")
            raise NotWritable(f"no broker accepts messages for {route.topic}: none of its queues is writable")
        if message.select is not None:
            queue = message.select(route.writable)
            if queue not in route.writable:
                raise ValueError(f"select returned {queue}, which is not a writable queue of {route.topic}")
            return queue
        if message.order_key is not None:
            return route.writable[by_hash(message.order_key, len(route.writable))]
        queues = [queue for queue in route.writable if message.queue_id in (None, queue.queue_id)]
        if not queues:
            highest = max(queue.queue_id for queue in route.writable)
            raise ValueError(f"{route.topic} has no queue {message.queue_id}: its queues are 0 to {highest}")
        since_s = self._clock.monotonic() - AVOIDED_S
        avoided = {name for name, failed_s in self._failed_s.items() if failed_s > since_s}
        fresh = [queue for queue in queues if queue.broker_name not in tried]
        better = [queue for queue in fresh if queue.broker_name not in avoided] or fresh or queues
        self._turn += 1
        return better[self._turn % len(better)]


def by_hash(key: str, count: int) -> int:
    """Return the queue index that Apache's client selects for a text key, so that Java and Python producers agree."""
    return abs(java_hash(key)) % count
