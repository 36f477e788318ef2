"""From a plan to the partitions of its micro-batch. Pure."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition

ROWS_PER_PARTITION = 20_000
"""Fewer rows than this are read by one task: a second one costs more than it saves."""

PARALLELISM = 2
TASKS_MAX = PARALLELISM + 2
"""Tasks of one turn: so many index, one walks slots, one walks blocks."""


class Range(InputPartition):  # type: ignore[misc]
    """What one task reads: queue offsets to index, or slots to walk, from `first` to `end`; or the plan's blocks."""

    def __init__(self, walk: bool, first: int, end: int, plan: dict[str, Any], *, blocks: bool = False) -> None:
        super().__init__((walk, first, end, blocks))
        self.walk = walk
        self.blocks = blocks
        self.first = first
        self.end = end
        self.plan = plan


def ranges(plan: dict[str, Any], parallelism: int = PARALLELISM) -> list[Range]:
    """The tasks of a plan; together they cover it, and none is empty."""
    found = []
    rows = plan["index_to"] - plan["index_from"]
    parts = max(1, min(parallelism, rows // ROWS_PER_PARTITION)) if rows else 0
    for i in range(parts):
        first = plan["index_from"] + rows * i // parts
        end = plan["index_from"] + rows * (i + 1) // parts
        found.append(Range(False, first, end, plan))
    if plan["walk_rows"]:
        found.append(Range(True, plan["walk_after_ms"], plan["walk_through_ms"], plan))
    if plan.get("blocks") is not None:
        window = plan["blocks"]
        found.append(Range(True, window["after_ms"], window["through_ms"], plan, blocks=True))
    return found
