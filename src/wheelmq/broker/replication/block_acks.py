"""The answers for messages in blocks that wait for replicas.

An answer waits for one message: the block's number, and the index of its unit.
"""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.broker.flush import WaitingAnswers
from wheelmq.broker.replication.block_source import BlockSource
from wheelmq.broker.replication.settings import ReplicationSettings
from wheelmq.system.clock import Clock


class BlockAcks:
    """Ends waits once enough replicas have the message. Times are monotonic milliseconds."""

    def __init__(self, source: BlockSource, settings: ReplicationSettings, clock: Clock) -> None:
        self._source = source
        self._settings = settings
        self._clock = clock
        self._by_block: dict[int, WaitingAnswers] = {}

    def wait(self, number: int, index: int, end: Callable[[bool], None]) -> None:
        """Call `end` with True once enough replicas have the message, or with False after the timeout."""
        if index < self._source.confirmed(number):
            end(True)
        else:
            self._by_block.setdefault(number, WaitingAnswers()).add(index + 1, self._clock.monotonic_ms(), end)

    def poll(self, now_ms: int) -> None:
        """End the waits that are over."""
        for number in list(self._by_block):
            self.free(number)
        self._end_overdue(now_ms - self._settings.slave_timeout_ms)

    def free(self, number: int) -> None:
        """End the waits for the messages of a block that enough replicas have."""
        answers = self._by_block.get(number)
        if answers is not None:
            answers.free(self._source.confirmed(number))
            self._drop_empty(number)

    def next_ms(self) -> int | None:
        """Return when the next wait is over; None without a wait."""
        began = (answers.oldest_ms() for answers in self._by_block.values())
        oldest_ms = min((one for one in began if one is not None), default=None)
        return None if oldest_ms is None else oldest_ms + self._settings.slave_timeout_ms

    def end_all(self) -> None:
        """End all waits without success, because the broker is a master no more."""
        self._end_overdue(None)

    def _end_overdue(self, before_ms: int | None) -> None:
        for number in list(self._by_block):
            self._by_block[number].end_overdue(before_ms)
            self._drop_empty(number)

    def _drop_empty(self, number: int) -> None:
        if not self._by_block[number]:
            del self._by_block[number]
