"""The report at the end of the demonstration: results, explained lateness, and a comparison with Apache RocketMQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wheelmq.cli.demo_causes import Explained, line_of
from wheelmq.cli.demo_messages import LATE_MS, DemoKind, DemoMessage, percentile
from wheelmq.cli.demo_run import DemoRun

APACHE: Final = "Apache RocketMQ 5.3.3"
MEASURED: Final = (
    ("20,000 timers over 20 s: lateness at the consumer, p50; p99", "626 ms; 1,076 ms", "1 ms; 10 ms"),
    ("50,000 timers due at one millisecond: last one in its topic", "2.0 s", "0.10 s"),
    ("the same timers: last one at the consumer", "2.5 s", "0.70 s"),
)
"""Rows of docs/figures.md. A test compares them with that page."""
DOCUMENTED: Final = (
    ("due times are rounded to (timerPrecisionMs)", "1,000 ms", "1 ms"),
    ("cancel by handle (recallMessageEnable)", "off by default", "on"),
)
"""Default settings of both, from docs/operations/timer-settings.md."""
SOURCES: Final = (
    "Both brokers had their default settings, on one machine with two cores, with Java consumers: docs/figures.md.",
    "Precision and cancel: docs/operations/timer-settings.md, and the settings of RocketMQ 5.3.3.",
)


def report(run: DemoRun, explained: Sequence[Explained], problems: Sequence[str]) -> list[str]:
    """Return the lines of the report."""
    if problems:
        return ["", "The demo FAILED.", *(f"  PROBLEM: {problem}" for problem in problems)]
    return ["", *_results(run), *_late(explained), "", *_comparison(run), "", *_next()]


def _results(run: DemoRun) -> list[str]:
    messages = run.messages
    burst, stream = messages.delivered(DemoKind.BURST), messages.delivered(DemoKind.STREAM)
    away = [one for one in [*burst, *stream] if run.is_restarting(one.due_ms)]
    away_s = ((run.back_ms or 0) - (run.killed_ms or 0)) / 1000
    return [
        f"RESULT: {len(burst) + len(stream):,} messages arrived, each once and none early. None was lost.",
        f"  burst     {len(burst):,} due at one millisecond: last one in its topic after {_last_release(burst)} ms, "
        f"at the consumer after {_worst(burst)} ms",
        f"  stream    {len(stream):,} messages: lateness {_percentiles(stream)} at the consumer",
        f"  Spark     away for {away_s:.1f} s; {len(away):,} messages were due meanwhile; turns in all: {run.turns}",
        f"  cancels   {len(messages.cancelled())} of {len(messages.cancelled())}; none of these messages arrived",
    ]


def _late(explained: Sequence[Explained]) -> list[str]:
    """Return the explanations of messages over LATE_MS, one per cause."""
    if not explained:
        return [f"  late      no message was over {LATE_MS} ms late"]
    return [f"  late      {line_of(one)}" for one in explained]


def _comparison(run: DemoRun) -> list[str]:
    burst, stream = run.messages.delivered(DemoKind.BURST), run.messages.delivered(DemoKind.STREAM)
    cancels = f"{len(run.messages.cancelled())} by key"
    here = (_percentiles(stream, named=False), f"{_last_release(burst)} ms", f"{_worst(burst)} ms", "1 ms", cancels)
    rows = [
        ("", APACHE, "WheelMQ", "this run"),
        *((*row, own) for row, own in zip(MEASURED + DOCUMENTED, here, strict=True)),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    sizes = f"This run had {len(stream):,} and {len(burst):,} messages, and a consumer in Python."
    return ["COMPARISON", *(f"  {line}" for line in lines), *(f"  {line}" for line in (*SOURCES, sizes))]


def _next() -> list[str]:
    return ["Next: `wheelmq up` keeps all parts running. `wheelmq send Orders hello --delay 10s` sends a timer."]


def _last_release(messages: Sequence[DemoMessage]) -> int:
    return max((one.arrivals[0].released_ms - one.due_ms for one in messages), default=0)


def _worst(messages: Sequence[DemoMessage]) -> int:
    return max((one.lateness_ms for one in messages), default=0)


def _percentiles(messages: Sequence[DemoMessage], *, named: bool = True) -> str:
    late = sorted(one.lateness_ms for one in messages)
    p50, p99 = percentile(late, 0.5), percentile(late, 0.99)
    return f"p50 {p50} ms, p99 {p99} ms, worst {_worst(messages)} ms" if named else f"{p50} ms; {p99} ms"
