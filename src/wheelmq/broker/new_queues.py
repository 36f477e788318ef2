"""Limits the queues that sends open in one round.

The first message of a queue creates its folder and its file, which takes milliseconds. A round in which thousands of
queues get their first message would hold up all other requests and due messages for seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from wheelmq.store.queues import QueueTable

OPENED_MAX: Final = 8
"""Queues that are opened between two ticks."""


class QueueUnopened(Exception):
    """The queue is new and enough queues were opened in this round: serve the send after the next tick."""


class NewQueues:
    """Counts new queues between ticks, and keeps the sends that wait for their turn in order."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._opened = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, topic: str, queue_id: int) -> None:
        """Count the queue if it is new. Raises QueueUnopened if its first message must wait."""
        if self._queues.known_row(topic, queue_id) is None:
            if self._opened >= OPENED_MAX:
                raise QueueUnopened
            self._opened += 1

    def wait(self, serve: Callable[[], None]) -> None:
        """Call `serve` in a later tick."""
        self._waiting.append(serve)

    def tick(self) -> None:
        """Begin a new count, and serve the sends that waited for it."""
        self._opened = 0
        for _ in range(len(self._waiting)):
            if self._opened >= OPENED_MAX:
                break
            self._waiting.popleft()()
