"""Sends of Apache's Java client: 32 threads, each waiting for its answer, 256 B; and what a send costs the broker."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.javaclient import JavaClient
from bench.report import Figures, Metric, Report, add_flush, measure_flushing, parse, parser
from bench.targets import Target

TOPIC = "Sends"
THREADS = 32
WARM_SLICE_S = 4
WARM_GROWTH = 1.1
WARM_SLICES = 10

METRICS = [
    Metric("per_s", "sends/s", ratio_at_least=0.95),
    Metric("us", "broker processor us/send", ratio_at_most=1),
    Metric("failed", "sends that failed", at_most=0),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("sends_java", __doc__)
    made.add_argument("--seconds", type=int, help="(20; 8 with --short)")
    add_flush(made)
    options = parse(made, argv)
    seconds = options.seconds or (8 if options.short else 20)
    report = Report(f"sends, Java client, {THREADS} threads, 256 B, {seconds} s", METRICS)
    measure_flushing(report, options, lambda target: _sends(target, seconds))
    return report.finish(options.json)


def _sends(target: Target, seconds: int) -> Figures:
    with JavaClient(target, TOPIC, consumes=False) as client:
        _warm(client)
        processor = target.processor()
        said = client.command(f"sends {seconds} {THREADS}", seconds + 60)
        used = processor.seconds()["broker"]
    return {
        "per_s": said["sent"] / said["seconds"],
        "us": used * 1e6 / max(1, said["sent"]),
        "failed": said["failed"],
    }


def _warm(client: JavaClient) -> None:
    """Send unmeasured until it gets no faster: both the client and a broker in Java compile as they go."""
    best = 0.0
    for i in range(WARM_SLICES):
        said = client.command(f"sends {WARM_SLICE_S} {THREADS}", WARM_SLICE_S + 60)
        rate = said["sent"] / said["seconds"]
        if i >= 2 and rate < best * WARM_GROWTH:
            return
        best = max(best, rate)


if __name__ == "__main__":
    sys.exit(main())
