"""Sends as raw frames: 16 connections with 64 in flight each, of 256 B, 1 KiB and 4 KiB; and batches of 32 of 256 B.

Each connection has 8 batches in flight. All figures count messages. A third column shows a sink that only answers:
the highest rate of the generator.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Final

from bench.generator import generate, sink, warm_up
from bench.rawload import Load
from bench.report import Figures, Metric, Report, add_flush, measure_flushing, parse, parser
from bench.targets import Target

SIZES: Final = (256, 1024, 4096)
BATCH: Final = 32
BATCH_WINDOW: Final = 8
SINK_S: Final = 5.0
RATIOS: Final = {"256": 4.0, "1024": 3.0}
"""Goals for the ratio to Apache; the goal of all other cases is 1."""

Cases = dict[str, Load]
"""Loads by their names in figures: 256, or 256x32."""


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("sends_raw", __doc__)
    made.add_argument("--seconds", type=float, help="for each (20; 5 with --short)")
    made.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of bodies, in bytes (256 1024 4096)")
    made.add_argument(
        "--batch", type=int, default=BATCH, help=f"messages of the first size in a batch; 1: none ({BATCH})"
    )
    add_flush(made)
    options = parse(made, argv)
    seconds = options.seconds or (5.0 if options.short else 20.0)
    cases = {str(size): Load(body_bytes=size, seconds=seconds) for size in options.sizes}
    if options.batch > 1:
        size = options.sizes[0]
        batches = Load(body_bytes=size, seconds=seconds, batch=options.batch, window=BATCH_WINDOW)
        cases[f"{size}x{options.batch}"] = batches
    report = Report(f"sends, raw frames, 16 x 64 in flight, {seconds:g} s each", _metrics(cases))
    with sink() as address:
        report.add("sink", _ceiling(address, cases, min(seconds, SINK_S)))
    measure_flushing(report, options, lambda target: _sends(target, cases))
    return report.finish(options.json)


def _metrics(cases: Cases) -> list[Metric]:
    called = {name: f"{load.body_bytes:,} B" + f" x {load.batch}" * (load.batch > 1) for name, load in cases.items()}
    return [
        *(
            Metric(f"per_s_{name}", f"messages/s, {text}", ratio_at_least=RATIOS.get(name, 1.0))
            for name, text in called.items()
        ),
        *(Metric(f"log_{name}", f"log MB/s, {text}") for name, text in called.items()),
        *(Metric(f"us_{name}", f"broker processor us/message, {text}") for name, text in called.items()),
        Metric("refused", "sends not taken", at_most=0),
        Metric("generator", "generator's processor, % of a core"),
    ]


def _ceiling(address: str, cases: Cases, seconds: float) -> Figures:
    figures = {}
    for name, load in cases.items():
        result = generate(address, "Bench", dataclasses.replace(load, seconds=seconds))
        figures[f"per_s_{name}"] = result["per_second"] * load.batch
    return figures


def _sends(target: Target, cases: Cases) -> Figures:
    figures: Figures = {"refused": 0, "generator": 0}
    for i, (name, load) in enumerate(cases.items()):
        topic = f"Bench{name}"
        warm_up(target, topic, load, is_first=i == 0)
        processor, before = target.processor(), target.log_bytes()
        result = generate(target.broker, topic, load)
        used, after = processor.seconds()["broker"], target.log_bytes()
        figures[f"per_s_{name}"] = result["per_second"] * load.batch
        figures[f"log_{name}"] = (after - before) / 1e6 / result["seconds"]
        figures[f"us_{name}"] = used * 1e6 / max(1, result["good"] * load.batch)
        figures["refused"] += result["sent"] - result["good"]
        figures["generator"] = max(figures["generator"], 100 * result["processor_seconds"] / result["seconds"])
    return figures


if __name__ == "__main__":
    sys.exit(main())
