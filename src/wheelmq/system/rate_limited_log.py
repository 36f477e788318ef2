"""A log for frequent events: one line in ten seconds for each kind of event, with the number of events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0
"""The interval that Apache's brokers use."""


class RateLimitedLog:
    """Logs one line in EVERY_S seconds for each kind. Use few kinds, and never take a kind from a peer's data."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._said_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def warn(self, kind: str, message: str, *arguments: object) -> None:
        self.log(logging.WARNING, kind, message, *arguments)

    def exception(self, kind: str, message: str, *arguments: object) -> None:
        self.log(logging.ERROR, kind, message, *arguments, traceback=True)

    def log(
        self, level: int, kind: str, message: str, *arguments: object, traceback: bool | BaseException = False
    ) -> None:
        """Log a line, or only count it if one of its kind was logged a moment ago.

        `traceback` is an exception whose traceback is logged too. True means the current exception.
        """
        now_s, said_s = self._now_s(), self._said_s.get(kind)
        if said_s is not None and now_s - said_s < EVERY_S:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        self._said_s[kind] = now_s
        suppressed = self._suppressed.pop(kind, 0)
        if suppressed:
            message, arguments = f"{message} (and %d times since the last such line)", (*arguments, suppressed)
        self._log.log(level, message, *arguments, exc_info=traceback)
