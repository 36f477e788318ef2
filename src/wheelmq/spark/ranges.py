"""Compute the partitions of a micro-batch from its plan. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from wheelmq.delay.timer.staging import Piece, pieces
from wheelmq.formats.disk.turn_row import KIND_BLOCKS, KIND_INDEX, KIND_QUEUE, KIND_WALK

ROWS_PER_PARTITION = 20_000
"""Minimum number of rows per task. With fewer rows, a second task costs more than it saves."""

PARALLELISM_MIN = 2
"""Tasks for each kind of rows that every session has room for, if there are enough rows."""
TASKS_MAX = PARALLELISM_MIN + 2
"""Tasks of one turn that run at once with PARALLELISM_MIN: two index, one scans slots, one scans blocks.

A large scan of slots has more tasks. Those, and the tasks that stage levels, use the remaining room.
"""


def parallelism_of(slots: int, queries: int) -> int:
    """Return the maximum number of tasks for each kind of rows of a broker, in a session with task slots.

    Half of a query's slots suffices, because a turn usually has two kinds of rows: index and walk.
    """
    return max(PARALLELISM_MIN, slots // (2 * max(1, queries)))


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


def ranges(plan: dict[str, Any], parallelism: int, *, precision_ms: int) -> list[Range]:
    """Return the tasks of a plan. Together they cover the plan in its order. No task for queue offsets is empty.

    Each kind of rows has at most `parallelism` tasks, and each task some ROWS_PER_PARTITION rows or more.
    """
    found = []
    for first, end in _shares(plan["index_from"], plan["index_to"], parallelism):
        found.append(Range(KIND_INDEX, plan, first=first, end=end))
    for after_ms, through_ms in _slot_shares(plan, parallelism, precision_ms):
        found.append(Range(KIND_WALK, plan, first=after_ms, end=through_ms))
    rows = sum(end - first for _, first, end in plan["queues"])
    for first, end in _shares(0, rows, parallelism):
        found.append(Range(KIND_QUEUE, plan, queues=pieces(plan["queues"], first, end)))
    if plan.get("blocks") is not None:
        found.append(Range(KIND_BLOCKS, plan))
    return found


def rows_of(plan: dict[str, Any]) -> int:
    """Return the number of rows that a plan has."""
    rows: int = plan["index_to"] - plan["index_from"] + plan["walk_rows"]
    rows += sum(end - first for _, first, end in plan["queues"])
    blocks = plan.get("blocks")
    return rows + (0 if blocks is None else blocks["rows"])


def _slot_shares(plan: dict[str, Any], parallelism: int, precision_ms: int) -> Iterator[tuple[int, int]]:
    """Yield start (exclusive) and end (inclusive) of the slots of each task that scans slots.

    The plan does not count the rows of each slot, so each task gets the same number of slots.
    """
    if not plan["walk_rows"]:
        return
    after_ms, through_ms = plan["walk_after_ms"], plan["walk_through_ms"]
    slots = (through_ms - after_ms) // precision_ms
    parts = max(1, min(parallelism, plan["walk_rows"] // ROWS_PER_PARTITION, slots))
    bounds = [after_ms + slots * i // parts * precision_ms for i in range(parts)] + [through_ms]
    yield from itertools.pairwise(bounds)


def _shares(first: int, end: int, parallelism: int) -> Iterator[tuple[int, int]]:
    rows = end - first
    parts = max(1, min(parallelism, rows // ROWS_PER_PARTITION)) if rows else 0
    for i in range(parts):
        yield first + rows * i // parts, first + rows * (i + 1) // parts
