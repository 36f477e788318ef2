"""The times of puts and reads, and a warning for each slow put (RocketMQ: StoreStatsService, DefaultMessageStore)."""

from __future__ import annotations

import logging
from typing import Final

from wheelmq.observe.histogram import Histogram

log = logging.getLogger(__name__)

SLOW_S: Final = 0.5
"""Apache RocketMQ logs each put that takes longer."""


class PutTimes:
    """The times of client puts since the start, and the longest read of a queue."""

    def __init__(self) -> None:
        self.puts = Histogram(least=0.00002)
        self.longest_read_s = 0.0
        self._append_s: float | None = None
        """The time that the append of the current put took; None before its append."""

    def begin(self) -> None:
        self._append_s = None

    def note_append(self, elapsed_s: float) -> None:
        self._append_s = elapsed_s

    def note_put(self, elapsed_s: float, body_bytes: int, result: str) -> None:
        """Count the current put unless it was rejected before its append, as in Apache. Warn if it was slow."""
        if self._append_s is None:
            return
        if self._append_s > SLOW_S:
            log.warning(
                "[NOTIFYME]putMessage in lock cost time(ms)=%d, bodyLength=%d AppendMessageResult=%s",
                round(1000 * self._append_s),
                body_bytes,
                result,
            )
        if elapsed_s > SLOW_S:
            log.warning(
                "putMessage not in lock eclipse time(ms)=%d, bodyLength=%d", round(1000 * elapsed_s), body_bytes
            )
        self.puts.add(elapsed_s)

    def note_kernel_call(self, elapsed_s: float, sends: int, appended_bytes: int) -> None:
        """Count the sends of one kernel call, each with the time of the call, and log a warning if it was slow."""
        if not sends:
            return
        if elapsed_s > SLOW_S:
            log.warning(
                "[NOTIFYME]putMessage in lock cost time(ms)=%d, sends=%d, appended bytes=%d in one kernel call",
                round(1000 * elapsed_s),
                sends,
                appended_bytes,
            )
        self.puts.add(elapsed_s, sends)

    def note_read(self, elapsed_s: float) -> None:
        if elapsed_s > self.longest_read_s:
            self.longest_read_s = elapsed_s
