"""Lateness of messages with a level: in the topic, and at Apache's Java push consumer.

Levels 1 and 2 (1 s and 5 s), 1,000/s of each, mixed, 256 B. The due time is that of the queue unit, which both
brokers write.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.deliveries import read
from bench.javaclient import Arrivals, Column, JavaClient, pauses
from bench.lateness import CLIENT, COUNTS, DRAIN_S, stored, warm
from bench.report import Figures, Metric, Report, measure, parse, parser, spread
from bench.targets import Target
from tests.crash.records import queues
from wheelmq.formats.names import SCHEDULE_TOPIC

TOPIC: Final = "Levels"
LEVELS: Final = (1, 2)
PER_SECOND: Final = 1000

METRICS = [
    *(Metric(f"p50_{level}_ms", f"level {level}: lateness at the consumer p50, ms") for level in LEVELS),
    *(Metric(f"p99_{level}_ms", f"level {level}: lateness at the consumer p99, ms", at_most=20) for level in LEVELS),
    *(Metric(f"p50_stored_{level}_ms", f"level {level}: lateness in the topic p50, ms") for level in LEVELS),
    *(
        Metric(f"p99_stored_{level}_ms", f"level {level}: lateness in the topic p99, ms", at_most=20)
        for level in LEVELS
    ),
    *(Metric(f"max_stored_{level}_ms", f"level {level}: lateness in the topic max, ms") for level in LEVELS),
    *COUNTS,
    *CLIENT,
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("levels", __doc__)
    made.add_argument("--count", type=int, help="messages of each level (30,000; 5,000 with --short)")
    options = parse(made, argv)
    count = options.count or (5_000 if options.short else 30_000)
    title = f"messages with level 1 and 2, {count:,} of each at {PER_SECOND:,}/s, 256 B, Java push consumer"
    report = Report(title, METRICS)
    measure(report, options, lambda target: _levels(target, count))
    return report.finish(options.json)


def _levels(target: Target, count: int) -> Figures:
    whole = count * len(LEVELS)
    with JavaClient(target, TOPIC) as client:
        warm(client)
        client.command(f"levels {count} {PER_SECOND * len(LEVELS)} {','.join(map(str, LEVELS))}", 60 + whole / 100)
        done = client.wait(whole, DRAIN_S)
        arrivals = client.arrivals()
    target.end()
    due_ms, level = _due(target.store, arrivals)
    stored_ms = stored(target, TOPIC, arrivals)
    different = len(set(arrivals.keys))
    figures = {
        "early": int((arrivals.at_ms < due_ms).sum()),
        "lost": whole - different,
        "twice": len(arrivals) - different,
    }
    for number in LEVELS:
        mine = level == number
        figures |= spread((arrivals.at_ms - due_ms)[mine], str(number))
        figures |= spread((stored_ms - due_ms)[mine], f"stored_{number}")
    return figures | pauses(done)


def _due(store: Path, arrivals: Arrivals) -> tuple[Column, Column]:
    """Return the due time of each message, from its queue unit, and its level."""
    rows = [
        np.stack([units["position"].astype(np.int64), units["tag_code"], np.full(len(units), queue_id + 1)], axis=1)
        for topic, queue_id, units in queues(store)
        if topic == SCHEDULE_TOPIC
    ]
    joined = np.concatenate(rows)
    joined = joined[np.argsort(joined[:, 0])]
    parked = read(store, SCHEDULE_TOPIC, with_keys=True)  # also in the order of the log
    names = (key.tobytes().decode() for key in parked.keys)
    found = dict(zip(names, joined[:, 1:].tolist(), strict=True))
    columns = np.array([found[key] for key in arrivals.keys], np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


if __name__ == "__main__":
    sys.exit(main())
