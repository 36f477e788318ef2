"""The steps of a tick, each isolated from the failures of the others.

A step that raises an exception is counted and logged, and the next tick tries it again. The log is rate-limited.

A step must not lose messages by its failure. A step that takes references out of a table puts them back on an error.
The dispatch empties the journal, and the timer takes its rows next: an error there fails the broker.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FAILED_STEP_MS: Final = 10
"""Minimum milliseconds from a tick with a failed step to the next tick, so that a lasting failure uses no whole core.
It delays timers by this time at most."""


class _Trace:
    """The stack of an exception, formatted only when the log writes it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __str__(self) -> str:
        return "".join(traceback.format_exception(self._error)).rstrip()


class Steps:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._log = RateLimitedLog(log, now_s)
        self.failures: Counter[str] = Counter()
        """Failures since the start, by the name of the step."""
        self.failed_now: set[str] = set()
        """Names of the steps that failed in the current tick, or in the last one."""
        self.last_error: Exception | None = None

    def begin(self) -> None:
        if self.failed_now:
            self.failed_now.clear()

    def run(self, name: str, step: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T | None:
        """Run a step of the tick. Returns its result, or None when it raises an exception."""
        try:
            return step(*arguments, **keywords)
        except Exception as error:
            self.note_failure(name, error)
            return None

    def note_failure(self, name: str, error: Exception) -> None:
        self.failures[name] += 1
        self.failed_now.add(name)
        self.last_error = error
        self._log.warn(
            name,
            "the step %r of a tick failed. The other steps continue, and the broker will try it again: %s",
            name,
            _Trace(error),
        )
