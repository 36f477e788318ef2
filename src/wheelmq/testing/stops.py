"""Stops inside the code: every failpoint that a run passes is a place where it may end.

    with Stops() as stops: run()            which ones does it pass?  stops.passed
    with Stops(die_at=17): run()            raises Died at the 18th

Died is no Exception, so that nothing on the way takes it for an error of a request; the broker is then as `kill -9`
leaves it, and is to be dropped.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self
from unittest import mock

from wheelmq.system import failpoint


class Died(BaseException):
    """The process ended here."""


class Stops:
    """Counts the passages of failpoints, in every module that is loaded, and ends the run at one of them."""

    def __init__(self, die_at: int | None = None) -> None:
        self.passed: list[str] = []
        self._die_at = die_at
        self._patches: list[Any] = []

    def arm(self, after: int) -> None:
        """End at the passage that is `after` passages from now."""
        self._die_at = len(self.passed) + after

    def disarm(self) -> None:
        """End nowhere."""
        self._die_at = None

    def reach(self, name: str) -> None:
        """Stands in for `failpoint.reach`."""
        self.passed.append(name)
        if len(self.passed) - 1 == self._die_at:
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
