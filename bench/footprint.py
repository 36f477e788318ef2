"""Memory and processor use of all processes together: idle, and with 100,000 pending timers of 256 B.

"All processes" are name server and broker of Apache RocketMQ, or all that `wheelmq up` starts: also supervisor,
dashboard, and the pipeline with Spark and Java. The pending timers are due in one and in two days. The memory of a
process is its proportional set size (PSS): a page that several processes share counts once in the sum.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Final

from bench.generator import generate
from bench.machine import Processor, family, memory_mib
from bench.rawload import Load
from bench.report import Figures, Metric, Report, measure, parse, parser, tell
from bench.targets import Target, WheelMQWithoutPipeline
from bench.turns import SETTLE_S, look_until

TIMERS: Final = 100_000
TOPIC: Final = "Footprint"
DAY_MS: Final = 86_400_000
RATE: Final = 5000.0
"""Sends per second, which both brokers accept."""
INDEXED_DEADLINE_S: Final = 120.0

METRICS: Final = [
    Metric("processes", "processes"),
    *(
        metric
        for key, state in (("idle", "idle"), ("pending", "pending timers"))
        for metric in (
            Metric(f"{key}_mib", f"{state}: memory of all processes, MiB"),
            Metric(f"{key}_anonymous_mib", f"{state}: anonymous memory of these, MiB"),
            Metric(f"{key}_percent", f"{state}: processor, % of a core", ratio_at_most=1.0),
        )
    ),
    Metric("pending", "pending timers"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("footprint", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, help="the processor is measured for (60; 15 with --short)")
    made.add_argument("--timers", type=int, default=TIMERS, help=f"pending timers ({TIMERS})")
    options = parse(made, argv)
    report = Report(f"footprint of all processes, {options.timers:,} pending timers", METRICS)
    measure(report, options, lambda target: _footprint(target, options))
    if options.only != "Apache":
        for i in range(options.rounds):
            tell(f"footprint: WheelMQ without pipeline, round {i + 1} of {options.rounds}")
            with WheelMQWithoutPipeline(options.home) as target:
                report.add(target.name, _footprint(target, options))
    return report.finish(options.json)


def _footprint(target: Target, options: Namespace) -> Figures:
    seconds = options.seconds or (15.0 if options.short else 60.0)
    time.sleep(SETTLE_S)
    figures = {f"idle_{key}": value for key, value in _use(target, seconds).items()}
    load = Load(connections=4, rate=RATE, messages=options.timers, seconds=600.0, delays_ms=(DAY_MS, 2 * DAY_MS))
    figures["pending"] = generate(target.broker, TOPIC, load)["good"]
    target.await_indexed(INDEXED_DEADLINE_S)
    time.sleep(SETTLE_S)
    figures |= {f"pending_{key}": value for key, value in _use(target, seconds).items()}
    return figures | {"processes": len(_processes(target))}


def _processes(target: Target) -> list[int]:
    return [process.pid for pid in target.heads() for process in family(pid)]


def _use(target: Target, seconds: float) -> Figures:
    """Return the memory of all processes, and their processor use during the next `seconds`."""
    processor = Processor(lambda: dict.fromkeys(_processes(target), "all"))
    look_until(time.monotonic() + seconds, processor)
    percent = 100 * processor.seconds()["all"] / seconds
    found = [memory_mib(pid) for pid in _processes(target)]
    return {
        "mib": sum(each.get("pss", 0.0) for each in found),
        "anonymous_mib": sum(each.get("anonymous", 0.0) for each in found),
        "percent": percent,
    }


if __name__ == "__main__":
    sys.exit(main())
