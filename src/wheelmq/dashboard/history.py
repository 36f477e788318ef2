"""The last hour of a broker: samples of its counters, and the points of the charts. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

HOUR_MS: Final = 3_600_000
SAMPLES_MAX: Final = 400
"""Samples of a little more than an hour, one every 10 s."""


class Sample(NamedTuple):
    """Counters of a broker at one moment. Those of messages begin at 0 with each start of the broker."""

    at_ms: int
    boot_ms: int
    puts: int
    gets: int
    pending: int
    released: int
    late_to: tuple[tuple[int, int], ...]
    """The numbers of releases that were at most so many milliseconds late: bound and number."""


class ChartPoint(NamedTuple):
    """The figures of one interval. A value is None if the interval has none."""

    at_ms: int
    """The end of the interval."""
    puts_per_s: float
    gets_per_s: float
    pending: int
    lateness_p50_ms: float | None
    lateness_p99_ms: float | None


def sample_of(found: dict[str, Any]) -> Sample:
    """Return the sample of an answer of WMQ_METRICS. It needs no overview."""
    lateness, throughput = found["timers"]["lateness_ms"], found["throughput"]
    return Sample(
        at_ms=int(found["now_ms"]),
        boot_ms=int(found["boot_ms"]),
        puts=int(throughput["puts"]),
        gets=int(throughput["gets"]),
        pending=int(found["timers"]["pending"]),
        released=int(lateness["count"]),
        late_to=tuple((int(bound), int(count)) for bound, count in lateness["up_to"]),
    )


class HourHistory:
    """The samples of the last hour."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        """Append a sample. A clock that was set back makes the older samples useless."""
        if self._samples and sample.at_ms <= self._samples[-1].at_ms:
            self._samples.clear()
        self._samples.append(sample)

    @property
    def first_ms(self) -> int | None:
        """Time of the oldest sample; None without samples."""
        return self._samples[0].at_ms if self._samples else None

    def points(self, now_ms: int, step_ms: int) -> list[ChartPoint]:
        """Return the points of the last hour, one for each interval of `step_ms` that has a sample at both ends."""
        last_of: dict[int, Sample] = {}
        for sample in self._samples:
            if sample.at_ms > now_ms - HOUR_MS - step_ms:
                last_of[sample.at_ms // step_ms] = sample
        return list(_points(list(last_of.values())))

    def recent(self, window_ms: int) -> ChartPoint | None:
        """Return the point from the oldest sample of the last `window_ms` to the newest; None without two samples."""
        if not self._samples:
            return None
        newest = self._samples[-1]
        oldest = next(sample for sample in self._samples if sample.at_ms >= newest.at_ms - window_ms)
        return next(_points([oldest, newest]), None) if oldest is not newest else None


def _points(samples: list[Sample]) -> Iterator[ChartPoint]:
    for before, after in pairwise(samples):
        if before.boot_ms != after.boot_ms:
            continue  # the counters began again
        seconds = (after.at_ms - before.at_ms) / 1000
        yield ChartPoint(
            at_ms=after.at_ms,
            puts_per_s=max(0, after.puts - before.puts) / seconds,
            gets_per_s=max(0, after.gets - before.gets) / seconds,
            pending=after.pending,
            lateness_p50_ms=_percentile(before, after, 0.5),
            lateness_p99_ms=_percentile(before, after, 0.99),
        )


def _percentile(before: Sample, after: Sample, share: float) -> float | None:
    """Return the bound below which this share of the releases was late; None without releases.

    Releases beyond the last bound count as late by the last bound.
    """
    released = after.released - before.released
    if released <= 0:
        return None
    known = dict(before.late_to)
    for bound, count in after.late_to:
        if count - known.get(bound, 0) >= share * released:
            return float(bound)
    return float(after.late_to[-1][0])
