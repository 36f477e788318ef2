"""Processor use of broker and pipeline while there is no work."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.targets import Target
from bench.turns import SETTLE_S, look_until, pipeline_seconds

METRICS = [
    Metric("all", "broker and pipeline, % of a core", below=3),
    Metric("broker", "broker, % of a core"),
    Metric("pipeline", "driver, JVM, workers, % of a core"),
    Metric("namesrv", "name server, % of a core"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("idle", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, help="(60; 20 with --short)")
    options = parse(made, argv)
    seconds = options.seconds or (20.0 if options.short else 60.0)
    report = Report(f"idle, {seconds:g} s", METRICS)
    measure(report, options, lambda target: _idle(target, seconds))
    return report.finish(options.json)


def _idle(target: Target, seconds: float) -> Figures:
    time.sleep(SETTLE_S)
    processor = target.processor()
    look_until(time.monotonic() + seconds, processor)
    used = processor.seconds()
    share = {part: 100 * value / seconds for part, value in used.items()}
    pipeline = 100 * pipeline_seconds(used) / seconds
    return {
        "all": share["broker"] + pipeline,
        "broker": share["broker"],
        "pipeline": pipeline,
        "namesrv": share["namesrv"],
    }


if __name__ == "__main__":
    sys.exit(main())
