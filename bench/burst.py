"""50,000 timers due at one millisecond: the time until Apache's Java push consumer has the last one.

Client and broker process several such bursts before. A client that has run for a minute has compiled its code. A cold
client takes twice as long for the same messages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.javaclient import JavaClient, pauses
from bench.lateness import CLIENT, COUNTS, DRAIN_S, at, lead, stored, warm
from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.targets import Target

TOPIC = "Burst"
COUNT = 50_000
BURSTS_BEFORE = 4
"""Bursts until the client's compiler has finished."""

METRICS = [
    Metric("last_ms", "last one after the due time, ms", at_most=800),
    Metric("half_ms", "half of them after the due time, ms"),
    Metric("first_ms", "first one after the due time, ms"),
    Metric("last_stored_ms", "of this until the last one is in its topic, ms"),
    Metric("drain_ms", "the client's own pace: as many that wait in a topic, first to last, ms"),
    *COUNTS,
    Metric("sent_late", "sent within 1 s of due"),
    *CLIENT,
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("burst", __doc__, rounds=5)
    made.add_argument("--count", type=int, help=f"timers ({COUNT:,}; also with --short)", default=COUNT)
    options = parse(made, argv)
    report = Report(f"{options.count:,} timers due at one millisecond, 256 B, Java push consumer", METRICS)
    measure(report, options, lambda target: _burst(target, options.count))
    return report.finish(options.json)


def _burst(target: Target, count: int) -> Figures:
    with JavaClient(target, TOPIC) as client:
        lead_s = lead(count, warm(client))
        for _ in range(BURSTS_BEFORE):
            client.command(*at(count, span_ms=0, lead_s=lead_s))
            client.wait(count, lead_s + DRAIN_S)
            client.reset()
        said = client.command(*at(count, span_ms=0, lead_s=lead_s))
        done = client.wait(count, lead_s + DRAIN_S)
        arrivals = client.arrivals()
        pace_ms = client.drain(count, 60)["ms"]
    target.end()
    stored_ms = stored(target, TOPIC, arrivals) - arrivals.deliver_ms
    late_ms = arrivals.at_ms - arrivals.deliver_ms
    late_ms.sort()
    different = len(set(arrivals.keys))
    figures: Figures = {
        "early": int((late_ms < 0).sum()),
        "lost": count - different,
        "twice": len(arrivals) - different,
        "sent_late": said["sent_within_a_second_of_due"],
        "drain_ms": pace_ms,
        **pauses(done),
    }
    if len(late_ms):
        figures |= {"first_ms": late_ms[0], "half_ms": late_ms[len(late_ms) // 2], "last_ms": late_ms[-1]}
        figures["last_stored_ms"] = int(stored_ms.max())
    return {name: float(value) for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
