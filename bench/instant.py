"""600,000 timers due at one millisecond, raw frames of 256 B: the time until the last one is in its topic.

They are sent and indexed before they are due; the table shows how long before. Before that, bursts of a tenth run
until code is compiled. A round takes at most a minute and a half, mostly for sending.

With --bystanders it is a million timers, and two loads of 1,000 timers/s run at the same time: one for another topic,
one for the same topic. Their lateness is shown for those due while the million is released, and for all due from two
seconds before it to six seconds after it. The benchmark measures WheelMQ alone, unless --only names Apache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from bench.deliveries import Column, Deliveries, judge, read
from bench.generator import generate_taken, generating
from bench.rawload import Bytes, Load
from bench.report import Figures, Metric, Report, measure, parse, parser, spread, tell
from bench.room import make_room
from bench.targets import Target

TOPIC: Final = "Instant"
OTHER_TOPIC: Final = "Other"
WARM_TOPIC: Final = "Warm"
COUNT: Final = 600_000
COUNT_WITH_BYSTANDERS: Final = 1_000_000
COUNT_SHORT: Final = 60_000
BYTES_EACH: Final = 1300
"""Bytes in the log, parked and released."""

WARM_SHARE: Final = 0.1
WARM_TIMES: Final = 2
FIRST_PACE: Final = 20_000
"""Sends per second that a cold broker certainly accepts."""
MARGIN_S: Final = 6.0
"""Time for the generator to start, and for the broker to index the timers."""
PACE_SHARE: Final = 0.4
"""Sending takes at most this share of the time until all are due, at the rate of the previous burst."""
INDEXED_BEFORE_S: Final = 1.0
OUT_DEADLINE_S: Final = 120.0
LOOK_S: Final = 0.1

BESIDE_PER_S: Final = 1000.0
BESIDE_PREFIX: Final = "00000000000000BE51DE00"
"""Prefix of the unique keys of bystanders. It distinguishes them from the timers that are due at one millisecond."""
BESIDE_DELAYS_MS: Final = (2_500, 7_000)
"""The broker itself arms the first, the pipeline the second."""
AROUND_MS: Final = (-2_000, 6_000)
BESIDE_EARLIER_S: Final = 15.0
"""Time before the due time at which their sending begins. By then the broker has processed the million's sends."""
BESIDE_S: Final = 22.0

