"""The result of one simulated run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class RunResult:
    """The result of a run. `violation` describes the broken rule, and is empty if there is none."""

    seed: int
    digest: str = ""
    violation: str = ""
    trace: list[str] = field(default_factory=list)
    """The last lines of the trace before the violation."""
    counts: Counter[str] = field(default_factory=Counter)
