"""The key index: from the hash of a delete key to the parked messages that may bear it.

An open-addressing table of (hash, index) pairs. It only grows; when it is two thirds full it is rebuilt without the
messages that are settled, so its size follows what is pending. A hash may stand for several messages, and two keys
may share a hash: whoever asks reads the record to be sure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import IndexBits, Indices
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import keys as kernel


class KeyIndex:
    """Hashes of delete keys; 0 stands for a free place."""

    def __init__(self, capacity: int = 1 << 12) -> None:
        assert capacity & (capacity - 1) == 0
        self._hashes: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self._indices: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.count = 0

    def add(self, hashes: Indices, indices: Indices, done: IndexBits) -> None:
        """Add pairs; pairs whose hash is 0 are left out."""
        if (self.count + len(hashes)) * 3 > len(self._hashes) * 2:
            self._rebuild(len(hashes), done)
        self._insert(hashes, indices)

    def find(self, key_hash: int) -> list[int]:
        """Indices of the messages whose key may have `key_hash`, oldest first."""
        mask = len(self._hashes) - 1
        at = key_hash & mask
        found = []
        while self._hashes[at]:
            if self._hashes[at] == key_hash:
                found.append(int(self._indices[at]))
            at = (at + 1) & mask
        return sorted(found)

    def _insert(self, hashes: Indices, indices: Indices) -> None:
        if jit.available():
            pairs = np.ascontiguousarray(hashes), np.ascontiguousarray(indices)
            self.count += kernel.insert(self._hashes, self._indices, *pairs)
            return
        mask = len(self._hashes) - 1
        for key_hash, index in zip(hashes.tolist(), indices.tolist(), strict=True):
            if key_hash == 0:
                continue
            at = key_hash & mask
            while self._hashes[at]:
                at = (at + 1) & mask
            self._hashes[at] = key_hash
            self._indices[at] = index
            self.count += 1

    def _rebuild(self, more: int, done: IndexBits) -> None:
        used = self._hashes != 0
        hashes, indices = self._hashes[used], self._indices[used]
        pending = ~done.get(indices)
        hashes, indices = hashes[pending], indices[pending]
        capacity = len(self._hashes)
        while (len(hashes) + more) * 3 > capacity:
            capacity *= 2
        self._hashes = np.zeros(capacity, np.int64)
        self._indices = np.zeros(capacity, np.int64)
        self.count = 0
        self._insert(hashes, indices)
