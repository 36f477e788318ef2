"""From a delete key to the parked messages that may bear it.

What is parked in the log is found by the message index, so that nothing is in memory for it; but for what that does not
hold yet, which stands in small tables that go as it follows. What is parked elsewhere, and all there is where the
message index is off, stands in one table (docs/adr/0014-cancel-by-the-message-index.md). A hash may stand for several
messages, and two keys may share a hash: whoever asks reads the record to be sure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import DoneBits, Origins
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import keys as kernel
from wheelmq.formats.units import LogPosition
from wheelmq.store.index import MessageIndex

FRESH_KEYS: Final = 1 << 16
"""Keys in one table of what the message index does not hold yet: it goes as a whole, so two or three are there."""


class ParkedKeys:
    """Hashes of delete keys, of what no message index holds."""

    def __init__(self) -> None:
        self.index: MessageIndex | None = None
        """Finds what is parked in the log; None where that is in the table too."""
        self._table = KeyIndex()
        self._fresh: deque[tuple[LogPosition, KeyIndex]] = deque()
        """Of messages in the log, oldest first, each with the log position before which all of them stand."""

    @property
    def count(self) -> int:
        """Keys in memory."""
        return self._table.count + sum(keys.count for _, keys in self._fresh)

    def add(self, hashes: Origins, origins: Origins, done: DoneBits, before: LogPosition) -> None:
        """Add pairs of messages in the log, all of which stand before `before`, and not before those added until now.
        Pairs whose hash is 0 are left out."""
        if self.index is None:
            self._table.add(hashes, origins, done)
            return
        while self._fresh and self._fresh[0][0] <= self.index.indexed_to:
            self._fresh.popleft()
        keys = self._fresh.pop()[1] if self._fresh and self._fresh[-1][1].count < FRESH_KEYS else KeyIndex()
        keys.add(hashes, origins, done)
        self._fresh.append((before, keys))

    def add_elsewhere(self, hashes: Origins, origins: Origins, done: DoneBits) -> None:
        """Add pairs of messages that are not in the log."""
        self._table.add(hashes, origins, done)

    def find(self, key_hash: int) -> list[Origin]:
        """Origins of the messages in memory whose key may have `key_hash`, of each stream the oldest first."""
        tables = (self._table, *(keys for _, keys in self._fresh))
        return sorted(origin for table in tables for origin in table.find(key_hash))


class KeyIndex:
    """An open-addressing table of (hash, origin) pairs; a hash of 0 stands for a free place.

    It only grows; when it is two thirds full it is rebuilt without the messages that are settled, so its size follows
    what is pending.
    """

    def __init__(self, capacity: int = 1 << 12) -> None:
        assert capacity & (capacity - 1) == 0
        self._hashes: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._origins: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.count = 0

    def add(self, hashes: Origins, origins: Origins, done: DoneBits) -> None:
        """Add pairs; pairs whose hash is 0 are left out."""
        if (self.count + len(hashes)) * 3 > len(self._hashes) * 2:
            self._rebuild(len(hashes), done)
        self._insert(hashes, origins)

    def find(self, key_hash: int) -> list[Origin]:
        """Origins of the messages whose key may have `key_hash`, of each stream the oldest first."""
        mask = len(self._hashes) - 1
        at = key_hash & mask
        found = []
        while self._hashes[at]:
            if self._hashes[at] == key_hash:
                found.append(Origin(int(self._origins[at])))
            at = (at + 1) & mask
        return sorted(found)

    def _insert(self, hashes: Origins, origins: Origins) -> None:
        if jit.available():
            pairs = np.ascontiguousarray(hashes), np.ascontiguousarray(origins)
            self.count += kernel.insert(self._hashes, self._origins, *pairs)
            return
        mask = len(self._hashes) - 1
        for key_hash, origin in zip(hashes.tolist(), origins.tolist(), strict=True):
            if key_hash == 0:
                continue
            at = key_hash & mask
            while self._hashes[at]:
                at = (at + 1) & mask
            self._hashes[at] = key_hash
            self._origins[at] = origin
            self.count += 1

    def _rebuild(self, more: int, done: DoneBits) -> None:
        used = self._hashes != 0
        hashes, origins = self._hashes[used], self._origins[used]
        pending = ~done.get(origins)
        hashes, origins = hashes[pending], origins[pending]
        capacity = len(self._hashes)
        while (len(hashes) + more) * 3 > capacity:
            capacity *= 2
        self._hashes = np.zeros(capacity, np.int64)
        self._origins = np.zeros(capacity, np.int64)
        self.count = 0
        self._insert(hashes, origins)
