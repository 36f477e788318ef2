"""Timers in and out at once: raw frames of 256 B as fast as the broker accepts them, half due in 20 s, half in 45 s.

Afterwards the benchmark reads the topic's queues to the end and looks for every message by its number. "Sustained" is
the number of timers that went in and came out, divided by the seconds of sending plus the lateness of the last timer.

At full speed more timers become due than the broker can release while it accepts sends. The lateness then shows how
soon the broker slows the sender down. `--pace 1.5` limits WheelMQ to one and a half times the rate that Apache
sustained in the same round. The lateness is then that of a broker that keeps up. `--rate` gives both brokers a rate.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench.deliveries import judge, read
from bench.generator import generate_taken, warm_up
from bench.rawload import Bytes, Load
from bench.report import Figures, Metric, Report, measure, parse, parser, spread, tell
from bench.targets import Target, WheelMQ

TOPIC = "Sustained"
WARM_TOPIC = "Warm"
WARM_DELAY_MS = 2000
STALL_S = 30.0
"""After this time without a new message, the missing ones count as lost."""
DRAIN_MAX_S = 240.0
LOOK_S = 0.5
PACED_LATE_MS = 50
"""Greatest allowed p99 of a broker at a rate that it can sustain."""

METRICS = [
    Metric("sustained", "timers/s, in and out", ratio_at_least=1),
    Metric("in_per_s", "in, timers/s", ratio_at_least=1),
    Metric("out_per_s", "out, timers/s while in, both delays due"),
    Metric("timers", "timers"),
    Metric("refused", "not taken"),
    Metric("lost", "lost", at_most=0),
    Metric("twice", "twice", at_most=0),
    Metric("early", "early", at_most=0),
    Metric("strange", "never sent", at_most=0),
    Metric("p50_ms", "lateness in the queue p50, ms"),
    Metric("p99_ms", "lateness in the queue p99, ms"),
    Metric("max_ms", "lateness in the queue max, ms"),
    Metric("in_place", "timers that the broker armed in place of turns", at_most=0),
    Metric("broker_cores", "broker's processor, cores"),
    Metric("others_cores", "JVM and workers, cores"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("timers_sustained", __doc__, rounds=1)
    made.add_argument("--seconds", type=float, help="of sending (60; 20 with --short)")
    made.add_argument("--delays-s", type=float, nargs=2, help="(20 45; 6 12 with --short)")
    made.add_argument("--rate", type=float, help="timers/s for each broker; else as fast as it takes them")
    made.add_argument("--pace", type=float, help="WheelMQ is given so many times what Apache sustained in that round")
    options = parse(made, argv)
    seconds = options.seconds or (20.0 if options.short else 60.0)
    first_s, second_s = options.delays_s or ((6.0, 12.0) if options.short else (20.0, 45.0))
    load = Load(seconds=seconds, delays_ms=(int(first_s * 1000), int(second_s * 1000)), rate=options.rate)
    title = f"timers in and out, {seconds:g} s of raw frames of 256 B, delays {first_s:g} and {second_s:g} s"
    is_paced = options.rate is not None or options.pace is not None
    report = Report(
        title, [replace(one, at_most=PACED_LATE_MS) if is_paced and one.key == "p99_ms" else one for one in METRICS]
    )
    measure(report, options, lambda target: _sustain(target, _paced(load, target, report, options)))
    return report.finish(options.json)


def _paced(load: Load, target: Target, report: Report, options: argparse.Namespace) -> Load:
    if options.pace is None or target.name == "Apache":
        return load
    rounds = report.figures.get("Apache")
    if not rounds:
        raise SystemExit("--pace needs a round of Apache's before: leave --only out, or give a --rate")
    return replace(load, rate=options.pace * rounds[-1]["sustained"])


def _sustain(target: Target, load: Load) -> Figures:
    warm_up(target, WARM_TOPIC, Load(delays_ms=(WARM_DELAY_MS, WARM_DELAY_MS)))
    _drain(target, WARM_TOPIC, 1 << 60, WARM_DELAY_MS / 1000 + 5.0)
    processor = target.processor()
    result, taken = generate_taken(target.broker, TOPIC, load)
    used = processor.seconds()
    wanted = int(np.count_nonzero(taken))
    tell(f"{target.name}: {wanted:,} timers in, waiting for the last")
    assert load.delays_ms is not None
    _drain(target, TOPIC, wanted, max(load.delays_ms) / 1000 + STALL_S)
    in_place = {"in_place": target.armed_in_place()} if isinstance(target, WheelMQ) else {}
    target.end()
    return (
        _figures(target, load, result, taken)
        | in_place
        | {
            "broker_cores": used["broker"] / result["seconds"],
            "others_cores": sum(used.get(part, 0.0) for part in ("driver", "jvm", "workers")) / result["seconds"],
        }
    )


def _drain(target: Target, topic: str, wanted: int, stall_s: float) -> None:
    """Wait until the topic holds the `wanted` messages, or does not grow for `stall_s`."""
    end_s = time.monotonic() + DRAIN_MAX_S
    grown_s, count = time.monotonic(), 0
    while count < wanted and time.monotonic() < min(end_s, grown_s + stall_s):
        time.sleep(LOOK_S)
        now = target.stored(topic)
        if now > count:
            grown_s, count = time.monotonic(), now


def _figures(target: Target, load: Load, result: dict[str, float], taken: Bytes) -> Figures:
    deliveries = read(target.store, TOPIC)
    outcome = judge(deliveries, taken)
    late_ms = deliveries.store_ms - deliveries.deliver_ms
    figures: Figures = {
        "timers": int(np.count_nonzero(taken)),
        "refused": result["sent"] - result["good"],
        "in_per_s": result["good"] / result["seconds"],
        "lost": outcome.lost,
        "twice": outcome.twice,
        "early": outcome.early,
        "strange": outcome.strange,
        **spread(late_ms),
    }
    assert load.delays_ms is not None
    both_ms = result["first_ms"] + max(load.delays_ms)
    if both_ms < result["last_ms"]:
        meanwhile = (deliveries.store_ms >= both_ms) & (deliveries.store_ms < result["last_ms"])
        figures["out_per_s"] = int(np.count_nonzero(meanwhile)) * 1000 / (result["last_ms"] - both_ms)
    if len(deliveries):
        last_s = (deliveries.store_ms.max() - deliveries.deliver_ms.max()) / 1000
        figures["sustained"] = (len(deliveries) - outcome.twice) / (result["seconds"] + max(0.0, last_s))
    return figures


if __name__ == "__main__":
    sys.exit(main())
