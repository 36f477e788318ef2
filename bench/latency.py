"""Latency from a Java producer to the listener of a Java push consumer at half load.

256 B, 32 threads, one JVM for both. Half load is half of the rate that the slower broker accepts from this producer
while the consumer runs, measured at the beginning; or the rate of --rate. A message's time starts at its scheduled
send. So a stall counts for every message that waits for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.javaclient import JavaClient, pauses
from bench.lateness import CLIENT
from bench.report import Figures, Metric, Report, measure, parse, parser, tell
from bench.sends_java import warm
from bench.targets import Target, prepare, rivals

TOPIC: Final = "Latency"
THREADS: Final = 32
WARM_S: Final = 10
"""Time at the measured rate, after the client is warm."""

METRICS = [
    Metric("p50_ms", "on its way, p50 ms", ratio_at_most=1),
    Metric("p99_ms", "p99, ms", ratio_at_most=1),
    Metric("p999_ms", "p99.9, ms", ratio_at_most=1),
    Metric("max_ms", "max, ms"),
    Metric("per_s", "messages/s sent"),
    Metric("failed", "sends that failed", at_most=0),
    Metric("lost", "that did not come", at_most=0),
    Metric("us", "broker processor us/message", ratio_at_most=1),
    *CLIENT,
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("latency", __doc__)
    made.add_argument("--seconds", type=int, help="(60; 15 with --short)")
    made.add_argument("--rate", type=int, help="messages/s (half of what the slower broker takes)")
    options = parse(made, argv)
    seconds = options.seconds or (15 if options.short else 60)
    rate = options.rate or _half_load(options)
    report = Report(f"sent at {rate:,}/s for {seconds} s, to the Java push consumer's listener, 256 B", METRICS)
    measure(report, options, lambda target: _latency(target, rate, seconds))
    return report.finish(options.json)


def _half_load(options: argparse.Namespace) -> int:
    prepare()
    rates = {}
    for kind in rivals()[0]:
        if options.only in (None, kind.name):
            with kind(options.home) as target, JavaClient(target, TOPIC, mode="time") as client:
                rates[kind.name] = warm(client)
    tell(f"messages/s sent and consumed: {', '.join(f'{name} {rate:,.0f}' for name, rate in rates.items())}")
    return round(min(rates.values()) / 2)


def _latency(target: Target, rate: int, seconds: int) -> Figures:
    with JavaClient(target, TOPIC, mode="time") as client:
        warm(client)
        client.times(WARM_S * rate, rate, THREADS)
        processor = target.processor()
        said, took_us = client.times(seconds * rate, rate, THREADS)
        used = processor.seconds()["broker"]
    p50, p99, p999 = (np.percentile(took_us, (50, 99, 99.9)) / 1000).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": took_us.max() / 1000,
        "per_s": said["sent"] / said["seconds"],
        "failed": said["failed"],
        "lost": said["sent"] - said["came"],
        "us": used * 1e6 / said["sent"],
        **pauses(said),
    }


if __name__ == "__main__":
    sys.exit(main())
