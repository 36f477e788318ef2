"""Stops inside the code: a run can end at each failpoint that it passes.

    with Stops() as stops: run()            the failpoints that it passes: stops.passed
    with Stops(die_at=17): run()            raises Died at the 18th

Died is no Exception, so that no code handles it. It leaves the broker as `kill -9` would; the test must drop it.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self
from unittest import mock

from wheelmq.system import failpoint


class Died(BaseException):
    """Marks the point where the process ends."""


class Stops:
    """Counts passed failpoints in every imported module, and ends the run at one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.passed: list[str] = []
        self.died: str | None = None
        """The failpoint at which the run ended. A task keeps the exception, so its loop asks for this."""
        self._die_at = die_at
        self._die_in = ""
        self._patches: list[Any] = []

    def arm(self, after: int) -> None:
        self.disarm()
        self._die_at = len(self.passed) + after

    def arm_in(self, name: str) -> None:
        self.disarm()
        self._die_in = name

    def disarm(self) -> None:
        self._die_at, self._die_in, self.died = None, "", None

    def reach(self, name: str) -> None:
        """Replaces `failpoint.reach`."""
        self.passed.append(name)
        if len(self.passed) - 1 == self._die_at or name == self._die_in:
            self.died = name
            raise Died(name)

    def __enter__(self) -> Self:
        real = failpoint.reach
        for name, module in list(sys.modules.items()):
            if name.startswith("wheelmq.") and getattr(module, "reach", None) is real:
                patch = mock.patch.object(module, "reach", self.reach)
                patch.start()
                self._patches.append(patch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for patch in self._patches:
            patch.stop()
        self._patches.clear()
