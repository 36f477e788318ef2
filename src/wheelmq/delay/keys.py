"""Find the parked messages that may have a delete key.

The message index finds messages in the commit log, so they need no memory. Messages that it does not have yet are in
small tables, each dropped as a whole once the index has passed it. Messages in blocks are in a separate table, and all
messages while the index is off (docs/adr/0014-cancel-by-the-message-index.md). Several messages may have the same hash,
so a caller reads the record.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import DoneBits, Origins
from wheelmq.delay.fast import keys as kernel
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.kernels import jit
from wheelmq.formats.units import LogPosition
from wheelmq.store.index import MessageIndex

FRESH_KEYS: Final = 1 << 16
"""Keys in one table of messages that the message index does not have yet. There are two or three such tables."""
SHARDS_LOG2: Final = 8
SHARDS: Final = 1 << SHARDS_LOG2
SHARD_PLACES: Final = 16
"""Places in an empty shard."""
ROWS_PER_SETTLED: Final = 4
"""Rows of the sharded table that are checked for each settled message."""
ROWS_LEAST: Final = 16
"""The least number of rows that the rebuild of a shard counts as. It is about the work for an empty shard."""
_MIX: Final = 0x9E3779B97F4A7C15


class ParkedKeys:
    """Hashes of the delete keys of messages that the message index does not have."""

    def __init__(self) -> None:
        self.index: MessageIndex | None = None
        """Finds messages in the log. Without an index, they are in the table too."""
        self._table = ShardedKeys()
        self._fresh: deque[tuple[LogPosition, KeyIndex]] = deque()
        """Tables of messages in the log, oldest first, each with a log position after all its messages."""

    def use_index(self, index: MessageIndex | None) -> None:
        """Find messages in the log by `index` from now on. No key of such a message has been added."""
        self.index = index

    def hashes(self) -> Origins:
        return self._table.hashes()

    @property
    def count(self) -> int:
        return self._table.count + sum(keys.count for _, keys in self._fresh)

    def add(self, hashes: Origins, origins: Origins, done: DoneBits, before: LogPosition) -> None:
        """Add pairs of messages in the log. Pairs whose hash is 0 are left out.

        The messages are before log position `before`, and not before the messages added until now.
        """
        if self.index is None:
            self._table.add(hashes, origins, done)
            return
        while self._fresh and self._fresh[0][0] <= self.index.indexed_to:
            self._fresh.popleft()
        keys = self._fresh.pop()[1] if self._fresh and self._fresh[-1][1].count < FRESH_KEYS else KeyIndex()
        keys.add(hashes, origins, done)
        self._fresh.append((before, keys))

    def add_elsewhere(self, hashes: Origins, origins: Origins, done: DoneBits) -> None:
        self._table.add(hashes, origins, done)

    def drop_settled(self, settled: int, done: DoneBits) -> None:
        """Drop rows of settled messages, after `settled` more messages in the log were settled."""
        if self.index is None:
            self._table.sweep(settled, done)

    def drop_settled_elsewhere(self, settled: int, waiting: int, done: DoneBits) -> None:
        """Drop rows of settled messages, after `settled` more messages that are not in the log were settled.

        `waiting` is the number of pending messages that are not in the log. Without a message index, `drop_settled`
        covers them too.
        """
        if self.index is None:
            return
        if waiting:
            self._table.sweep(settled, done)
        else:
            self._table.clear()

    def find(self, key_hash: int) -> list[Origin]:
        """Return the origins of the messages in memory whose key may have `key_hash`, sorted."""
        found = [self._table.find(key_hash), *(keys.find(key_hash) for _, keys in self._fresh)]
        return sorted(origin for some in found for origin in some)


class ShardedKeys:
    """A table of (hash, origin) pairs in many small tables, which are rebuilt one at a time.

    So no growth or removal stops the broker for long: with ten million rows, a shard has 40,000. There are about as
    many rows of settled messages as of pending ones, at most.
    """

    def __init__(self) -> None:
        self._shards = [KeyIndex(SHARD_PLACES) for _ in range(SHARDS)]
        self._rows_due = 0
        """Rows that the sweep must still check because of settled messages."""
        self._next = 0
        """The shard that the sweep rebuilds next."""
        self.count = 0

    def add(self, hashes: Origins, origins: Origins, done: DoneBits) -> None:
        """Add pairs. Pairs whose hash is 0 are left out."""
        numbers = (hashes.astype(np.uint64) * np.uint64(_MIX)) >> np.uint64(64 - SHARDS_LOG2)
        order = np.argsort(numbers, kind="stable")
        borders = np.flatnonzero(np.diff(numbers[order])) + 1
        for mine in np.split(order, borders) if len(order) else ():
            shard = self._shards[int(numbers[mine[0]])]
            self.count -= shard.count
            shard.add(hashes[mine], origins[mine], done)
            self.count += shard.count

    def find(self, key_hash: int) -> list[Origin]:
        return self._shards[(key_hash * _MIX & (1 << 64) - 1) >> 64 - SHARDS_LOG2].find(key_hash)

    def hashes(self) -> Origins:
        return np.concatenate([shard.hashes() for shard in self._shards])

    def sweep(self, settled: int, done: DoneBits) -> None:
        """Rebuild shards without their settled messages, as many as `settled` more settled messages require."""
        self._rows_due = min(self._rows_due + ROWS_PER_SETTLED * settled, ROWS_PER_SETTLED * self.count)
        while self._rows_due > 0:
            shard = self._shards[self._next]
            self._rows_due -= max(shard.count, ROWS_LEAST)
            self.count -= shard.count
            shard.rebuild(0, done)
            self.count += shard.count
            self._next = (self._next + 1) % SHARDS

    def clear(self) -> None:
        """Drop all rows. No message of the table is pending."""
        if self.count:
            self._shards = [KeyIndex(SHARD_PLACES) for _ in range(SHARDS)]
            self.count = self._rows_due = 0


class KeyIndex:
    """An open-addressing table of (hash, origin) pairs; hash 0 is free. At two thirds full, it drops settled ones."""

    def __init__(self, capacity: int = 1 << 12) -> None:
        assert capacity & (capacity - 1) == 0
        self._capacity_min = capacity
        self._hashes: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._origins: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.count = 0

    def add(self, hashes: Origins, origins: Origins, done: DoneBits) -> None:
        if (self.count + len(hashes)) * 3 > len(self._hashes) * 2:
            self.rebuild(len(hashes), done)
        self._insert(hashes, origins)

    def find(self, key_hash: int) -> list[Origin]:
        mask = len(self._hashes) - 1
        at = key_hash & mask
        found = []
        while self._hashes[at]:
            if self._hashes[at] == key_hash:
                found.append(Origin(int(self._origins[at])))
            at = (at + 1) & mask
        return sorted(found)

    def hashes(self) -> Origins:
        found: Origins = self._hashes[self._hashes != 0]
        return found

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

    def rebuild(self, more: int, done: DoneBits) -> None:
        """Drop the rows of settled messages, and resize the table for the remaining rows and `more` new ones."""
        used = self._hashes != 0
        hashes, origins = self._hashes[used], self._origins[used]
        pending = ~done.get(origins)
        hashes, origins = hashes[pending], origins[pending]
        capacity = self._capacity_min
        while (len(hashes) + more) * 3 > capacity:
            capacity *= 2
        self._hashes = np.zeros(capacity, np.int64)
        self._origins = np.zeros(capacity, np.int64)
        self.count = 0
        self._insert(hashes, origins)
