"""Awaited releases: fired references of a slave, until its log shows that the master has released their messages."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from wheelmq.delay.pending import PendingTable
from wheelmq.delay.refs import FIRE_MS, ORIGIN, Refs, by_fire_time
from wheelmq.formats.units import Millis

TAKE_MAX: Final = 100_000
"""Limit of the cost (armed.cost_of) of the armed references that one check takes: about 1 ms."""
CHECK_MAX: Final = 100_000
"""References in one chunk. One check reads earlier ones up to about this number, also in about 1 ms."""
CHECK_MS: Final = 100
"""Longest time between two checks while references wait. New bytes of the log mostly cause a check before."""
_ALL: Final = 1 << 62


class AwaitedReleases:
    """Takes fired references from the armed ones, and drops those of settled messages."""

    def __init__(self, pending: PendingTable) -> None:
        self._pending = pending
        self._chunks: deque[Refs] = deque()
        """References whose messages were pending at the last check. Those that wait longest for a check come first."""
        self._is_slave = False

    @property
    def count(self) -> int:
        return sum(map(len, self._chunks))

    def check(self, now_ms: Millis) -> None:
        """Take references that fire by `now_ms`. Drop the settled ones among them and among some earlier ones."""
        self._is_slave = True
        self._check(now_ms, TAKE_MAX, CHECK_MAX)

    def end(self, now_ms: Millis) -> None:
        """Arm the references of pending messages again, because this broker is the master now and releases them."""
        if self._is_slave:
            self._check(now_ms, _ALL, _ALL)
            while self._chunks:
                self._pending.armed.requeue(self._chunks[0])
                self._chunks.popleft()
            self._is_slave = False

    def next_ms(self, now_ms: Millis) -> int | None:
        """Return the wall time of the next check; None if no reference is armed or waits."""
        fire_ms = self._pending.armed.next_fire_ms()
        if not self._chunks:
            return fire_ms
        return now_ms + CHECK_MS if fire_ms is None else min(fire_ms, now_ms + CHECK_MS)

    def earliest_ms(self) -> int | None:
        """Return the least fire time, or None without references."""
        return min((int(refs[0, FIRE_MS]) for refs in self._chunks), default=None)

    def _check(self, now_ms: Millis, take_max: int, check_max: int) -> None:
        taken = self._pending.armed.take_due(now_ms, take_max)
        while self._chunks and check_max > 0:
            taken.append(self._chunks.popleft())
            check_max -= len(taken[-1])
        if not taken:
            return
        try:
            refs = np.concatenate(taken)
            pending = by_fire_time(refs[~self._pending.done.get(refs[:, ORIGIN])])
        except BaseException:
            self._chunks.extend(taken)
            raise
        self._chunks.extend(pending[at : at + CHECK_MAX] for at in range(0, len(pending), CHECK_MAX))
