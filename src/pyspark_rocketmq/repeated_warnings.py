"""Warnings about problems that last: a stream would log them in each trigger, many times a second."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

REPEAT_MS: Final = 60_000


class RepeatedWarnings:
    """Logs each problem when it begins, and then once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: dict[str, int] = {}
        """Monotonic time of the last warning about each problem that lasts."""

    def report(self, problems: Mapping[str, str]) -> None:
        """Log the texts of `problems`. These are all problems that exist now; each has the same key while it lasts."""
        now_ms = self._clock.monotonic_ms()
        self._logged_ms = {key: at_ms for key, at_ms in self._logged_ms.items() if key in problems}
        for key, text in sorted(problems.items()):
            logged_ms = self._logged_ms.get(key)
            if logged_ms is None or now_ms - logged_ms >= REPEAT_MS:
                self._logged_ms[key] = now_ms
                log.warning("%s", text)
