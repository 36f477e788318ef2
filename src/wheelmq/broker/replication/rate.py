"""The rate at which bytes go to a replica."""

from __future__ import annotations

WINDOW_MS = 1000


class ByteRate:
    """Counts bytes, and gives their number in the last whole second. Times are monotonic milliseconds."""

    def __init__(self, now_ms: int) -> None:
        self.per_second = 0
        self._began_ms = now_ms
        self._count = 0

    def add(self, count: int, now_ms: int) -> None:
        passed_ms = now_ms - self._began_ms
        if passed_ms >= WINDOW_MS:
            self.per_second = self._count * 1000 // passed_ms
            self._began_ms, self._count = now_ms, 0
        self._count += count
