"""Whether the broker can write its store.

A failed write rejects sends for RETRY_MS. A failure is final: the broker stops, and the next start recovers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from wheelmq.broker.admission.error_text import TimersLost, rejection_text
from wheelmq.system.clock import Clock
from wheelmq.system.disk import StoreRemoved
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

RETRY_MS: Final = 100
"""Milliseconds until a failed append is tried again."""


class StoreHealth:
    """The last failure of the store, and the reason to reject sends. Times are monotonic milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = RateLimitedLog(log, clock.monotonic)
        self.failure: BaseException | None = None
        """The error that ended the broker."""
        self.rejection: str | None = None
        """Why the broker rejects sends now; None if it does not."""
        self._rejected_ms = 0

    def fail(self, error: BaseException) -> None:
        """Acknowledge nothing more, and stop."""
        self.failure = error
        if isinstance(error, StoreRemoved | TimersLost):
            self.reject_sends(rejection_text(error))
        else:
            self.reject_sends(f"a flush to the disk failed: {error}")

    def reject_sends(self, reason: str) -> None:
        """Answer sends with SERVICE_NOT_AVAILABLE for RETRY_MS. After that, the next send tries again."""
        if self.rejection is None:
            self._log.log(logging.ERROR, "rejected", "the broker rejects sends: %s", reason)
        self.rejection = reason
        self._rejected_ms = self._clock.monotonic_ms()

    def run_or_reject(self, step: Callable[[], int]) -> int:
        """Return the result of `step`, or 0 if the store cannot be written: the broker then rejects sends."""
        try:
            return step()
        except OSError as error:
            self.reject_sends(rejection_text(error))
            return 0

    def poll(self, monotonic_ms: int) -> None:
        if self.rejection is not None and self.failure is None and monotonic_ms - self._rejected_ms >= RETRY_MS:
            self.rejection = None
