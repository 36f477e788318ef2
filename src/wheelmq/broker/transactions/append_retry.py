"""The pause of the steps of transactions after a failed append."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

REST_MS: Final = 100


class AppendRetry:
    """Runs appends, not within REST_MS of a failure. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._from_ms = 0

    def run(self, now_ms: int, append: Callable[[], int]) -> int:
        """Return the number of records that `append` appended; 0 in a pause. Raises OSError of `append`."""
        if now_ms < self._from_ms:
            return 0
        try:
            return append()
        except OSError:
            self._from_ms = now_ms + REST_MS
            raise

    def next_ms(self, due_ms: int | None) -> int | None:
        return None if due_ms is None else max(due_ms, self._from_ms)
