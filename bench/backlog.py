"""A backlog of a million messages of 256 B, consumed by raw pulls of 32 and by Apache's Java push consumer.

16 connections pull. Each has its share of the queues and one pull at a time. The push consumer has the client's
default settings. Each reads the backlog again as a new group, after it has read some of it unmeasured.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from bench.generator import generate
from bench.javaclient import JavaClient
from bench.pollers import memory
from bench.rawload import Load
from bench.rawpull import pull_all, shares
from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.room import make_room
from bench.targets import QUEUES, Target, rivals
from wheelmq.formats.wire.codes import RequestCode

TOPIC: Final = "Backlog"
COUNT: Final = 1_000_000
COUNT_SHORT: Final = 200_000
BYTES_EACH: Final = 450
"""Bytes of record, queue unit and index entry."""
CONNECTIONS: Final = 16
PASSES: Final = 3
WARM_GROWTH: Final = 1.1
WARM_PASSES: Final = 8
DRAIN_S: Final = 300
FILL_S: Final = 600.0

RAW = [
    Metric("pull_per_s", "raw pulls of 32: messages/s", ratio_at_least=1),
    Metric("pull_us", "broker processor us/message", ratio_at_most=1),
    Metric("puller", "puller's processor, % of a core"),
]
JAVA = [
    Metric("push_per_s", "Java push consumer: messages/s", ratio_at_least=0.95),
    Metric("push_us", "broker processor us/message ", ratio_at_most=1),
]
MEMORY = [
    Metric("pss_start", "broker's memory after its start, PSS MiB", ratio_at_most=1),
    Metric("anonymous_start", "of that anonymous, MiB", ratio_at_most=1),
    Metric("pss_stored", "with the backlog stored, PSS MiB"),
    Metric("anonymous_stored", "of that anonymous, MiB", ratio_at_most=1),
    Metric("pss_consumed", "when it is consumed, PSS MiB"),
    Metric("anonymous_consumed", "of that anonymous, MiB", ratio_at_most=1),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("backlog", __doc__)
    made.add_argument("--count", type=int, help=f"messages ({COUNT:,}; {COUNT_SHORT:,} with --short)")
    options = parse(made, argv)
    count = options.count or (COUNT_SHORT if options.short else COUNT)
    has_java = rivals()[1] is None
    report = Report(f"a backlog of {count:,} messages, 256 B", [*RAW, *(JAVA if has_java else ()), *MEMORY])
    make_room(report, options, count * BYTES_EACH)
    measure(report, options, lambda target: _backlog(target, count, has_java=has_java))
    return report.finish(options.json)


def _backlog(target: Target, count: int, *, has_java: bool) -> Figures:
    figures = memory(target, "start")
    stored = 0
    while stored < count:  # an overloaded broker accepts fewer messages
        stored += generate(target.broker, TOPIC, Load(messages=count - stored, seconds=FILL_S))["good"]
    figures |= memory(target, "stored") | _pull(target)
    if has_java:
        figures |= _push(target, count)
    return figures | memory(target, "consumed")


def _pull(target: Target) -> Figures:
    ends = [int(target.ask(RequestCode.GET_MAX_OFFSET, topic=TOPIC, queueId=i).ext["offset"]) for i in range(QUEUES)]
    wanted = shares(ends, CONNECTIONS)
    best = 0.0
    for i in range(WARM_PASSES):
        result = pull_all(target.broker, TOPIC, "bench-pulls", wanted)
        if i and result.messages / result.seconds < best * WARM_GROWTH:
            break
        best = max(best, result.messages / result.seconds)
    processor = target.processor()
    passes = [pull_all(target.broker, TOPIC, "bench-pulls", wanted) for _ in range(PASSES)]
    used = processor.seconds()["broker"]
    messages, seconds = sum(one.messages for one in passes), sum(one.seconds for one in passes)
    return {
        "pull_per_s": messages / seconds,
        "pull_us": used * 1e6 / messages,
        "puller": 100 * sum(one.processor_seconds for one in passes) / seconds,
    }


def _push(target: Target, count: int) -> Figures:
    with JavaClient(target, TOPIC, mode="send") as client:
        for _ in range(2):
            client.drain(count // 5, DRAIN_S)
        processor = target.processor()
        said = client.drain(count, DRAIN_S)
        used = processor.seconds()["broker"]
    if not said["drained"]:
        raise RuntimeError(f"{target.name}: the push consumer has not had {count:,} messages in {DRAIN_S} s")
    return {"push_per_s": 1000 * count / said["ms"], "push_us": used * 1e6 / count}


if __name__ == "__main__":
    sys.exit(main())
