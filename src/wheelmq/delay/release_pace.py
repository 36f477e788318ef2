"""The pace of releases: the time for the releases of one tick, and the size of each append."""

from __future__ import annotations

from typing import Final

BURST_SLICES: Final = 4
"""Factor of the slice of time during a burst. Other due messages and requests wait some milliseconds at most."""
HALVINGS_MAX: Final = 4
"""Limit of the halvings of an append. An append is halved when it takes longer than a burst's slice.

While the log is flushed, a page fault costs a hundred times as much.
"""
URGENT_MS: Final = 10.0
"""Lateness at which release gets twice the time that requests got. Each further 10 ms adds the same time again."""
URGENCY_MAX: Final = 8.0
"""Limit of the factor that the lateness gives."""


class ReleasePace:
    """Computes the time for releases, and follows the time that appends take."""

    def __init__(self) -> None:
        self.halvings = 0
        """Number of times by which the next append is halved."""

    def release_seconds(self, slice_seconds: float, share_seconds: float, late_ms: int, *, is_burst: bool) -> float:
        """Return one slice, several slices in a burst, or the release's share of the tick if that is longer."""
        more_seconds = min((_urgency(late_ms) - 1) * share_seconds, BURST_SLICES * slice_seconds)
        return max((BURST_SLICES if is_burst else 1) * slice_seconds, share_seconds + more_seconds)

    def fit(self, took_seconds: float, slice_seconds: float) -> None:
        """Shrink the next append if the last one took too long, or enlarge it again. Without a slice, do nothing."""
        burst_seconds = BURST_SLICES * slice_seconds
        if burst_seconds <= 0:
            return
        if took_seconds > burst_seconds:
            self.halvings = min(self.halvings + 1, HALVINGS_MAX)
        elif took_seconds < burst_seconds / 2:
            self.halvings = max(self.halvings - 1, 0)


def _urgency(late_ms: int) -> float:
    """Return the weight of release time against the time for requests. It grows with lateness, up to URGENCY_MAX.

    When producers send more than the broker can release in time, it slows them down until both rates are equal.
    """
    return min(URGENCY_MAX, 1.0 + max(0, late_ms) / URGENT_MS)
