"""Sends as raw frames: 16 connections with 64 in flight each, 256 B and 1 KiB.

Beside Apache and WheelMQ stands a sink, which answers and does nothing else: what the generator could ask for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.generator import generate, sink, warm_up
from bench.rawload import Load
from bench.report import Figures, Metric, Report, add_flush, measure_flushing, parse, parser
from bench.targets import Target

SIZES = (256, 1024)

METRICS = [
    Metric("per_s_256", "sends/s of 256 B", ratio_at_least=4),
    Metric("per_s_1024", "sends/s of 1 KiB", ratio_at_least=3),
    Metric("log_256", "log MB/s at 256 B"),
    Metric("log_1024", "log MB/s at 1 KiB"),
    Metric("us_256", "broker processor us/send, 256 B"),
    Metric("us_1024", "broker processor us/send, 1 KiB"),
    Metric("refused", "sends not taken", at_most=0),
    Metric("generator", "generator's processor, % of a core"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("sends_raw", __doc__)
    made.add_argument("--seconds", type=float, help="for each size (20; 5 with --short)")
    add_flush(made)
    options = parse(made, argv)
    seconds = options.seconds or (5.0 if options.short else 20.0)
    report = Report(f"sends, raw frames, 16 x 64 in flight, {seconds:g} s each", METRICS)
    with sink() as address:
        report.add("sink", _ceiling(address, min(seconds, 5.0)))
    measure_flushing(report, options, lambda target: _sends(target, seconds))
    return report.finish(options.json)


def _ceiling(address: str, seconds: float) -> Figures:
    results = {size: generate(address, "Bench", Load(body_bytes=size, seconds=seconds)) for size in SIZES}
    return {f"per_s_{size}": result["per_second"] for size, result in results.items()}


def _sends(target: Target, seconds: float) -> Figures:
    figures: Figures = {"refused": 0, "generator": 0}
    for size in SIZES:
        topic = f"Bench{size}"
        load = Load(body_bytes=size, seconds=seconds)
        warm_up(target.broker, topic, load)
        processor, before = target.processor(), target.log_bytes()
        result = generate(target.broker, topic, load)
        used, after = processor.seconds()["broker"], target.log_bytes()
        figures[f"per_s_{size}"] = result["per_second"]
        figures[f"log_{size}"] = (after - before) / 1e6 / result["seconds"]
        figures[f"us_{size}"] = used * 1e6 / max(1, result["good"])
        figures["refused"] += result["sent"] - result["good"]
        figures["generator"] = max(figures["generator"], 100 * result["processor_seconds"] / result["seconds"])
    return figures


if __name__ == "__main__":
    sys.exit(main())
