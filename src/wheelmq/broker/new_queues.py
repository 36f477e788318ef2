"""Limits the queues that sends open between two ticks.

A queue's first message creates its folder and file, which takes milliseconds. Thousands would hold up all else.
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
    """Counts new queues between ticks. The sends that wait for a queue are served together: none overtakes another."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._opened = 0
        self._waiting: OrderedDict[QueueKey, list[Callable[[], None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
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
        self._waiting.setdefault(queue, []).append(serve)
        self._count += 1

    def next_ms(self) -> int | None:
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
