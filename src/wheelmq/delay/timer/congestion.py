"""Count the parked messages of each slot, and reject sends for a full slot (RocketMQ: TimerMessageStore.isReject).

Above the limit, a growing share of the sends is rejected; from twice the limit on, all of them. Apache counts indexed
messages. WheelMQ counts a message from its park on, in the slot of its due time, until it is cancelled. A slot that is
a round of the wheel or more away has no place yet. Its messages count once they have rolled near enough.
"""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt

from wheelmq.delay.fast.congestion import COLUMNS, TIME, WAITING
from wheelmq.delay.settings import NO_LIMIT
from wheelmq.formats.disk.timer import slot_time
from wheelmq.formats.units import Millis


class Congestion:
    """Messages per slot, in a table with one row for each place of the wheel."""

    def __init__(self, limit: int, precision_ms: int, places: int) -> None:
        self.limit = limit
        self._precision_ms = precision_ms
        self.table: npt.NDArray[np.int64] = np.zeros((places if limit < NO_LIMIT else 1, COLUMNS), np.int64)
        self.refused = 0
        """Sends rejected since the start."""
        self._counted_ms = 0

    @property
    def is_limited(self) -> bool:
        return self.limit < NO_LIMIT

    def rejects(self, due_ms: int, randomness: Random) -> bool:
        """Return whether to reject a message due at `due_ms`: by chance between the limit and twice the limit."""
        if not self.is_limited:
            return False
        over = self.waiting(due_ms) - self.limit
        refused = over > 0 and (over >= self.limit or randomness.random() * self.limit < over)
        self.refused += refused
        return refused

    def waiting(self, due_ms: int) -> int:
        time = self._time(due_ms)
        row = self.table[time % len(self.table)]
        return int(row[WAITING]) if row[TIME] == time else 0

    def add(self, due_ms: int, store_ms: int) -> None:
        """Count a message due at `due_ms` that a record of store time `store_ms` parked."""
        if self.is_limited and self._is_near(due_ms, store_ms):
            self._add(self._time(due_ms), 1)

    def roll(self, due_ms: int, parked_ms: int, store_ms: int) -> None:
        """Count a message parked at `parked_ms` that is parked again, unless it counted before."""
        if not self._is_near(due_ms, max(parked_ms, self._counted_ms)):
            self.add(due_ms, store_ms)

    def remove(self, due_ms: int) -> None:
        time = self._time(due_ms)
        row = self.table[time % len(self.table)]
        if row[TIME] == time and row[WAITING] > 0:
            row[WAITING] -= 1

    def count(self, due_ms: npt.NDArray[np.int64], now_ms: Millis) -> None:
        """Count the messages that recovery found pending."""
        self._counted_ms = now_ms
        if not self.is_limited:
            return
        times = (due_ms - 1) // self._precision_ms
        near = times - now_ms // self._precision_ms < len(self.table)
        times, counts = np.unique(times[near], return_counts=True)
        for time, count in zip(times.tolist(), counts.tolist(), strict=True):
            self._add(time, count)

    def _add(self, time: int, count: int) -> None:
        row = self.table[time % len(self.table)]
        if row[TIME] != time:
            row[:] = time, 0
        row[WAITING] += count

    def _time(self, due_ms: int) -> int:
        return slot_time(Millis(due_ms), self._precision_ms) // self._precision_ms

    def _is_near(self, due_ms: int, since_ms: int) -> bool:
        return self._time(due_ms) - since_ms // self._precision_ms < len(self.table)
