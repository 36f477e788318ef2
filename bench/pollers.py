"""1,000 idle long pollers, each on its own connection and queue: their cost, and the pull that a message wakes.

Each pull is held for 15 s, as with Apache's Java consumer, and then repeated. After idle seconds, messages are sent
one at a time, each for one of the pullers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.holds import HOLD_MS, Crowd, Wait, make_topics
from bench.machine import memory_mib
from bench.report import Figures, Metric, Report, measure, parse, parser
from bench.targets import Target
from bench.turns import SETTLE_S
from wheelmq.system.open_files import connections_possible

TOPIC: Final = "Pollers"
POLLERS: Final = 1_000
IDLE_HOLD_MS: Final = 15_000
TURNOVER_S: Final = 21.0
"""Time until all pulls with the longer hold have ended: Apache checks every 5 s."""
LAST_S: Final = 2.0
"""Time to wait for messages at the wrong pulls."""

METRICS = [
    Metric("none", "broker with none, % of a core"),
    Metric("held", "broker with 1,000 held, % of a core", ratio_at_most=1),
    Metric("anew_per_s", "pulls/s that are sent away and made anew"),
    Metric("pss_start", "broker's memory after its start, PSS MiB", ratio_at_most=1),
    Metric("anonymous_start", "of that anonymous, MiB", ratio_at_most=1),
    Metric("pss_held", "with 1,000 held, PSS MiB", ratio_at_most=1),
    Metric("anonymous_held", "of that anonymous, MiB", ratio_at_most=1),
    Metric("p50_ms", "message to its 1 pull of 1,000, p50 ms", ratio_at_most=1),
    Metric("p99_ms", "the same, p99 ms"),
    Metric("us", "broker's processor for it, us", ratio_at_most=1),
    Metric("wrong", "messages that came to another pull", at_most=0),
    Metric("pss_woken", "after all that, PSS MiB"),
    Metric("anonymous_woken", "of that anonymous, MiB"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("pollers", __doc__)
    made.add_argument("--seconds", type=float, help="idle, without and with pollers (60; 20 with --short)")
    options = parse(made, argv)
    seconds = options.seconds or (20.0 if options.short else 60.0)
    count = 500 if options.short else 2_000
    if connections_possible(POLLERS) < POLLERS:
        made.error(f"this process may not open {POLLERS:,} files: raise the limit (ulimit -n)")
    report = Report(f"{POLLERS:,} idle long pollers, {seconds:g} s, then {count:,} messages", METRICS)
    measure(report, options, lambda target: _pollers(target, seconds, count))
    return report.finish(options.json)


def _pollers(target: Target, seconds: float, count: int) -> Figures:
    time.sleep(SETTLE_S)
    figures = memory(target, "start")
    processor = target.processor()
    time.sleep(seconds)
    figures["none"] = 100 * processor.seconds()["broker"] / seconds
    make_topics(target, BenchNone=1, **{TOPIC: POLLERS})
    waits = [Wait(i, TOPIC, i, "", i) for i in range(POLLERS)]
    crowd = Crowd(target.broker, waits, connections=POLLERS, hold_ms=IDLE_HOLD_MS)
    try:
        crowd.idle(TURNOVER_S)
        processor = target.processor()
        anew, _ = crowd.idle(seconds)
        figures["held"] = 100 * processor.seconds()["broker"] / seconds
        figures["anew_per_s"] = anew / seconds
        figures |= memory(target, "held")
        crowd.hold_ms = HOLD_MS
        crowd.idle(TURNOVER_S)
        figures |= _wake(target, crowd, waits, count)
        figures["wrong"] = crowd.idle(LAST_S)[1]
    finally:
        crowd.close()
    return figures | memory(target, "woken")


def _wake(target: Target, crowd: Crowd, waits: Sequence[Wait], count: int) -> Figures:
    def once(number: int) -> float:
        wait = waits[number * 7 % POLLERS]
        return crowd.send(TOPIC, wait.queue_id, "", [wait])

    for i in range(count):  # until the JVM has compiled the measured code
        once(i)
    processor = target.processor()
    took_ms = [1000 * once(i) for i in range(count)]
    p50, p99 = np.percentile(took_ms, (50, 99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99, "us": 1e6 * processor.seconds()["broker"] / count}


def memory(target: Target, when: str) -> Figures:
    """Return the broker's memory as `pss_<when>` and `anonymous_<when>`, in MiB."""
    return {f"{name}_{when}": value for name, value in memory_mib(target.pids["broker"]).items()}


if __name__ == "__main__":
    sys.exit(main())
