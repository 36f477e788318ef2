"""The messages of the demonstration: each one that was sent, its arrivals, and the problems that they show."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from wheelmq.cli.tables import counted
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.results import CancelResult

BOUNDS_MS: Final = (1, 2, 5, 10, 20)
"""The upper bounds of the live histogram. Its last column counts all greater values."""
LATE_MS: Final = BOUNDS_MS[-1]
"""A greater lateness is explained."""


class DemoKind(StrEnum):
    """The first word of a message's body."""

    GREETING = "greeting"
    """Sent without a delay, before the measurement."""
    BURST = "burst"
    """All of them are due at one millisecond."""
    STREAM = "stream"
    """Sent one after another, each with a delay of its own."""


class Arrival(NamedTuple):
    released_ms: int
    """When the broker appended the message to its topic."""
    received_ms: int
    """When the consumer received it."""


@dataclass(slots=True)
class DemoMessage:
    kind: DemoKind
    number: int
    due_ms: int
    unique_key: str = ""
    acknowledged_ms: int = 0
    """When the broker had acknowledged the send; 0 before."""
    cancel_result: CancelResult | None = None
    """The answer to the cancel; None without a cancel."""
    arrivals: list[Arrival] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return f"{self.kind} {self.number}".encode()

    @property
    def lateness_ms(self) -> int:
        """The lateness of the first arrival at the consumer."""
        return self.arrivals[0].received_ms - self.due_ms

    @property
    def is_early(self) -> bool:
        return any(min(arrival) < self.due_ms for arrival in self.arrivals)


class DemoMessages:
    """All messages of a run. A message is added before it is sent, so its arrival always finds it."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[DemoMessage]] = {kind: [] for kind in DemoKind}
        self._late: list[DemoMessage] = []
        self.histogram = [0] * (len(BOUNDS_MS) + 1)
        """Counts of the arrived messages of the stream by lateness, as in BOUNDS_MS."""
        self.arrived = 0
        self.worst_ms = 0
        """The greatest lateness of the stream."""
        self.strangers = 0
        """Number of arrivals that no message of this run explains."""

    def add(self, kind: DemoKind, due_ms: int) -> DemoMessage:
        """Return a new message."""
        found = self._kinds[kind]
        found.append(DemoMessage(kind, len(found), due_ms))
        return found[-1]

    def of(self, kind: DemoKind) -> Sequence[DemoMessage]:
        return self._kinds[kind]

    def note_arrival(self, received: ReceivedMessage) -> None:
        """Add an arrival to its message."""
        kind, _, number = received.body.decode(errors="replace").partition(" ")
        found = self._kinds.get(kind, [])
        if not number.isdecimal() or int(number) >= len(found):
            self.strangers += 1
            return
        message = found[int(number)]
        message.arrivals.append(Arrival(received.stored_ms, received.received_ms))
        if message.kind is DemoKind.GREETING or len(message.arrivals) > 1:
            return
        self.arrived += 1
        if message.lateness_ms > LATE_MS:
            self._late.append(message)
        if message.kind is DemoKind.STREAM:
            self.histogram[bisect_left(BOUNDS_MS, message.lateness_ms)] += 1
            self.worst_ms = max(self.worst_ms, message.lateness_ms)

    def take_late(self, received_before_ms: int) -> list[DemoMessage]:
        """Remove and return the late messages that were received before a time."""
        taken = [one for one in self._late if one.arrivals[0].received_ms < received_before_ms]
        self._late = [one for one in self._late if one.arrivals[0].received_ms >= received_before_ms]
        return taken

    def have_arrived(self, kind: DemoKind) -> bool:
        """Return whether all messages of a kind have arrived. Cancelled messages do not count."""
        return all(one.arrivals for one in self.of(kind) if one.cancel_result is None)

    def delivered(self, kind: DemoKind) -> list[DemoMessage]:
        return [one for one in self.of(kind) if one.arrivals]

    def cancelled(self) -> list[DemoMessage]:
        return [one for one in self.of(DemoKind.BURST) if one.cancel_result is not None]

    def problems(self) -> list[str]:
        """Return a line for each kind of problem, with the number of messages and an example."""
        found: dict[str, list[DemoMessage]] = {}
        for one in [*self.of(DemoKind.BURST), *self.of(DemoKind.STREAM)]:
            for problem in _problems(one):
                found.setdefault(problem, []).append(one)
        lines = [
            f"{counted(len(those), 'message')} {problem}, such as {_name(those[0])}" for problem, those in found.items()
        ]
        if self.strangers:
            lines.append(f"{counted(self.strangers, 'message')} arrived that the demo had not sent")
        return lines


def _problems(one: DemoMessage) -> Iterable[str]:
    if one.cancel_result is None:
        if not one.arrivals:
            yield "did not arrive"
    elif one.cancel_result is not CancelResult.CANCELLED:
        yield f"could not be cancelled ({one.cancel_result})"
    elif one.arrivals:
        yield "arrived although cancelled"
    if len(one.arrivals) > 1:
        yield "arrived more than once"
    if one.is_early:
        yield "arrived early"


def _name(one: DemoMessage) -> str:
    return f"number {one.number} of the {one.kind}"


def percentile(values: Sequence[int], share: float) -> int:
    """Return the value at `share` of the sorted `values`; 0 without values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0
