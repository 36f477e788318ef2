"""The key index: from the hash of a delete key to the parked messages that may bear it.

An open-addressing table of (hash, origin) pairs. It only grows; when it is two thirds full it is rebuilt without the
messages that are settled, so its size follows what is pending. A hash may stand for several messages, and two keys
may share a hash: whoever asks reads the record to be sure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wheelmq.delay.done import DoneBits, Origins
from wheelmq.formats.disk.origin import Origin
from wheelmq.formats.kernels import jit
from wheelmq.formats.kernels import keys as kernel


class KeyIndex:
    """Hashes of delete keys; 0 stands for a free place."""

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
