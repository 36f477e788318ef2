"""The history of a run of the queue model, and its checks.

The model is that of OpenChaos (QueueModel): clients enqueue values, and members of one consumer group dequeue them,
while faults happen. `check_queue` gives OpenChaos' counts (QueueChecker), and divides its duplicates as the checker
`total-queue` of Jepsen does. `keys_out_of_order` is for OrderChecker, and `unavailable_ms` for RTOChecker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    """The value was certainly not stored."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Enqueue:
    key: str
    """The sharding key: values of one key keep their order."""
    value: int
    began_ms: int
    ended_ms: int
    outcome: Outcome


@dataclass(frozen=True)
class Dequeue:
    key: str
    value: int
    latency_ms: int
    """Time from the send to this delivery."""


@dataclass(frozen=True)
class FaultSpan:
    """The time from a fault until all brokers are well again."""

    name: str
    began_ms: int
    ended_ms: int


@dataclass
class History:
    """All operations in the order of their ends."""

    enqueues: list[Enqueue] = field(default_factory=list)
    dequeues: list[Dequeue] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)


@dataclass(frozen=True)
class QueueFigures:
    attempts: int
    acknowledged: int
    failed: int
    unknown: int
    dequeued: int
    duplicated: int
    """Deliveries of a value after its first one. At least once allows them."""
    recovered: int
    """Values with an unknown outcome that were delivered."""
    lost: tuple[int, ...]
    """Acknowledged values that were never delivered."""
    unexpected: tuple[int, ...]
    """Delivered values that no client sent, or whose send certainly failed."""

    @property
    def at_least_once(self) -> bool:
        return not self.lost

    @property
    def at_most_once(self) -> bool:
        return not self.duplicated


def check_queue(history: History) -> QueueFigures:
    outcomes = {enqueue.value: enqueue.outcome for enqueue in history.enqueues}
    counts = Counter(outcomes.values())
    times = Counter(dequeue.value for dequeue in history.dequeues)
    stored = (Outcome.SUCCESS, Outcome.UNKNOWN)
    return QueueFigures(
        attempts=len(outcomes),
        acknowledged=counts[Outcome.SUCCESS],
        failed=counts[Outcome.FAILURE],
        unknown=counts[Outcome.UNKNOWN],
        dequeued=len(history.dequeues),
        duplicated=sum(times.values()) - len(times),
        recovered=sum(outcomes.get(value) is Outcome.UNKNOWN for value in times),
        lost=tuple(value for value, outcome in outcomes.items() if outcome is Outcome.SUCCESS and value not in times),
        unexpected=tuple(value for value in times if outcomes.get(value) not in stored),
    )


def keys_out_of_order(history: History) -> list[str]:
    """Return the keys whose acknowledged values came in another order than they were sent. Only first deliveries count.

    OpenChaos also accepts a value that came too early, if it came again in its place.
    """
    sent: dict[str, list[int]] = defaultdict(list)
    for enqueue in history.enqueues:
        if enqueue.outcome is Outcome.SUCCESS:
            sent[enqueue.key].append(enqueue.value)
    delivered: dict[str, dict[int, None]] = defaultdict(dict)
    for dequeue in history.dequeues:
        delivered[dequeue.key].setdefault(dequeue.value)
    return [key for key, values in sent.items() if not _is_in_order(values, delivered[key])]


def _is_in_order(values: list[int], delivered: dict[int, None]) -> bool:
    acknowledged = set(values)
    return [v for v in values if v in delivered] == [v for v in delivered if v in acknowledged]


def unavailable_ms(history: History) -> list[int]:
    """Return, for each fault that made a send fail, the time from this send to the next acknowledged one.

    OpenChaos calls it the recovery time objective (RTO).
    """
    found = []
    for fault in history.faults:
        during = [e for e in history.enqueues if e.ended_ms >= fault.began_ms]
        failed = next((e for e in during if e.outcome is not Outcome.SUCCESS and e.began_ms <= fault.ended_ms), None)
        if failed is None:
            continue
        later = (e.ended_ms for e in during if e.outcome is Outcome.SUCCESS and e.ended_ms >= failed.ended_ms)
        found.append(next(later, fault.ended_ms) - failed.began_ms)
    return found


def failed_without_a_fault(history: History) -> list[Enqueue]:
    """Return the sends that failed at a time without a fault."""
    return [
        enqueue
        for enqueue in history.enqueues
        if enqueue.outcome is not Outcome.SUCCESS
        and not any(f.began_ms <= enqueue.ended_ms and enqueue.began_ms <= f.ended_ms for f in history.faults)
    ]
