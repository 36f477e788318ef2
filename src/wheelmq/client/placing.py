"""Which queue a message goes to (RocketMQ: MQFaultStrategy, SelectMessageQueueByHash)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.routes import NoBroker, TopicRoute
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.system.clock import Clock

AVOIDED_S: Final = 10.0
"""How long a broker that could not be reached is passed over while there are others."""


class Placing:
    """Takes the queues in turn, and passes over brokers that failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._failed_s: dict[str, float] = {}

    def begin_at(self, turn: int) -> None:
        """Not every producer begins with the same queue."""
        self._turn = turn

    def failed(self, broker_name: str) -> None:
        """The broker could not be reached."""
        self._failed_s[broker_name] = self._clock.monotonic()

    def worked(self, broker_name: str) -> None:
        """The broker has answered."""
        self._failed_s.pop(broker_name, None)

    def pick(self, route: TopicRoute, message: OutgoingMessage, tried: Sequence[str] = ()) -> QueueName:
        """The queue for `message`: the one that it names or its key does, or else the next in turn, of a broker that
        was not `tried` and has not failed if there is one.

        Raises NoBroker when the topic has no queue to write to, ValueError for a queue that it has not.
        """
        if not route.writable:
            raise NoBroker(f"no broker takes messages for {route.topic}: its queues may not be written to")
        if message.select is not None:
            queue = message.select(route.writable)
            if queue not in route.writable:
                raise ValueError(f"select gave {queue}, which is no queue of {route.topic}")
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
    """The index that Apache's client picks for a key of text, so that producers in Java and here agree."""
    return abs(java_hash(key)) % count
