"""A limit of failed attempts with a password or a token, by address."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FAILURES_MAX: Final = 5
"""Failures of one address in a row, before it must wait."""
WAIT_S: Final = 60.0
"""Seconds that it waits after them. Each further failure begins the wait again."""
ADDRESSES_MAX: Final = 10_000


class AttemptLimit:
    """Counts failures. An address without a failure for WAIT_S begins again. Threads need a lock around it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Number of failures in a row and the time of the last one, by address, the latest last."""

    def wait_s(self, address: str) -> float:
        """Return the seconds until the address may try again; 0 if it may try now."""
        count, last_s = self._failures.get(address, (0, 0.0))
        left_s = last_s + WAIT_S - self._now_s()
        if left_s <= 0:
            self._failures.pop(address, None)
            return 0.0
        return left_s if count >= FAILURES_MAX else 0.0

    def note_failure(self, address: str) -> None:
        """Count a failure. Forget the address that failed first if there are too many."""
        count, _ = self._failures.pop(address, (0, 0.0))
        self._failures[address] = count + 1, self._now_s()
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def note_success(self, address: str) -> None:
        """Begin again for this address."""
        self._failures.pop(address, None)