METRICS: Final = [
    Metric("last_ms", "last one in its topic after the due time, ms", at_most=1200, ratio_at_most=1),
    Metric("half_ms", "half of them, ms"),
    Metric("first_ms", "first one, ms"),
    Metric("timers", "timers"),
    Metric("refused", "not taken"),
    Metric("lost", "lost", at_most=0),
    Metric("twice", "twice", at_most=0),
    Metric("early", "early", at_most=0),
    Metric("sent_s", "sending, s"),
    Metric("indexed_s", "all indexed so long before they were due, s", at_least=INDEXED_BEFORE_S),
]
BYSTANDERS: Final = [
    Metric("p50_other_ms", "another topic, due while they leave: lateness p50, ms"),
    Metric("p99_other_ms", "another topic, due while they leave: lateness p99, ms", at_most=20),
    Metric("max_other_ms", "another topic, due while they leave: lateness max, ms"),
    Metric("p99_other_around_ms", "another topic, all around: lateness p99, ms", at_most=20),
    Metric("p50_same_ms", "the same topic, due while they leave: lateness p50, ms"),
    Metric("p99_same_ms", "the same topic, due while they leave: lateness p99, ms"),
    Metric("max_same_ms", "the same topic, due while they leave: lateness max, ms"),
    Metric("p99_same_around_ms", "the same topic, all around: lateness p99, ms"),
    Metric("bystanders", "bystanders"),
    Metric("bystanders_lost", "bystanders lost", at_most=0),
    Metric("bystanders_early", "bystanders early", at_most=0),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("instant", __doc__)
    made.add_argument("--bystanders", action="store_true", help="a million, with 1,000/s of this and another topic")
    made.add_argument(
        "--count", type=int, help=f"timers ({COUNT:,}; {COUNT_WITH_BYSTANDERS:,}; {COUNT_SHORT:,} with --short)"
    )
    options = parse(made, argv)
    beside = options.bystanders
    count = options.count or (COUNT_SHORT if options.short else COUNT_WITH_BYSTANDERS if beside else COUNT)
    if beside:
        options.only = options.only or "WheelMQ"
    report = Report(_title(options, count), _metrics(with_bystanders=beside))
    make_room(report, options, count * BYTES_EACH)
    measure(report, options, lambda target: _instant(target, count, with_bystanders=beside))
    return report.finish(options.json)


def _title(options: argparse.Namespace, count: int) -> str:
    beside = f", {BESIDE_PER_S:,.0f}/s of this and of another topic beside" if options.bystanders else ""
    return f"{count:,} timers due at one millisecond, raw frames of 256 B{beside}"


def _metrics(*, with_bystanders: bool) -> list[Metric]:
    """Return the metrics. The goal for the last timer applies to 600,000 timers without bystanders."""
    if not with_bystanders:
        return METRICS
    return [dataclasses.replace(METRICS[0], at_most=None, ratio_at_most=None), *METRICS[1:], *BYSTANDERS]


class Burst(NamedTuple):
    """The timers that are due at one millisecond."""

    due_ms: int
    result: dict[str, Any]
    taken: Bytes
    indexed_s: float
    """Time between the end of indexing and the due time."""

    @property
    def per_s(self) -> float:
        return float(self.result["per_second"])


def _instant(target: Target, count: int, *, with_bystanders: bool) -> Figures:
    per_s = _warm(target, int(count * WARM_SHARE))
    earlier_s = BESIDE_EARLIER_S if with_bystanders else 0.0
    with ExitStack() as stack:
        burst = _send(target, TOPIC, count, per_s, earlier_s)
        loads = {}
        if with_bystanders:
            _sleep_until(burst.due_ms - earlier_s * 1000)
            loads = {topic: stack.enter_context(_beside(target, topic)) for topic in (OTHER_TOPIC, TOPIC)}
        taken = int(np.count_nonzero(burst.taken))
        sent = {topic: json.loads(load.communicate(timeout=OUT_DEADLINE_S)[0]) for topic, load in loads.items()}
    _until_out(target, TOPIC, taken + int(sent[TOPIC]["good"] if sent else 0), burst.due_ms)
    if sent:
        _until_out(target, OTHER_TOPIC, int(sent[OTHER_TOPIC]["good"]), burst.due_ms)
    target.end()
    found = read(target.store, TOPIC)
    figures = _figures(burst, found)
    return figures | (_bystanders(burst, found, read(target.store, OTHER_TOPIC), sent) if sent else {})


def _warm(target: Target, count: int) -> float:
    """Send unmeasured bursts. Returns the sends per second of the last."""
    per_s, sent = float(FIRST_PACE), 0
    for _ in range(WARM_TIMES):
        burst = _send(target, WARM_TOPIC, count, per_s, 0.0)
        per_s, sent = burst.per_s, sent + burst.result["good"]
        _until_out(target, WARM_TOPIC, sent, burst.due_ms)
    return per_s


def _send(target: Target, topic: str, count: int, per_s: float, earlier_s: float) -> Burst:
    """Send a burst and wait until the timer has indexed it, at most until `earlier_s` before it is due."""
    due_ms = int(1000 * (time.time() + MARGIN_S + earlier_s + count / per_s / PACE_SHARE))
    load = Load(messages=count, seconds=(due_ms / 1000 - time.time()), deliver_at_ms=due_ms)
    result, taken = generate_taken(target.broker, topic, load)
    while is_behind := target.unindexed() > 0:
        if time.time() > due_ms / 1000 - earlier_s:
            break
        time.sleep(LOOK_S)
    indexed_s = 0.0 if is_behind else due_ms / 1000 - time.time()
    tell(f"{target.name}: {result['good']:,} at {result['per_second']:,}/s, indexed {indexed_s:.1f} s before due")
    return Burst(due_ms, result, taken, indexed_s)


@contextmanager
def _beside(target: Target, topic: str) -> Iterator[Any]:
    load = Load(connections=1, rate=BESIDE_PER_S, seconds=BESIDE_S, delays_ms=BESIDE_DELAYS_MS, prefix=BESIDE_PREFIX)
    with generating(target.broker, topic, load) as process:
        yield process


def _sleep_until(at_ms: float) -> None:
    time.sleep(max(0.0, at_ms / 1000 - time.time()))


def _until_out(target: Target, topic: str, wanted: int, due_ms: int) -> None:
    """Wait until the topic holds `wanted` messages. Messages missing at the deadline count as lost."""
    _sleep_until(due_ms)  # earlier requests would only load the broker
    end_s = time.monotonic() + OUT_DEADLINE_S
    while target.stored(topic) < wanted and time.monotonic() < end_s:
        time.sleep(LOOK_S)


def _figures(burst: Burst, found: Deliveries) -> Figures:
    mine = found.number >= 0
    outcome = judge(_some(found, mine), burst.taken)
    late_ms = np.sort(found.store_ms[mine] - burst.due_ms)
    figures: Figures = {
        "timers": int(np.count_nonzero(burst.taken)),
        "refused": burst.result["sent"] - burst.result["good"],
        "lost": outcome.lost,
        "twice": outcome.twice,
        "early": outcome.early,
        "sent_s": burst.result["seconds"],
        "indexed_s": burst.indexed_s,
    }
    if len(late_ms):
        figures |= {"first_ms": late_ms[0], "half_ms": late_ms[len(late_ms) // 2], "last_ms": late_ms[-1]}
    return {name: float(value) for name, value in figures.items()}


def _bystanders(burst: Burst, found: Deliveries, other: Deliveries, sent: dict[str, dict[str, Any]]) -> Figures:
    """Return the lateness of bystanders, in the topic of the burst and in another one, and their losses."""
    out_ms = int(found.store_ms[found.number >= 0].max())
    of_topic = {"other": other, "same": _some(found, found.number < 0)}
    figures: Figures = {"bystanders": sum(result["good"] for result in sent.values()), "bystanders_early": 0}
    for name, those in of_topic.items():
        late_ms, since_ms = those.store_ms - those.deliver_ms, those.deliver_ms - burst.due_ms
        figures |= spread(late_ms[(since_ms >= 0) & (those.deliver_ms <= out_ms)], name)
        around = spread(late_ms[(since_ms >= AROUND_MS[0]) & (since_ms < AROUND_MS[1])], f"{name}_around")
        figures |= around
        figures["bystanders_early"] += int((late_ms < 0).sum())
    figures["bystanders_lost"] = figures["bystanders"] - sum(map(len, of_topic.values()))
    return figures


def _some(found: Deliveries, mine: Any) -> Deliveries:
    """Return the rows of deliveries that `mine` selects."""

    def rows(column: Column) -> Column:
        return column[mine] if len(column) == len(mine) else column

    return Deliveries(*(rows(getattr(found, field.name)) for field in dataclasses.fields(found)))


if __name__ == "__main__":
    sys.exit(main())
