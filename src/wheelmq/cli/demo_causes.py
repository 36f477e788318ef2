"""Explain a late message by measurements of the machine: the processes that waited for a processor, and its load.

Linux counts in `/proc/PID/schedstat` how long the main thread of a process has run and has waited for a processor.
The demonstration reads these counts for the broker and for itself 50 times per second.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from wheelmq.cli.demo_messages import LATE_MS, DemoKind, DemoMessage

SAMPLE_S: Final = 0.02
LOAD_MS: Final = 250
"""The load is measured over this time before and after a late message, because the system counts it in 10 ms."""
BUSY_SHARE: Final = 0.9
"""Share of all processors above which the machine itself explains a lateness."""
PART_MIN: Final = 0.5
"""Share of a lateness that a measured time must have to explain it."""


class MachineReading(NamedTuple):
    """Counts of one moment, in milliseconds since some start."""

    at_ms: float
    broker_waits: float = 0.0
    broker_runs: float = 0.0
    consumer_waits: float = 0.0
    consumer_runs: float = 0.0
    busy: float = 0.0
    """Time of all processors with work."""
    total: float = 0.0
    """Time of all processors."""


class Cause(StrEnum):
    SENT_LATE = "sent after the due time"
    BURST = "one consumer receives the burst"
    BROKER_WAITED = "the broker waited for a processor"
    CONSUMER_WAITED = "the consumer waited for a processor"
    BROKER_RAN = "the broker did other work"
    CONSUMER_RAN = "the consumer did other work"
    MACHINE_BUSY = "the machine was busy"
    UNKNOWN = "no measured cause"


@dataclass(frozen=True)
class Explained:
    """Late messages with the same cause. The text is a clause about the latest one."""

    cause: Cause
    worst_ms: int
    messages: int
    text: str


class Machine:
    """The readings of a run."""

    def __init__(self, read: Callable[[], MachineReading]) -> None:
        self._read = read
        self._times_ms: list[float] = []
        self._readings: list[MachineReading] = []

    async def watch(self) -> None:
        """Read until this task is cancelled."""
        while True:
            self.note(self._read())
            await asyncio.sleep(SAMPLE_S)

    def note(self, reading: MachineReading) -> None:
        self._readings.append(reading)
        self._times_ms.append(reading.at_ms)

    def between(self, begin_ms: float, end_ms: float) -> MachineReading:
        """Return the growth of the counts from the last reading at or before `begin_ms` to the first after `end_ms`."""
        if not self._readings:
            return MachineReading(0.0)
        last = len(self._readings) - 1
        first = self._readings[max(0, bisect_left(self._times_ms, begin_ms) - 1)]
        then = self._readings[min(last, bisect_left(self._times_ms, end_ms))]
        # a process that was started again counts from 0
        return MachineReading(*(max(0.0, late - early) for early, late in zip(first, then, strict=True)))

    def busy_share(self, begin_ms: float, end_ms: float) -> float:
        """Return the share of all processors that had work."""
        found = self.between(begin_ms - LOAD_MS, end_ms + LOAD_MS)
        return found.busy / found.total if found.total else 0.0


def explain(
    late: Sequence[DemoMessage], machine: Machine, *, burst: int, is_restarting: Callable[[int], bool]
) -> list[Explained]:
    """Return the causes of late messages, the worst lateness first. `is_restarting` returns whether Spark starts."""
    found: dict[Cause, list[DemoMessage]] = {}
    for one in late:
        found.setdefault(cause_of(one, machine), []).append(one)
    explained = []
    for cause, those in found.items():
        worst = max(those, key=lambda one: one.lateness_ms)
        text = _text(cause, worst, machine, burst=burst, is_restarting=is_restarting(worst.due_ms))
        explained.append(Explained(cause, worst.lateness_ms, len(those), text))
    return sorted(explained, key=lambda one: -one.worst_ms)


def cause_of(message: DemoMessage, machine: Machine) -> Cause:
    """Return the cause that explains at least half of the slower part: the way into the topic, or to the consumer."""
    released_ms, received_ms = message.arrivals[0]
    if message.acknowledged_ms > message.due_ms:
        return Cause.SENT_LATE
    at_broker, on_the_way = released_ms - message.due_ms, received_ms - released_ms
    if at_broker >= on_the_way:
        part, moved = at_broker, machine.between(message.due_ms, released_ms)
        times = {Cause.BROKER_WAITED: moved.broker_waits, Cause.BROKER_RAN: moved.broker_runs}
    elif message.kind is DemoKind.BURST and at_broker <= LATE_MS:
        return Cause.BURST
    else:
        part, moved = on_the_way, machine.between(released_ms, received_ms)
        times = {
            Cause.CONSUMER_WAITED: moved.consumer_waits,
            Cause.BROKER_WAITED: moved.broker_waits,
            Cause.CONSUMER_RAN: moved.consumer_runs,
            Cause.BROKER_RAN: moved.broker_runs,
        }
    cause = max(times, key=lambda one: times[one])
    if times[cause] >= PART_MIN * part:
        return cause
    is_busy = machine.busy_share(message.due_ms, received_ms) >= BUSY_SHARE
    return Cause.MACHINE_BUSY if is_busy else Cause.UNKNOWN


def _text(cause: Cause, worst: DemoMessage, machine: Machine, *, burst: int, is_restarting: bool) -> str:
    """Return a clause with the measured times of a late message."""
    released_ms, received_ms = worst.arrivals[0]
    moved = machine.between(worst.due_ms, received_ms)
    times = MachineReading(*(min(time, worst.lateness_ms) for time in moved))  # a reading covers more than the lateness
    share = machine.busy_share(worst.due_ms, received_ms)
    load = f"(processors {100 * share:.0f} % busy{', Spark starting' if is_restarting else ''})"
    match cause:
        case Cause.SENT_LATE:
            return f"the broker acknowledged it {worst.acknowledged_ms - worst.due_ms} ms after its due time {load}"
        case Cause.BURST:
            at_broker_ms = released_ms - worst.due_ms
            return f"the broker needed {at_broker_ms} ms; one consumer in Python receives all {burst:,} messages"
        case Cause.BROKER_WAITED:
            return f"the broker waited {times.broker_waits:.0f} ms for a processor {load}"
        case Cause.CONSUMER_WAITED:
            return f"the consumer waited {times.consumer_waits:.0f} ms for a processor {load}"
        case Cause.BROKER_RAN:
            return f"the broker worked on other messages for {times.broker_runs:.0f} ms {load}"
        case Cause.CONSUMER_RAN:
            return f"the consumer worked on other messages for {times.consumer_runs:.0f} ms {load}"
        case Cause.MACHINE_BUSY:
            return f"the machine was busy {load}"
    return f"no measured cause {load}; see the log of the broker"


def line_of(one: Explained) -> str:
    """Return the line that explains late messages."""
    those = "1 message was" if one.messages == 1 else f"{one.messages:,} messages were up to"
    return f"{those} {one.worst_ms} ms late: {one.text}"


def machine_reader(broker_pid: Callable[[], int | None], now_ms: Callable[[], int]) -> Callable[[], MachineReading]:
    """Return a function that reads the counts of this machine. Systems without schedstat count no waiting times."""
    import psutil

    own = os.getpid()

    def read() -> MachineReading:
        pid = broker_pid()
        broker_runs, broker_waits = _schedule(pid) if pid is not None else (0.0, 0.0)
        consumer_runs, consumer_waits = _schedule(own)
        times = psutil.cpu_times()
        total = sum(times[:8])
        idle = times.idle + getattr(times, "iowait", 0.0)
        return MachineReading(
            now_ms(), broker_waits, broker_runs, consumer_waits, consumer_runs, (total - idle) * 1000, total * 1000
        )

    return read


def _schedule(pid: int) -> tuple[float, float]:
    """Return the milliseconds that a process has run and has waited for a processor; zeros if they are unknown."""
    try:
        runs, waits, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(runs) / 1e6, int(waits) / 1e6
