"""A histogram of durations or lateness. Buckets grow by 5 %, so percentiles are exact to 5 % at any scale."""

from __future__ import annotations

import math

import numpy as np

_GROWTH = 1.05
_BUCKETS = 512
_BUCKETS_PER_E = 1 / math.log(_GROWTH)
"""Buckets between a value and e times this value."""


class Histogram:
    """Counts of values from `least` up. Smaller values count in the first bucket."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.total = 0.0
        self.greatest = 0.0

    def add(self, value: float, times: int = 1) -> None:
        place = 0 if value <= self._least else math.ceil(math.log(value / self._least) * _BUCKETS_PER_E)
        self._counts[place if place < _BUCKETS else -1] += times
        self.count += times
        self.total += value * times
        if value > self.greatest:
            self.greatest = value

    def percentile(self, share: float) -> float:
        """Return the upper bound of the bucket with the percentile `share` (0 to 1), or 0 if nothing was counted."""
        if not self.count:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), share * self.count))
        return min(self._least * _GROWTH**place, self.greatest)

    def count_to(self, bound: float) -> int:
        """Return the number of values in the buckets that end at or before `bound`."""
        if bound < self._least:
            return 0
        place = math.floor(math.log(bound / self._least, _GROWTH) + 1e-9)
        return sum(self._counts[: place + 1])

    def summary(self) -> dict[str, float]:
        """Return count, mean, p50, p99 and greatest value, in the unit of the values."""
        return {
            "count": self.count,
            "mean": self.total / self.count if self.count else 0.0,
            "p50": self.percentile(0.5),
            "p99": self.percentile(0.99),
            "max": self.greatest,
        }
