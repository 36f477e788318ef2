"""Late messages are explained by measured times."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from wheelmq.cli.demo_causes import (
    Cause,
    Explained,
    Machine,
    MachineReading,
    cause_of,
    explain,
    line_of,
    machine_reader,
)
from wheelmq.cli.demo_messages import Arrival, DemoKind, DemoMessage

DUE = 1_800_000_000_000
LOADED = MachineReading(0.0, busy=0.95, total=1.0)
"""Growth of the counts per millisecond on a busy machine."""
IDLE = MachineReading(0.0, busy=0.2, total=1.0)


def machine(per_ms: MachineReading) -> Machine:
    """Return a machine whose counts grow evenly, as in `per_ms`, with a reading every 20 ms."""
    made = Machine(lambda: MachineReading(0.0))
    for at in range(-1000, 2000, 20):
        made.note(MachineReading(DUE + at, *((at + 1000) * rate for rate in per_ms[1:])))
    return made


def late(
    released_ms: int, received_ms: int, kind: DemoKind = DemoKind.STREAM, acknowledged_ms: int = -500
) -> DemoMessage:
    return DemoMessage(
        kind, 0, DUE, acknowledged_ms=DUE + acknowledged_ms, arrivals=[Arrival(DUE + released_ms, DUE + received_ms)]
    )


SLOW_BROKER, SLOW_WAY = late(40, 42), late(2, 42)


@pytest.mark.parametrize(
    ("message", "per_ms", "cause"),
    [
        (SLOW_BROKER, IDLE._replace(broker_waits=0.8), Cause.BROKER_WAITED),
        (SLOW_BROKER, IDLE._replace(broker_runs=0.9, broker_waits=0.1), Cause.BROKER_RAN),
        (SLOW_BROKER, IDLE._replace(consumer_waits=0.9), Cause.UNKNOWN),
        (SLOW_WAY, IDLE._replace(consumer_waits=0.9), Cause.CONSUMER_WAITED),
        (SLOW_WAY, IDLE._replace(consumer_runs=0.9), Cause.CONSUMER_RAN),
        (SLOW_WAY, IDLE._replace(broker_waits=0.9), Cause.BROKER_WAITED),
        (SLOW_WAY, LOADED, Cause.MACHINE_BUSY),
        (SLOW_WAY, IDLE, Cause.UNKNOWN),
        (SLOW_WAY, IDLE._replace(consumer_waits=0.2), Cause.UNKNOWN),
        (late(2, 300, DemoKind.BURST), IDLE, Cause.BURST),
        (late(40, 300, DemoKind.BURST), IDLE._replace(consumer_runs=0.9), Cause.CONSUMER_RAN),
        (late(80, 82, acknowledged_ms=79), IDLE._replace(broker_waits=0.9), Cause.SENT_LATE),
    ],
)
def test_the_cause_is_the_measured_time_of_the_slower_part(
    message: DemoMessage, per_ms: MachineReading, cause: Cause
) -> None:
    assert cause_of(message, machine(per_ms)) is cause


def test_a_lateness_without_readings_has_no_cause() -> None:
    assert cause_of(SLOW_BROKER, Machine(lambda: MachineReading(0.0))) is Cause.UNKNOWN


def test_counts_of_a_process_that_was_started_again_do_not_shrink() -> None:
    made = Machine(lambda: MachineReading(0.0))
    made.note(MachineReading(DUE, broker_waits=500.0, consumer_waits=10.0))
    made.note(MachineReading(DUE + 20, broker_waits=1.0, consumer_waits=15.0))
    grown = made.between(DUE, DUE + 20)
    assert (grown.at_ms, grown.broker_waits, grown.consumer_waits) == (20.0, 0.0, 5.0)


def explained(*messages: DemoMessage, per_ms: MachineReading, is_restarting: bool = False) -> list[Explained]:
    restarting: Callable[[int], bool] = lambda time_ms: is_restarting and time_ms == DUE  # noqa: E731
    return explain(messages, machine(per_ms), burst=5000, is_restarting=restarting)


def test_messages_of_one_cause_are_explained_by_the_latest() -> None:
    found = explained(SLOW_BROKER, late(60, 61), late(2, 90), per_ms=LOADED._replace(broker_waits=1.0))
    assert [(one.cause, one.worst_ms, one.messages) for one in found] == [(Cause.BROKER_WAITED, 90, 3)]
    assert explained(per_ms=IDLE) == []


def test_the_explanation_has_the_measured_times() -> None:
    waited = LOADED._replace(broker_waits=0.75)
    text = explained(late(40, 40), per_ms=waited, is_restarting=True)[0].text
    assert text == "the broker waited 40 ms for a processor (processors 95 % busy, Spark starting)"
    assert explained(late(40, 40), per_ms=waited)[0].text.endswith("(processors 95 % busy)")
    burst = explained(late(2, 300, DemoKind.BURST), per_ms=IDLE)[0].text
    assert burst == "the broker needed 2 ms; one consumer in Python receives all 5,000 messages"
    sent = explained(late(80, 82, acknowledged_ms=79), per_ms=IDLE)[0].text
    assert sent == "the broker acknowledged it 79 ms after its due time (processors 20 % busy)"


@pytest.mark.parametrize(
    ("messages", "line"),
    [(1, "1 message was 34 ms late: why"), (2000, "2,000 messages were up to 34 ms late: why")],
)
def test_a_line_counts_the_messages(messages: int, line: str) -> None:
    assert line_of(Explained(Cause.UNKNOWN, 34, messages, "why")) == line


def test_this_machine_is_read() -> None:
    read = machine_reader(os.getpid, lambda: DUE)
    first, then = read(), read()
    assert first.at_ms == DUE
    assert then.total >= first.total > 0 and then.busy >= first.busy > 0
    assert then.broker_runs >= first.consumer_runs > 0  # the broker's process is this one too


def test_a_process_that_is_gone_has_no_times() -> None:
    reading = machine_reader(lambda: None, lambda: DUE)()
    assert (reading.broker_runs, reading.broker_waits) == (0.0, 0.0)
