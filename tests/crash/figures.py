"""Figures of a run: how long parts were away, and how late messages were, while which of them was away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.crash.killing import Death
from tests.crash.records import Column

CATCH_UP_MS: Final = 1500
"""After its return the broker has what fell due meanwhile to deliver; so long that is no matter of the pipeline's."""
INDEXED_AFTER_MS: Final = 4000
"""A parked message waits at most three seconds for a turn: what is older is indexed."""
IN_HAND_MS: Final = 1000
"""What is due so shortly before a kill of the broker may be in its hands still, and leave when it is back."""
ARMED: Final = "pipeline away, armed before"

Span = tuple[int, int]
Mask = npt.NDArray[np.bool_]


def spread(values: Sequence[float] | Column) -> dict[str, float]:
    """Count, median, 99th percentile and maximum."""
    if not len(values):
        return {"count": 0}
    p50, p99 = np.percentile(values, (50, 99)).tolist()
    return {"count": len(values), "p50": round(p50, 2), "p99": round(p99, 2), "max": round(float(max(values)), 2)}


def broker_away(deaths: Sequence[Death]) -> list[Span]:
    """When the broker was not there, or had just come back."""
    spans: list[Span] = []
    begun: int | None = None
    for death in deaths:
        if not death.of_broker:
            continue
        begun = death.at_ms if begun is None else begun
        if death.serving_s is not None:
            spans.append((begun, death.at_ms + int(death.serving_s * 1000) + CATCH_UP_MS))
            begun = None
    if begun is not None:
        spans.append((begun, 1 << 62))
    return spans


def pipeline_away(deaths: Sequence[Death]) -> list[tuple[Death, Span]]:
    """When the pipeline did not turn because of a kill of its own."""
    spans = []
    for i, death in enumerate(deaths):
        if death.of_broker:
            continue
        following = deaths[i + 1].at_ms if i + 1 < len(deaths) else death.at_ms
        end = death.at_ms + int(death.turning_s * 1000) if death.turning_s is not None else following
        spans.append((death, (death.at_ms, end)))
    return spans


def within(times: Column, spans: Sequence[Span]) -> Mask:
    """Which of `times` lie in one of `spans`."""
    found: Mask = np.zeros(len(times), np.bool_)
    for first, last in spans:
        found |= (first <= times) & (times <= last)
    return found


def lateness(delivered: npt.NDArray[Any], deaths: Sequence[Death]) -> dict[str, dict[str, float]]:
    """Milliseconds from due time to store time, by what was away when the messages fell due.

    What is due later than all that was armed when the pipeline was killed may be late, if that stays away so long.
    """
    due, late, parked = delivered["due_ms"], delivered["store_ms"] - delivered["due_ms"], delivered["parked_ms"]
    down = within(due, broker_away(deaths)) | within(delivered["store_ms"], broker_away(deaths))
    first_ms = deaths[0].at_ms if deaths else 1 << 62
    well = (due < first_ms) & ~(down & (due >= first_ms - IN_HAND_MS))
    away, armed, beyond = (np.zeros(len(due), np.bool_) for _ in range(3))
    for death, span in pipeline_away(deaths):
        mine = ~down & within(due, [span])
        indexed = mine & (parked < death.at_ms - INDEXED_AFTER_MS)
        away |= mine
        armed |= indexed & (due <= death.armed_through_ms)
        beyond |= mine & (parked < death.at_ms) & (due > death.armed_through_ms)
    return {
        "nothing killed yet": spread(late[well]),
        "broker up": spread(late[~down]),
        "pipeline away": spread(late[away & ~beyond]),
        ARMED: spread(late[armed]),
        "pipeline away longer than that": spread(late[beyond]),
        "broker away or just back": spread(late[down]),
    }


def recoveries(deaths: Sequence[Death]) -> dict[str, dict[str, dict[str, float]]]:
    """Seconds until the broker served, and until the pipeline turned, by what was killed."""
    serving: dict[str, list[float]] = defaultdict(list)
    turning: dict[str, list[float]] = defaultdict(list)
    for death in deaths:
        name = death.what if not death.by_failpoint else f"{death.what.partition('.')[0]}.*"
        if death.of_broker and death.by_failpoint:
            name = "broker at a failpoint"
        if death.serving_s is not None:
            serving[name].append(death.serving_s)
        if death.turning_s is not None:
            turning[name].append(death.turning_s)
    return {
        "serving": {name: spread(values) for name, values in sorted(serving.items())},
        "turning": {name: spread(values) for name, values in sorted(turning.items())},
    }


def pipeline_share(before: dict[str, int], after: dict[str, int]) -> float | None:
    """Of the timers over five seconds that were armed between two looks: the share that the pipeline armed.

    What is put into the block of its hour, to be due within the lead, the blocks' own lane arms: that is left out.
    """
    names = {name for name in {*before, *after} if name.endswith("_long")} - {"block_lane_long"}
    more = {name: after.get(name, 0) - before.get(name, 0) for name in names}
    total = sum(more.values())
    return more.get("pipeline_long", 0) / total if total else None


def table(rows: dict[str, dict[str, float]], unit: str) -> list[str]:
    """Lines for people."""
    lines = []
    for name, values in rows.items():
        if values["count"]:
            parts = "  ".join(f"{key} {values[key]:>9g} {unit}" for key in ("p50", "p99", "max"))
            lines.append(f"  {name:32s} {values['count']:8.0f}  {parts}")
    return lines
