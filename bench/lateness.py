"""Lateness of timers at Apache's Java push consumer.

timers  20,000 timers with a chosen time, due over 20 s, 256 B
delays  delays of 1, 50, 200, 500 and 1000 ms, 1,000 of each. The due time is the broker's time of receipt plus the
        delay, as the broker wrote it: __WMQ_DUE, or for Apache the store time of the parked record plus the delay
blocks  20,000 messages with delayInSeconds, sent and so due over 20 s, 256 B; WheelMQ alone, because Apache RocketMQ
        has no delayInSeconds
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from bench.deliveries import Deliveries, read
from bench.javaclient import Arrivals, Column, JavaClient, pauses
from bench.report import Figures, Metric, Report, measure, parse, parser, spread
from bench.targets import Target
from tests.crash.records import TIMER_TOPIC

TOPIC = "Lateness"
WARM_PER_S = 1000
"""The rate that a cold client certainly reaches."""
THREADS = 16
BLOCK_PER_S = 1000
BLOCK_SECONDS = 40
"""Longer than the lead: the messages are parked in their block, and a turn of the pipeline arms them."""
DELAYS_MS = (1, 50, 200, 500, 1000)
WARM_COUNT = 10_000
DRAIN_S = 30.0

CLIENT = [
    Metric("longest_collection_ms", "client's longest collection, ms"),
    Metric("wake_p99_ms", "client's own wake lateness p99, ms"),
    Metric("wake_max_ms", "client's own wake lateness max, ms"),
]
STORED = [
    Metric("p50_stored_ms", "of these until stored in the topic: p50, ms"),
    Metric("p99_stored_ms", "of these until stored in the topic: p99, ms"),
]
COUNTS = [
    Metric("early", "early", at_most=0),
    Metric("lost", "lost", at_most=0),
    Metric("twice", "handed over twice", at_most=0),
]
TIMERS = [
    Metric("p50_ms", "lateness p50, ms", at_most=5),
    Metric("p99_ms", "lateness p99, ms", at_most=20),
    Metric("max_ms", "lateness max, ms"),
    *STORED,
    *COUNTS,
    Metric("sent_late", "sent within 1 s of due"),
    *CLIENT,
]
BLOCKS = [metric for metric in TIMERS if metric.key != "sent_late"]
DELAYS = [
    *(Metric(f"p50_{delay}_ms", f"delay {delay} ms: lateness p50, ms") for delay in DELAYS_MS),
    *(Metric(f"p99_{delay}_ms", f"delay {delay} ms: lateness p99, ms", at_most=20) for delay in DELAYS_MS),
    *STORED,
    *COUNTS,
    *CLIENT,
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("lateness", __doc__)
    made.add_argument("--mode", choices=("timers", "delays", "blocks"), default="timers")
    made.add_argument(
        "--count", type=int, help="timers, or blocks (20,000; 5,000 with --short), or delays of each kind (1,000; 200)"
    )
    made.add_argument(
        "--precision",
        type=int,
        default=1000,
        choices=(100, 200, 500, 1000),
        help="Apache's timerPrecisionMs, ms (1000)",
    )
    options = parse(made, argv)
    apache = {"timerPrecisionMs": options.precision}
    if options.mode == "timers":
        count = options.count or (5_000 if options.short else 20_000)
        report = Report(f"lateness of {count:,} timers due over {count // 1000} s, 256 B, Java push consumer", TIMERS)
        report.notes.append(f"Apache's timerPrecisionMs is {options.precision}")
        measure(report, options, lambda target: _timers(target, count), apache=apache)
    elif options.mode == "blocks":
        count = options.count or (5_000 if options.short else 20_000)
        title = f"lateness of {count:,} messages with delayInSeconds, {BLOCK_PER_S:,}/s, 256 B, Java push consumer"
        report = Report(title, BLOCKS, notes=["Apache RocketMQ knows no delayInSeconds"])
        if options.only != "Apache":
            options.only = "WheelMQ"
            measure(report, options, lambda target: _blocks(target, count))
    else:
        count = options.count or (200 if options.short else 1_000)
        report = Report(f"lateness of delays, {count:,} of each, 256 B, Java push consumer", DELAYS)
        report.notes.append(f"Apache's timerPrecisionMs is {options.precision}")
        measure(report, options, lambda target: _delays(target, count), apache=apache)
    return report.finish(options.json)


def _timers(target: Target, count: int) -> Figures:
    with JavaClient(target, TOPIC) as client:
        lead_s = lead(count, warm(client))
        said = client.command(*at(count, span_ms=count, lead_s=lead_s))
        done = client.wait(count, lead_s + count / 1000 + DRAIN_S)
        arrivals = client.arrivals()
    target.end()
    figures = _counts(arrivals, count, arrivals.deliver_ms)
    figures |= spread(arrivals.at_ms - arrivals.deliver_ms)
    figures |= spread(stored(target, TOPIC, arrivals) - arrivals.deliver_ms, "stored")
    return figures | {"sent_late": said["sent_within_a_second_of_due"]} | pauses(done)


def _blocks(target: Target, count: int) -> Figures:
    with JavaClient(target, TOPIC) as client:
        warm(client)
        client.command(f"seconds {count} {BLOCK_PER_S} {BLOCK_SECONDS}", 60 + count / 100)
        done = client.wait(count, BLOCK_SECONDS + DRAIN_S)
        arrivals = client.arrivals()
    target.end()
    figures = _counts(arrivals, count, arrivals.due_ms) | spread(arrivals.at_ms - arrivals.due_ms)
    return figures | spread(stored(target, TOPIC, arrivals) - arrivals.due_ms, "stored") | pauses(done)


def _delays(target: Target, count: int) -> Figures:
    whole = count * len(DELAYS_MS)
    with JavaClient(target, TOPIC) as client:
        warm(client)
        client.command(f"delays {count} 500 {','.join(map(str, DELAYS_MS))}", 60 + whole / 100)
        done = client.wait(whole, DRAIN_S)
        arrivals = client.arrivals()
    target.end()
    due_ms = _due(target, arrivals)
    figures = (
        _counts(arrivals, whole, due_ms) | pauses(done) | spread(stored(target, TOPIC, arrivals) - due_ms, "stored")
    )
    for delay in DELAYS_MS:
        mine = arrivals.delay_ms == delay
        figures |= spread((arrivals.at_ms - due_ms)[mine], str(delay))
    return figures


def _due(target: Target, arrivals: Arrivals) -> Column:
    """Return the due time of each timer by the broker's clock."""
    if (arrivals.due_ms > 0).all():
        return arrivals.due_ms
    parked = read(target.store, TIMER_TOPIC, with_keys=True)
    return _look_up(arrivals.keys, parked, parked.store_ms + parked.delay_ms)


