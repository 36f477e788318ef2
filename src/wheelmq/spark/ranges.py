"""Compute the partitions of a micro-batch from its plan. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from wheelmq.delay.timer.staging import Piece, pieces
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE, KIND_WALK

ROWS_PER_PARTITION = 20_000
"""Minimum number of rows per task. With fewer rows, a second task costs more than it saves."""

PARALLELISM = 2
TASKS_MAX = PARALLELISM + 2
"""Tasks of one turn that run at once: PARALLELISM tasks index, one scans slots, one scans blocks.

Tasks that stage levels are short, and use the remaining room.
"""


class Range(InputPartition):  # type: ignore[misc]
    """The work of one task: queue offsets to index, slots to scan, parts of the plan's queues, or its blocks.

    `first` and `end` are queue offsets, or the times of slots.
    """

    def __init__(
        self, kind: str, plan: dict[str, Any], *, first: int = 0, end: int = 0, queues: Sequence[Piece] = ()
    ) -> None:
        super().__init__((kind, first, end, tuple(queues)))
        self.kind = kind
        self.first = first
        self.end = end
        self.queues = queues
        self.plan = plan


def ranges(plan: dict[str, Any], parallelism: int = PARALLELISM) -> list[Range]:
    """Return the tasks of a plan. Together they cover the plan in its order, and none is empty."""
    found = []
    for first, end in _shares(plan["index_from"], plan["index_to"], parallelism):
        found.append(Range(KIND_INDEX, plan, first=first, end=end))
    if plan["walk_rows"]:
        found.append(Range(KIND_WALK, plan, first=plan["walk_after_ms"], end=plan["walk_through_ms"]))
    rows = sum(end - first for _, first, end in plan["queues"])
    for first, end in _shares(0, rows, parallelism):
        found.append(Range(KIND_QUEUE, plan, queues=pieces(plan["queues"], first, end)))
    if plan.get("blocks") is not None:
        found.append(Range(KIND_BLOCKS, plan))
    return found


def _shares(first: int, end: int, parallelism: int) -> Iterator[tuple[int, int]]:
    rows = end - first
    parts = max(1, min(parallelism, rows // ROWS_PER_PARTITION)) if rows else 0
    for i in range(parts):
        yield first + rows * i // parts, first + rows * (i + 1) // parts
