"""How long the newest bytes of the log have waited for a replica. Times are monotonic milliseconds."""

from __future__ import annotations

from collections import deque
from typing import Final

from wheelmq.formats.units import LogPosition

MARK_MS: Final = 5
"""Least time between two marks."""


class ReplicationLag:
    """The ends of the log at some times, until the first replica has them."""

    def __init__(self) -> None:
        self._marks: deque[tuple[LogPosition, int]] = deque()

    def note_end(self, end: LogPosition, now_ms: int) -> None:
        """Note that the log ends at `end`. Bytes within MARK_MS count as old as the first of them."""
        if not self._marks or now_ms - self._marks[-1][1] >= MARK_MS:
            if not self._marks or end > self._marks[-1][0]:
                self._marks.append((end, now_ms))
        elif end > self._marks[-1][0]:
            self._marks[-1] = (end, self._marks[-1][1])

    def note_acked(self, position: LogPosition) -> None:
        """Note that a replica has the log up to `position`."""
        while self._marks and self._marks[0][0] <= position:
            self._marks.popleft()

    def began_ms(self) -> int | None:
        """Return the time since which bytes wait for a replica; None if none do."""
        return self._marks[0][1] if self._marks else None

    def forget(self) -> None:
        self._marks.clear()
