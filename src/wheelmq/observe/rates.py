"""Rates over the last 10 s, 1 min and 10 min, from counters that only grow (RocketMQ: StoreStatsService)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOWS_S = (10, 60, 600)


class Rate:
    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float) -> None:
        self._samples.append((now, self._read()))
        while len(self._samples) > 2 and now - self._samples[1][0] > WINDOWS_S[-1]:
            self._samples.popleft()

    def per_second(self, window_s: float) -> float:
        """Return the rate over the last `window_s` seconds, or over all samples if these cover less."""
        if len(self._samples) < 2:
            return 0.0
        last, value = self._samples[-1]
        for when, before in reversed(self._samples):
            if last - when >= window_s or (when, before) == self._samples[0]:
                return (value - before) / (last - when) if last > when else 0.0
        return 0.0

    def text(self) -> str:
        """Return the rates of the three windows in the format of Apache's runtime info."""
        return " ".join(f"{self.per_second(window):.6g}" for window in WINDOWS_S)
