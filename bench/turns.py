"""Turns of the pipeline: their rate and cost, idle and at 5,000 timers/s; and the share of timers that they arm."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.generator import generating
from bench.machine import Processor
from bench.rawload import Load
from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.targets import Target, WheelMQ
from tests.crash.figures import pipeline_share

TOPIC = "Turns"
RATE = 5000.0
DELAYS_MS = (8_000, 20_000)
SETTLE_S = 15.0
"""Time after a start, and after the load has begun: Spark compiles its plans, and the first timers are armed."""
LOOK_S = 0.5

METRICS = [
    Metric("idle_turns", "turns/s, idle", at_most=0),
    Metric("idle_pipeline", "driver, JVM, workers idle, processor s/s"),
    Metric("turns", "turns/s under load", at_most=2),
    Metric("rows", "timers in a turn"),
    Metric("driver", "driver under load, processor s/s"),
    Metric("jvm", "JVM under load, processor s/s"),
    Metric("workers", "workers under load, processor s/s"),
    Metric("broker", "broker under load, processor s/s"),
    Metric("per_turn", "driver, JVM, workers: processor s a turn"),
    Metric("share", "timers over 5 s that the pipeline armed, %", at_least=99),
    Metric("long", "timers over 5 s that were armed"),
    Metric("in_place", "timers that the broker armed in place of turns", at_most=0),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("turns", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, help="idle, and under load (60; 15 with --short)")
    options = parse(made, argv)
    options.only = "WheelMQ"
    seconds = options.seconds or (15.0 if options.short else 60.0)
    report = Report(f"turns over {seconds:g} s idle and {seconds:g} s at {RATE:,.0f} timers/s", METRICS)
    measure(report, options, lambda target: _turns(target, seconds))
    return report.finish(options.json)


def _turns(target: Target, seconds: float) -> Figures:
    assert isinstance(target, WheelMQ)
    time.sleep(SETTLE_S)
    idle, before, after = watch(target, seconds)
    figures = {"idle_turns": turned(before, after) / seconds, "idle_pipeline": pipeline_seconds(idle) / seconds}
    load = Load(connections=4, rate=RATE, seconds=SETTLE_S + seconds, delays_ms=DELAYS_MS)
    with generating(target.broker, TOPIC, load):
        time.sleep(SETTLE_S)
        used, before, after = watch(target, seconds)
    count = turned(before, after)
    share = pipeline_share(before["timers"]["armed_by"], after["timers"]["armed_by"])
    figures |= {"turns": count / seconds, "per_turn": pipeline_seconds(used) / max(1, count)}
    figures |= {part: used.get(part, 0.0) / seconds for part in ("driver", "jvm", "workers", "broker")}
    rows = after["pipeline"]["indexed_to"] - before["pipeline"]["indexed_to"]
    figures["in_place"] = target.armed_in_place()
    return figures | {"rows": rows / max(1, count), **_armed(share, before, after)}


def _armed(share: float | None, before: dict[str, Any], after: dict[str, Any]) -> Figures:
    ends = [
        sum(count for by, count in said["timers"]["armed_by"].items() if by.endswith("_long"))
        for said in (before, after)
    ]
    return {"long": ends[1] - ends[0]} | ({"share": 100 * share} if share is not None else {})


def watch(target: WheelMQ, seconds: float) -> tuple[dict[str, float], dict[str, Any], dict[str, Any]]:
    """Return processor seconds by part over `seconds`, and the broker's metrics before and after."""
    before, processor = target.metrics(), target.processor()
    look_until(time.monotonic() + seconds, processor)
    return processor.seconds(), before, target.metrics()


def look_until(end_s: float, processor: Processor) -> None:
    """Call `look` regularly until `end_s`, so that short-lived processes count."""
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
        processor.look()


def turned(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Return the number of turns between two metrics."""
    return int(after["pipeline"]["turn"] - before["pipeline"]["turn"])


def pipeline_seconds(used: dict[str, float]) -> float:
    """Return the processor seconds of all processes of the pipeline."""
    return sum(used.get(part, 0.0) for part in ("driver", "jvm", "workers", "other"))


if __name__ == "__main__":
    sys.exit(main())
