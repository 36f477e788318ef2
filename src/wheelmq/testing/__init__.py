"""Tools for tests: a broker on real sockets whose clock a test moves, a failing disk, a pipeline without Spark.

`TestBroker` is for applications. All other tools open no socket, read no time and never sleep, so that a run with the
same inputs repeats exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheelmq.testing.broker import TestBroker as TestBroker


def __getattr__(name: str) -> Any:
    """Load `TestBroker` when it is used. The simulation imports this package and needs no sockets."""
    if name == "TestBroker":
        from wheelmq.testing.broker import TestBroker

        return TestBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
