"""The first timers after idle minutes: one that the broker arms itself, and one that goes through the pipeline."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np

from bench.javaclient import JavaClient, pauses
from bench.lateness import CLIENT, warm
from bench.report import Figures, Metric, Report, measure, parse, parser, tell
from bench.targets import Target

TOPIC = "Idle"
DELAYS_MS = (800, 8000)
MARGIN_S = 10.0

METRICS = [
    Metric("worst_ms", "worst lateness, ms", at_most=20),
    *(Metric(f"worst_{delay}_ms", f"worst of those due after {delay} ms, ms") for delay in DELAYS_MS),
    *(Metric(f"median_{delay}_ms", f"median of those due after {delay} ms, ms") for delay in DELAYS_MS),
    Metric("early", "early", at_most=0),
    Metric("missing", "not there in time", at_most=0),
    *CLIENT,
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("first_after_idle", __doc__, rounds=1)
    made.add_argument("--idle-s", type=float, help="(300; 20 with --short)")
    made.add_argument("--times", type=int, help="(5; 2 with --short)")
    options = parse(made, argv)
    idle_s = options.idle_s or (20.0 if options.short else 300.0)
    times = options.times or (2 if options.short else 5)
    if options.only is None:
        options.only = "WheelMQ"
    report = Report(f"first timers after {idle_s:g} s idle, {times} times, Java push consumer", METRICS)
    measure(report, options, lambda target: _first(target, idle_s, times))
    return report.finish(options.json)


def _first(target: Target, idle_s: float, times: int) -> Figures:
    found: dict[int, list[int]] = {delay: [] for delay in DELAYS_MS}
    figures: Figures = {"missing": 0, "early": 0}
    with JavaClient(target, TOPIC) as client:
        warm(client)
        for i in range(times):
            tell(f"{target.name}: idle, {i + 1} of {times}")
            time.sleep(idle_s)
            client.reset()
            for delay in DELAYS_MS:
                client.command(f"at 1 0 {delay} 1", MARGIN_S + delay / 1000)
            said = client.wait(len(DELAYS_MS), MARGIN_S + max(DELAYS_MS) / 1000)
            arrivals = client.arrivals()
            order = np.argsort(arrivals.deliver_ms)
            late = (arrivals.at_ms - arrivals.deliver_ms)[order].tolist()
            for delay, late_ms in zip(DELAYS_MS, late, strict=False):
                found[delay].append(late_ms)
            figures["missing"] += len(DELAYS_MS) - len(arrivals)
            for name, value in pauses(said).items():
                figures[name] = max(value, figures.get(name, 0))
    every = [late_ms for values in found.values() for late_ms in values]
    figures["early"] = sum(late_ms < 0 for late_ms in every)
    figures |= {f"worst_{delay}_ms": max(values) for delay, values in found.items() if values}
    figures |= {f"median_{delay}_ms": float(np.median(values)) for delay, values in found.items() if values}
    return figures | ({"worst_ms": max(every)} if every else {})


if __name__ == "__main__":
    sys.exit(main())
