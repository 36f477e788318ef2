"""Ranges of queue offsets: the range of each queue in a batch, the messages that are lost, and the tasks. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark_rocketmq.offsets import Offsets, OffsetSpan, Queue

PACKED_ROWS: Final = 5_000
"""Ranges share a task while they have at most this many messages, because a task takes some 20 ms itself."""


class OffsetRange(NamedTuple):
    """The messages of a queue from offset `first` to `end`, without `end`."""

    queue: Queue
    first: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.first


class Loss(NamedTuple):
    """Messages that no longer exist. `rows` is 0 if their number is unknown."""

    queue: Queue
    rows: int
    text: str


@dataclass(frozen=True)
class Survey:
    """The queues as brokers report them."""

    spans: Mapping[Queue, OffsetSpan]
    silent: frozenset[str] = frozenset()
    """Brokers that do not answer or are not registered. Their queues may still exist."""
    waiting: frozenset[Queue] = frozenset()
    """Queues that their brokers have, and that cannot be read now."""
    gone: frozenset[tuple[str, str]] = frozenset()
    """Topics that a broker says it does not have, each with the broker."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """The texts of warnings, by the server or the queue."""


def settled(offsets: Offsets, survey: Survey) -> tuple[dict[Queue, int], list[Loss]]:
    """Return the offsets at which the queues continue, and the losses until there.

    A new queue begins at its first message. A queue that waits, or whose broker is silent, keeps its offset.
    """
    found, losses = {}, []
    for queue, offset in offsets.items():
        span = survey.spans.get(queue)
        if span is None:
            if queue.broker in survey.silent or queue in survey.waiting:
                found[queue] = offset
            else:
                losses.append(Loss(queue, 0, f"queue {queue} no longer exists; its messages from {offset} on are lost"))
        elif offset < span.first:
            found[queue] = span.first
            losses.append(Loss(queue, span.first - offset, f"queue {queue}: [{offset}, {span.first}) has expired"))
        elif offset > span.end:
            found[queue] = span.end
            text = (
                f"queue {queue} ends at {span.end}, before offset {offset}: its topic was deleted, or its broker lost"
            )
            losses.append(Loss(queue, 0, f"{text} messages"))
        else:
            found[queue] = offset
    return {queue: span.first for queue, span in survey.spans.items() if queue not in offsets} | found, losses


def unread(offsets: Offsets, survey: Survey, targets: Offsets) -> list[Queue]:
    """Return the queues that are away and have messages before their targets, once all other queues are read.

    A queue without a target was away when the targets were set.
    """
    for queue, span in survey.spans.items():
        if queue in targets and min(span.end, targets[queue]) > offsets.get(queue, span.first):
            return []
    return sorted(
        queue
        for queue, offset in offsets.items()
        if queue not in survey.spans
        and (queue.broker in survey.silent or queue in survey.waiting)
        and targets.get(queue, offset + 1) > offset
    )


def shares(sizes: Mapping[Queue, int], total_max: int) -> dict[Queue, int]:
    """Return the number of messages of each queue in a batch of at most `total_max`, in proportion to `sizes`.

    Each queue gets at least one message, as long as the total permits it.
    """
    sizes = {queue: size for queue, size in sizes.items() if size > 0}
    total = sum(sizes.values())
    if total <= total_max:
        return dict(sizes)
    found = {queue: max(1, size * total_max // total) for queue, size in sizes.items()}
    largest_first = sorted(found, key=lambda queue: (-sizes[queue], queue))
    over = sum(found.values()) - total_max
    for queue in largest_first:
        less = min(max(0, over), found[queue] - 1)
        found[queue] -= less
        over -= less
    for queue in reversed(largest_first):
        if over > 0:
            over -= found.pop(queue)
    for queue in largest_first:
        more = min(max(0, -over), sizes[queue] - found.get(queue, sizes[queue]))
        if more:
            found[queue] += more
            over += more
    return found


def tasks(
    ranges: Iterable[OffsetRange], *, count_min: int | None, rows_max: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task.

    Large ranges are split to get at least `count_min` tasks, of at most `rows_max` messages each. Without `count_min`,
    small ranges of one broker share a task.
    """
    ranges = sorted(one for one in ranges if one.rows > 0)
    total = sum(one.rows for one in ranges)
    parts = []
    for one in ranges:
        pieces = 1 if count_min is None else max(1, -(-one.rows * count_min // total))
        if rows_max is not None:
            pieces = max(pieces, -(-one.rows // rows_max))
        parts += _split(one, min(pieces, one.rows))
    if count_min is not None:
        return [(part,) for part in parts]
    return _packed(parts, min(PACKED_ROWS, rows_max or PACKED_ROWS))


def _split(one: OffsetRange, pieces: int) -> list[OffsetRange]:
    bounds = [one.first + one.rows * i // pieces for i in range(pieces + 1)]
    return [OffsetRange(one.queue, first, end) for first, end in itertools.pairwise(bounds)]


def _packed(parts: Iterable[OffsetRange], rows_max: int) -> list[tuple[OffsetRange, ...]]:
    found: list[list[OffsetRange]] = []
    room: dict[str, tuple[list[OffsetRange], int]] = {}
    """The last task of each broker that has room, and its messages."""
    for part in parts:
        task, filled = room.get(part.queue.broker, ([], rows_max))
        if filled + part.rows > rows_max:
            task, filled = [], 0
            found.append(task)
        task.append(part)
        room[part.queue.broker] = task, filled + part.rows
    return [tuple(task) for task in found]
