"""Failed releases: due messages whose release raised an unexpected error, until the next try.

A reference keeps its due time; the time of the next try is separate, on the monotonic clock. One defect can fail a
whole burst, so the wait doubles with each try, and the next tries of a burst are spread.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wheelmq.delay.refs import COLUMNS, FIRE_MS, FLAGS, ORIGIN, Refs, by_fire_time, make
from wheelmq.formats.units import NEVER_MS

RETRY_MS: Final = 10_000
"""Wait before the second try. Each later wait is twice as long."""
RETRY_MS_MAX: Final = 640_000
"""Limit of the nominal wait. The origin of the message makes each wait longer, by up to a half."""
STEP_MS: Final = 1000
"""Length of a step. References with a next try in the same step are kept together."""
TRIES_SHIFT: Final = 8
"""The flags of a reference from this bit on count its failed tries."""
_SPREAD: Final = 0x9E37_79B9
"""An odd factor. Its products with neighbouring origins are evenly spread."""


class _Step:
    def __init__(self) -> None:
        self.rows = bytearray()
        self.least_fire_ms: int = NEVER_MS

    def add(self, one: Refs) -> None:
        self.rows += one.tobytes()
        self.least_fire_ms = min(self.least_fire_ms, int(one[FIRE_MS]))


class FailedReleases:
    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}
        self.count = 0
        self.next_retry_ms: int | None = None
        """Monotonic time of the next try, or None without references."""

    def add(self, one: Refs, monotonic_ms: int) -> int:
        """Keep a reference, a single row. Returns the milliseconds until its next try."""
        wait_ms = min(RETRY_MS << (int(one[FLAGS]) >> TRIES_SHIFT), RETRY_MS_MAX)
        wait_ms += (int(one[ORIGIN]) * _SPREAD >> 8) % (wait_ms // 2)
        retry_ms = -(-(monotonic_ms + wait_ms) // STEP_MS) * STEP_MS
        counted = one.copy()
        counted[FLAGS] += 1 << TRIES_SHIFT
        self._steps.setdefault(retry_ms, _Step()).add(counted)
        self.count += 1
        self.next_retry_ms = min(self._steps)
        return retry_ms - monotonic_ms

    def take_due(self, monotonic_ms: int) -> Refs:
        """Take the references whose next try is due, sorted by fire time."""
        if self.next_retry_ms is None or self.next_retry_ms > monotonic_ms:
            return make(0)
        due = [retry_ms for retry_ms in self._steps if retry_ms <= monotonic_ms]
        taken = b"".join(self._steps[retry_ms].rows for retry_ms in due)
        refs = by_fire_time(np.frombuffer(taken, np.int64).reshape(-1, COLUMNS).copy())
        for retry_ms in due:
            del self._steps[retry_ms]
        self.count -= len(refs)
        self.next_retry_ms = min(self._steps, default=None)
        return refs

    def earliest_ms(self) -> int | None:
        return min((step.least_fire_ms for step in self._steps.values()), default=None)
