"""Counters by name and key, with figures over the last minute, hour and day (RocketMQ: StatsItemSet).

A sample copies one table of all counters. A figure is the difference between the newest sample of all and the oldest
one of the window. Apache's hours and days end with their own last sample, up to an hour old.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

SAMPLE_MS: Final = 10_000
"""Interval between two calls of `sample`."""
COUNTERS_MAX: Final = 1 << 16
"""Greatest number of counters. One that has not changed for a day makes room for others."""
_FIRST_ROOM: Final = 64


class _Window(NamedTuple):
    every_ms: int
    samples: int


_WINDOWS: Final = (_Window(SAMPLE_MS, 7), _Window(600_000, 7), _Window(3_600_000, 25))


class WindowFigures(NamedTuple):
    sum: int = 0
    tps: float = 0.0
    """Sum per second."""
    average: float = 0.0
    """Average value per call of `add`."""


class Counted(NamedTuple):
    minute: WindowFigures
    hour: WindowFigures
    day: WindowFigures


class _Ring:
    """Samples of the whole table, the oldest first."""

    def __init__(self, window: _Window, now_ms: int) -> None:
        self.window = window
        self.next_ms = now_ms
        self.taken: deque[tuple[int, npt.NDArray[np.int64]]] = deque(maxlen=window.samples)
        self.first: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """Start time of each row's counter. Samples up to that time belong to an earlier counter or to none."""

    def figures(self, row: int, newest_ms: int, newest: npt.NDArray[np.int64]) -> WindowFigures:
        oldest_ms, oldest = int(self.first[row]), np.zeros(2, np.int64)
        if len(self.taken) == self.window.samples and self.taken[0][0] > oldest_ms:
            oldest_ms, oldest = self.taken[0][0], self.taken[0][1][row]
        total, times = (newest - oldest).tolist()
        return WindowFigures(total, total * 1000 / (newest_ms - oldest_ms), total / times if times else 0.0)


class Stats:
    """The counters. Times are monotonic milliseconds."""

    def __init__(self, now_ms: int) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._used = 0
        self._is_full = False
        self._table: npt.NDArray[np.int64] = np.zeros((_FIRST_ROOM, 2), np.int64)
        self._rings = [_Ring(window, now_ms) for window in _WINDOWS]
        self._now_ms = now_ms

    def add(self, name: str, key: str, value: int, times: int = 1) -> None:
        row = self._rows.get((name, key))
        if row is None:
            row = self._begin(name, key)
        if row >= 0:
            self._table[row, 0] += value
            self._table[row, 1] += times

    def total(self, name: str, key: str) -> int:
        row = self._rows.get((name, key))
        return 0 if row is None else int(self._table[row, 0])

    def keys(self) -> list[tuple[str, str]]:
        """Return name and key of each counter."""
        return list(self._rows)

    def figures(self, name: str, key: str) -> Counted | None:
        row = self._rows.get((name, key))
        return None if row is None else Counted(*(self._figures(row, ring) for ring in self._rings))

    def per_second(self, name: str, key: str) -> float:
        row = self._rows.get((name, key))
        return 0.0 if row is None else self._figures(row, self._rings[0]).tps

    def rates(self, name: str) -> dict[str, float]:
        """Return the last minute's rate of each counter of a name, by key. Omits counters without a sample."""
        ring = self._rings[0]
        if not ring.taken:
            return {}
        newest_ms, newest = ring.taken[-1]
        keys = [(key, row) for (one, key), row in self._rows.items() if one == name and ring.first[row] < newest_ms]
        rows = np.array([row for _, row in keys], np.int64)
        since_ms, before = ring.first[rows], np.zeros(len(rows), np.int64)
        oldest_ms, oldest = ring.taken[0]
        if len(ring.taken) == ring.window.samples:
            whole = np.flatnonzero(since_ms < oldest_ms)
            since_ms[whole], before[whole] = oldest_ms, oldest[rows[whole], 0]
        tps = (newest[rows, 0] - before) * 1000 / (newest_ms - since_ms)
        return {key: rate for (key, _), rate in zip(keys, tps.tolist(), strict=True)}

    def _figures(self, row: int, ring: _Ring) -> WindowFigures:
        newest = self._rings[0].taken
        if not newest or newest[-1][0] <= ring.first[row]:
            return WindowFigures()
        when, table = newest[-1]
        return ring.figures(row, when, table[row])

    def sample(self, now_ms: int) -> None:
        """Take the samples that are due."""
        self._now_ms = now_ms
        for ring in self._rings:
            if now_ms >= ring.next_ms:
                ring.next_ms = now_ms + ring.window.every_ms
                ring.taken.append((now_ms, self._table[: self._used].copy()))
                if ring is self._rings[-1]:
                    self._drop_idle()

    def drop(self, wanted: Callable[[str, str], bool]) -> None:
        for name, key in [pair for pair in self._rows if wanted(*pair)]:
            self._end(name, key)

    def __len__(self) -> int:
        return len(self._rows)

    def _begin(self, name: str, key: str) -> int:
        """Return the row of a new counter, or -1 if there is no room."""
        if not self._free and self._used == COUNTERS_MAX:
            if not self._is_full:
                log.warning(
                    "the limit of %d counters is reached: the broker does not count %s %s", COUNTERS_MAX, name, key
                )
            self._is_full = True
            return -1
        if self._free:
            row = self._free.pop()
        else:
            row = self._used
            self._used += 1
            self._make_room()
        self._table[row] = 0
        for ring in self._rings:
            ring.first[row] = self._now_ms
        self._rows[name, key] = row
        return row

    def _make_room(self) -> None:
        if self._used > len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        for ring in self._rings:
            if len(ring.first) < len(self._table):
                ring.first = np.concatenate((ring.first, np.zeros(len(self._table) - len(ring.first), np.int64)))

    def _end(self, name: str, key: str) -> None:
        self._free.append(self._rows.pop((name, key)))
        self._is_full = False

    def _drop_idle(self) -> None:
        """Drop the counters that have not changed since the oldest sample of the day."""
        taken = self._rings[-1].taken
        if len(taken) < self._rings[-1].window.samples:
            return
        oldest_ms, oldest = taken[0]
        for (name, key), row in list(self._rows.items()):
            known = row < len(oldest) and self._rings[-1].first[row] < oldest_ms
            if known and (self._table[row] == oldest[row]).all():
                self._end(name, key)