def stored(target: Target, topic: str, arrivals: Arrivals) -> Column:
    """Return the time at which the broker stored each message in the topic."""
    delivered = read(target.store, topic, with_keys=True)
    return _look_up(arrivals.keys, delivered, delivered.store_ms)


def _look_up(keys: Sequence[str], stored: Deliveries, values: Column) -> Column:
    """Return the value of each key's first record."""
    names = [key.tobytes().decode() for key in stored.keys]
    found = dict(zip(reversed(names), values[::-1].tolist(), strict=True))
    return np.array([found[key] for key in keys], np.int64)


def _counts(arrivals: Arrivals, sent: int, due_ms: Column) -> Figures:
    different = len(set(arrivals.keys))
    early = int((arrivals.at_ms < due_ms).sum())
    return {"early": early, "lost": sent - different, "twice": len(arrivals) - different}


def warm(client: JavaClient) -> float:
    """Send unmeasured timers, so that client, broker and pipeline compile their code.

    Returns the sends per second.
    """
    lead_s = lead(WARM_COUNT, WARM_PER_S)
    said = client.command(*at(WARM_COUNT, span_ms=WARM_COUNT, lead_s=lead_s))
    client.wait(WARM_COUNT, lead_s + WARM_COUNT / 1000 + DRAIN_S)
    client.reset()
    return float(said["sent"] / said["seconds"])


def lead(count: int, per_s: float) -> float:
    """Return how many seconds before the first due time sending must begin, so that half the rate is enough."""
    return 3.0 + 2 * count / per_s


def at(count: int, *, span_ms: int, lead_s: float) -> tuple[str, float]:
    """Return the command to send `count` timers due over a span, and its deadline in seconds."""
    return f"at {count} {span_ms} {int(lead_s * 1000)} {THREADS}", 60 + count / 100


if __name__ == "__main__":
    sys.exit(main())
