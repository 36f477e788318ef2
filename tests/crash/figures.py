"""Figures of a run: how long parts were away, and the lateness of messages by the part that was away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.crash.killing import Death
from tests.crash.records import Column

CATCH_UP_MS: Final = 1500
"""After its return the broker delivers overdue messages.

During this time, lateness does not count for the pipeline.
"""
INDEXED_AFTER_MS: Final = 4000
"""A parked message waits at most three seconds for a turn, so older messages are indexed."""
IN_HAND_MS: Final = 1000
"""Messages due within this time before a kill of the broker may be in its release, and leave when it is back."""
ARMED: Final = "pipeline away, armed before"

Span = tuple[int, int]
Mask = npt.NDArray[np.bool_]


def spread(values: Sequence[float] | Column) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum."""
    if not len(values):
        return {"count": 0}
    p50, p99 = np.percentile(values, (50, 99)).tolist()
    return {"count": len(values), "p50": round(p50, 2), "p99": round(p99, 2), "max": round(float(max(values)), 2)}


def broker_away(deaths: Sequence[Death]) -> list[Span]:
    """Return the times in which the broker was down or had just come back."""
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
    """Return the times in which the pipeline did not turn because of a kill of its own."""
    spans = []
    for i, death in enumerate(deaths):
        if death.of_broker:
            continue
        following = deaths[i + 1].at_ms if i + 1 < len(deaths) else death.at_ms
        end = death.at_ms + int(death.turning_s * 1000) if death.turning_s is not None else following
        spans.append((death, (death.at_ms, end)))
    return spans


def within(times: Column, spans: Sequence[Span]) -> Mask:
    """Return which of `times` are in one of `spans`."""
    found: Mask = np.zeros(len(times), np.bool_)
    for first, last in spans:
        found |= (first <= times) & (times <= last)
    return found


def lateness(delivered: npt.NDArray[Any], deaths: Sequence[Death]) -> dict[str, dict[str, float]]:
    """Return milliseconds from due time to store time, by the part that was away at the due time.

    Messages due after all armed ones at a kill of the pipeline may be late if the pipeline stays away for that long.
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
    """Return the seconds until the broker served, and until the pipeline turned, by the killed part."""
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
    """Return the pipeline's share of the timers over five seconds that were armed between two metrics.

    It leaves out messages that were due within the lead when they were put into their block: the blocks' own lane
    arms them.
    """
    names = {name for name in {*before, *after} if name.endswith("_long")} - {"block_lane_long"}
    more = {name: after.get(name, 0) - before.get(name, 0) for name in names}
    total = sum(more.values())
    return more.get("pipeline_long", 0) / total if total else None


def table(rows: dict[str, dict[str, float]], unit: str) -> list[str]:
    lines = []
    for name, values in rows.items():
        if values["count"]:
            parts = "  ".join(f"{key} {values[key]:>9g} {unit}" for key in ("p50", "p99", "max"))
            lines.append(f"  {name:32s} {values['count']:8.0f}  {parts}")
    return lines
