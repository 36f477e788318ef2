"""Rates over the last 10 s, minute and ten minutes, from counters that only grow (RocketMQ: StoreStatsService)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOWS_S = (10, 60, 600)


class Rate:
    """Samples a counter now and then and tells how fast it grows."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        """Take a sample; `now` in seconds, monotonic."""
        self._samples.append((now, self._read()))
        while len(self._samples) > 2 and now - self._samples[1][0] > WINDOWS_S[-1]:
            self._samples.popleft()

    def per_second(self, window_s: float) -> float:
        """The rate over the last `window_s` seconds, or as long as there are samples."""
        if len(self._samples) < 2:
            return 0.0
        last, value = self._samples[-1]
        for when, before in reversed(self._samples):
            if last - when >= window_s or (when, before) == self._samples[0]:
                return (value - before) / (last - when) if last > when else 0.0
        return 0.0

    def text(self) -> str:
        """The rates of the three windows, as Apache's runtime info has them."""
        return " ".join(f"{self.per_second(window):.6g}" for window in WINDOWS_S)
