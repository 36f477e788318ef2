"""A log of what may happen a thousand times a second: a line in ten seconds, with how often it happened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 10.0
"""As Apache's brokers thin theirs."""


class ThinnedLog:
    """Warnings, one in EVERY_S seconds for each kind."""

    def __init__(self, log: logging.Logger, now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._said_s: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def warn(self, kind: str, message: str, *arguments: object) -> None:
        """Say `message` unless one of its kind was said a moment ago; it is counted then."""
        now_s, said_s = self._now_s(), self._said_s.get(kind)
        if said_s is not None and now_s - said_s < EVERY_S:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return
        self._said_s[kind] = now_s
        unsaid = self._unsaid.pop(kind, 0)
        if unsaid:
            self._log.warning(f"{message} (and %d times since this was said last)", *arguments, unsaid)
        else:
            self._log.warning(message, *arguments)
