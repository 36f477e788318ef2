"""When the message index adds records: not while a burst of due messages leaves, unless it lags too much."""

from __future__ import annotations

import math

from wheelmq.delay.release import Releaser
from wheelmq.store.index import MessageIndex
from wheelmq.store.store import Store

INDEX_WAITS_BYTES = 512 << 20
"""Maximum lag of the message index, in bytes of the log, while it leaves the processors to a burst."""


class IndexPacing:
    def __init__(self, index: MessageIndex, releaser: Releaser, store: Store) -> None:
        self._index = index
        self._releaser = releaser
        self._store = store

    def poll(self) -> None:
        if not self._waits():
            self._index.poll()

    def next_ms(self) -> int | None:
        """Return when the index adds records, in monotonic milliseconds; None for never, or at the end of a burst."""
        begin_s = None if self._waits() else self._index.next_s()
        return None if begin_s is None else math.ceil(begin_s * 1000)

    def _waits(self) -> bool:
        return self._releaser.has_burst() and self._store.dispatched_to - self._index.indexed_to < INDEX_WAITS_BYTES
