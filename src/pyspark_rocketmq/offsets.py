"""Offsets by queue, and their canonical JSON: `{"topic": {"broker": {"queue id": offset}}}`, sorted.

Spark compares the offsets of a stream as texts. So equal offsets always have the same JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pyspark_rocketmq.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets in JSON that mean the ends of a queue, as in Spark's Kafka source."""

QUEUES: Final = "queues"
LOST: Final = "lost"
BEGINS: Final = "begins"
LEFT: Final = "left"


class Queue(NamedTuple):
    """A queue, in the order of the canonical JSON."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.number}"


Offsets = Mapping[Queue, int]
Tree = dict[str, dict[str, dict[str, int]]]


class OffsetSpan(NamedTuple):
    """The first queue offset of a queue, and the end offset after its last message."""

    first: int
    end: int


class StreamOffset(NamedTuple):
    """The offset of a stream: the next queue offset of each queue, and the number of lost messages until then."""

    queues: Offsets
    lost: int = 0
    begins: Offsets = {}
    """Where the last batch begins in queues that the offset before it does not have. Spark does not store the initial
    offset of a stream, so the end of the first batch has the beginnings of all its queues."""
    left: Offsets = {}
    """The next queue offset of queues that their topic no longer has. A topic can get them back."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset for Spark."""
        begins = {BEGINS: tree_of(self.begins)} if self.begins else {}
        left = {LEFT: tree_of(self.left)} if self.left else {}
        return {LOST: self.lost, QUEUES: tree_of(self.queues), **begins, **left}

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that `to_json` has written. Raises OptionError for another checkpoint."""
        try:
            begins, left = (_queues_of(offset.get(name, {})) for name in (BEGINS, LEFT))
            return cls(_queues_of(offset[QUEUES]), int(offset.get(LOST, 0)), begins, left)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OptionError(
                f"the checkpoint has the offset {json.dumps(offset)}, which is not one of this source: choose another "
                "checkpointLocation"
            ) from None


def tree_of(offsets: Offsets) -> Tree:
    """Return the offsets by topic, broker and queue number, sorted."""
    tree: Tree = {}
    for queue in sorted(offsets):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = offsets[queue]
    return tree


def parse_offsets(option: str, text: str) -> dict[Queue, int]:
    """Return the offsets in the JSON of an option. Raises OptionError."""
    example = '{"Orders": {"broker-a": {"0": 100, "1": -2}}}'
    try:
        found = _queues_of(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise OptionError(f"{option} is {text!r}: write offsets by topic, broker and queue, as in {example}") from None
    for queue, offset in found.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option} has offset {offset} for queue {queue}: an offset is not negative, "
                f"except {EARLIEST} (earliest) and {LATEST} (latest)"
            )
    return found


def check_complete(option: str, given: Iterable[Queue], existing: Iterable[Queue]) -> None:
    """Raise OptionError if `given` lacks a queue, or has one that does not exist."""
    given, existing = set(given), set(existing)
    if missing := sorted(existing - given):
        raise OptionError(
            f"{option} has no offset for {_few(missing)}: give one for each queue; {EARLIEST} is earliest, "
            f"{LATEST} is latest"
        )
    if unknown := sorted(given - existing):
        raise OptionError(f"{option} names {_few(unknown)}, which no broker has: remove it, or check its name")


def _few(queues: list[Queue]) -> str:
    named = ", ".join(map(str, queues[:3]))
    return f"{named} and {len(queues) - 3} more" if len(queues) > 3 else named


def _queues_of(tree: Any) -> dict[Queue, int]:
    """Return the offsets of a tree. Raises ValueError, TypeError, AttributeError."""
    return {
        Queue(topic, broker, int(number)): _whole(offset)
        for topic, brokers in tree.items()
        for broker, numbers in brokers.items()
        for number, offset in numbers.items()
    }


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    return value
