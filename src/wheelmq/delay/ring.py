"""The ring: due references in buckets of one millisecond, which share each append.

In the ring, a burst at one instant delays no bucket of another millisecond. Messages of a bucket leave in the order
of parking.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np

from wheelmq.delay import refs as ref
from wheelmq.delay.refs import Refs

QUANTUM = 512
"""References in one append. The buckets in the ring share them."""
SHARES_MAX = 8
"""A bucket's share is at least QUANTUM // SHARES_MAX references.

So in a long ring small buckets leave whole: a small part of a bucket costs as much as a large one.
"""
RING_MAX = 4 * QUANTUM
"""Limit of the buckets in the ring. This number of buckets is enough to share the appends."""
BURST = 16 * QUANTUM
"""Number of references in hand from which there is a burst.

Then each append releases more references, and a smaller part of the time goes to the other work of a tick.
"""
BURST_QUANTA = 2
"""Factor of the references in one append during a burst."""


class _Bucket:
    """The references of one millisecond, in parts that were armed together."""

    def __init__(self, fire_ms: int) -> None:
        self.fire_ms = fire_ms
        self.parts: deque[Refs] = deque()

    def take(self, count: int) -> list[Refs]:
        """Take `count` references from the front, or all of them. Returns their parts."""
        taken: list[Refs] = []
        while count and self.parts:
            part = self.parts.popleft()
            if len(part) > count:
                self.parts.appendleft(part[count:])
            taken.append(part[:count])
            count -= len(taken[-1])
        return taken


class Ring:
    """The buckets, in the order of their turns."""

    def __init__(self) -> None:
        self._ring: deque[_Bucket] = deque()
        self._buckets: dict[int, _Bucket] = {}
        self.count = 0

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def room(self) -> int:
        return RING_MAX - len(self._ring)

    @property
    def has_burst(self) -> bool:
        return self.count >= BURST

    def earliest_ms(self) -> int | None:
        return min(self._buckets, default=None)

    def late_ms(self, now_ms: int) -> int:
        """Return the lateness of the oldest bucket; 0 for a short ring, as a burst has few instants."""
        return now_ms - min(self._buckets) if len(self._ring) > QUANTUM // SHARES_MAX else 0

    def put(self, refs: Refs) -> None:
        """Put references, sorted by fire time, at the end of their buckets."""
        self.count += len(refs)
        if refs[0, ref.FIRE_MS] == refs[-1, ref.FIRE_MS]:
            self._bucket_of(refs).parts.append(refs)
            return
        bounds = [0, *(np.flatnonzero(np.diff(refs[:, ref.FIRE_MS])) + 1).tolist(), len(refs)]
        for start, stop in pairwise(bounds):
            part = refs[start:stop]
            self._bucket_of(part).parts.append(part)

    def put_back(self, parts: list[Refs]) -> None:
        """Put the result of `take` back to the front of their buckets."""
        for part in reversed(parts):
            self._bucket_of(part).parts.appendleft(part)
            self.count += len(part)

    def _bucket_of(self, part: Refs) -> _Bucket:
        """Return the bucket of references that share a millisecond. Create it in the ring if there is none."""
        fire_ms = int(part[0, ref.FIRE_MS])
        bucket = self._buckets.get(fire_ms)
        if bucket is None:
            bucket = self._buckets[fire_ms] = _Bucket(fire_ms)
            self._ring.append(bucket)
        return bucket

    def take(self, halvings: int = 0) -> list[Refs]:
        """Take the parts of the next append, halved `halvings` times. Each part has the references of one bucket.

        Each bucket gives its share, and may use the rest of the shares of earlier buckets. When each bucket had its
        turn, the buckets with more references use the remaining room.
        """
        parts: list[Refs] = []
        left = quantum = max(1, QUANTUM * (BURST_QUANTA if self.has_burst else 1) >> halvings)
        waiting = len(self._ring)
        while left and self._ring:
            bucket = self._ring.popleft()
            taken = bucket.take(min(left, max(1, QUANTUM // SHARES_MAX, left // max(1, waiting))))
            waiting -= 1
            parts += taken
            left -= sum(map(len, taken))
            if bucket.parts:
                self._ring.append(bucket)
            else:
                del self._buckets[bucket.fire_ms]
        self.count -= quantum - left
        return parts
