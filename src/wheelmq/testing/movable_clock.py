"""The clock of a test's broker: it follows the machine's clock, and the test moves it forward."""

from __future__ import annotations

import threading
from datetime import timedelta

from wheelmq.formats.units import Millis
from wheelmq.system.clock import SystemClock


class MovableClock(SystemClock):
    """The machine's clock, moved forward by a test. Any thread may call.

    Durations are real, so connections and long polls time out as usual.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved_ms = 0
        self._frozen_ms: int | None = None

    def now_ms(self) -> Millis:
        frozen_ms = self._frozen_ms
        return Millis(super().now_ms() + self._moved_ms if frozen_ms is None else frozen_ms)

    @property
    def is_frozen(self) -> bool:
        return self._frozen_ms is not None

    def move(self, by: timedelta) -> None:
        """Move the clock forward. Raises ValueError for a negative time."""
        ms = by // timedelta(milliseconds=1)
        if ms < 0:
            raise ValueError(f"a clock cannot go back by {-by}: start another TestBroker")
        with self._lock:
            self._moved_ms += ms
            if self._frozen_ms is not None:
                self._frozen_ms += ms

    def freeze(self) -> None:
        """Stop the clock. From now on it moves only by `move`."""
        with self._lock:
            if self._frozen_ms is None:
                self._frozen_ms = self.now_ms()

    def thaw(self) -> None:
        """Let the clock run again from its present time."""
        with self._lock:
            if self._frozen_ms is not None:
                self._moved_ms = self._frozen_ms - super().now_ms()
                self._frozen_ms = None
