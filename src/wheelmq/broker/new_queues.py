"""Limits the queues that sends open in one round.

The first message of a queue creates its folder and its file, which takes milliseconds. A round in which thousands of
queues get their first message would hold up all other requests and due messages for seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from wheelmq.store.queues import QueueTable

OPENED_MAX: Final = 8
"""Maximum queues that are opened between two ticks."""

QueueKey = tuple[str, int]
"""Topic and queue id."""


class QueueUnopened(Exception):
    """The send must wait for a later tick: its queue is new, and enough queues were opened in this round."""

    def __init__(self, queue: QueueKey) -> None:
        super().__init__(queue)
        self.queue = queue


class NewQueues:
    """Counts new queues between ticks, and keeps the sends that wait for their turn in order.

    All sends that wait for a queue are served together, so no later send to the queue can overtake one of them.
    """

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._opened = 0
        self._waiting: OrderedDict[QueueKey, list[Callable[[], None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of sends that wait."""
        return self._count

    def check(self, topic: str, queue_id: int) -> None:
        """Count the queue if it is new. Raises QueueUnopened if the message must wait."""
        queue = topic, queue_id
        if queue in self._waiting:
            raise QueueUnopened(queue)
        if self._queues.known_row(topic, queue_id) is None:
            if self._opened >= OPENED_MAX:
                raise QueueUnopened(queue)
            self._opened += 1

    def wait(self, queue: QueueKey, serve: Callable[[], None]) -> None:
        """Call `serve` in a later tick."""
        self._waiting.setdefault(queue, []).append(serve)
        self._count += 1

    def next_ms(self) -> int | None:
        """Return 0 if sends wait for the next tick, and None otherwise."""
        return 0 if self._count else None

    def tick(self) -> None:
        """Begin a new count, and serve the sends that waited for it."""
        self._opened = 0
        for _ in range(len(self._waiting)):
            if self._opened >= OPENED_MAX:
                break
            _, sends = self._waiting.popitem(last=False)
            self._count -= len(sends)
            for serve in sends:
                serve()
