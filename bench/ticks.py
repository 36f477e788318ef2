"""Ticks of the broker and memory of all processes, over 3,000 turns back to back under a mixed load.

The load is timers due soon and late at a steady rate, and plain sends. Memory is sampled regularly. The difference
between the first and the last third of the samples, and a line through all of them, show whether it grows.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from bench.generator import generating
from bench.machine import memory_mib, parts_of
from bench.rawload import Load
from bench.report import Figures, Metric, Report, measure, parse, parser, tell
from bench.targets import Target, WheelMQ
from bench.turns import turned

TIMERS = Load(connections=4, rate=4000.0, delays_ms=(3_000, 12_000))
SOON = Load(connections=4, rate=500.0, delays_ms=(50, 700))
PLAIN = Load(connections=4, rate=4000.0)
SETTLE_S = 20.0
SAMPLE_S = 10.0
SECONDS_A_TURN_MAX = 1.5
"""The run ends at this number of seconds per turn, because the machine is too busy."""
PARTS = ("broker", "driver", "jvm", "workers")
KINDS = {"pss": "PSS", "anonymous": "anonymous"}

METRICS = [
    *(
        Metric(f"wall_{key}", f"tick with work, {key}, ms", at_most=5 if key == "p99" else None)
        for key in ("p50", "p99", "max")
    ),
    *(Metric(f"processor_{key}", f"tick with work, processor, {key}, ms") for key in ("p50", "p99", "max")),
    Metric("ticks", "ticks with work"),
    Metric("turns", "turns"),
    Metric("turns_per_s", "turns/s, back to back"),
    *(
        Metric(f"{part}_{kind}_{key}", f"{part}: {label}, {text}")
        for part in PARTS
        for kind, label in KINDS.items()
        for key, text in (("first", "first third, MiB"), ("last", "last third, MiB"), ("slope", "KiB/turn"))
    ),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("ticks", __doc__, rounds=1)
    made.add_argument("--turns", type=int, help="(3,000; 60 with --short)")
    options = parse(made, argv)
    options.only = "WheelMQ"
    turns = options.turns or (60 if options.short else 3000)
    report = Report(f"ticks and memory over {turns:,} turns back to back", METRICS)
    measure(report, options, lambda target: _ticks(target, turns), settings={"pipeline_pace_ms": 0})
    return report.finish(options.json)


def _ticks(target: Target, turns: int) -> Figures:
    assert isinstance(target, WheelMQ)
    seconds = SETTLE_S + turns * SECONDS_A_TURN_MAX
    with ExitStack() as stack:
        for topic, load in (("Timers", TIMERS), ("Soon", SOON), ("Plain", PLAIN)):
            run = Load(connections=load.connections, rate=load.rate, delays_ms=load.delays_ms, seconds=seconds)
            stack.enter_context(generating(target.broker, topic, run))
        time.sleep(SETTLE_S)
        return _watch(target, turns, time.monotonic() + turns * SECONDS_A_TURN_MAX)


def _watch(target: WheelMQ, turns: int, end_s: float) -> Figures:
    began_s, first = time.monotonic(), target.metrics()
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    while True:
        said = target.metrics()
        count = turned(first, said)
        for name, value in _memory(target).items():
            samples[name].append((count, value))
        if count >= turns or time.monotonic() > end_s:
            break
        time.sleep(SAMPLE_S)
    if count < turns:
        tell(f"given up after {count} of {turns} turns")
    figures: Figures = {"turns": count, "turns_per_s": count / (time.monotonic() - began_s)}
    for name in ("wall", "processor"):
        figures |= {f"{name}_{key}": said["ticks"][f"{name}_ms"][key] for key in ("p50", "p99", "max")}
    figures["ticks"] = said["ticks"]["wall_ms"]["count"]
    for name, taken in samples.items():
        figures |= {f"{name}_{key}": value for key, value in trend(taken).items()}
    return figures


def _memory(target: WheelMQ) -> Figures:
    """Return MiB by part and kind; the workers are summed."""
    found: dict[str, float] = defaultdict(float)
    for pid, part in parts_of(target.pids).items():
        for kind, value in memory_mib(pid).items():
            found[f"{part}_{kind}"] += value
    return dict(found)


def trend(samples: Sequence[tuple[int, float]]) -> Figures:
    """Return the medians of the first and last third in MiB, and the slope of a line through all in KiB per turn."""
    turns, values = np.array(samples, float).T
    third = max(1, len(values) // 3)
    slope = float(np.polyfit(turns, values, 1)[0]) * 1024 if turns[-1] > turns[0] else 0.0
    return {"first": float(np.median(values[:third])), "last": float(np.median(values[-third:])), "slope": slope}


if __name__ == "__main__":
    sys.exit(main())
