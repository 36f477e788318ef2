"""Timers while a part is away: the broker when they become due, the pipeline, or the broker five times.

down      10,000 timers of 256 B become due within six seconds while the broker is down after kill -9. Then it starts.
          The figure is the time from its first accepted message until the last timer is in its topic. A negative value
          means that all timers were released before. That is possible with Apache, which accepts messages only after
          its name server knows it. WheelMQ's broker starts without its pipeline, which indexed timers do not need.
killed    WheelMQ alone, 5,000 timers/s with delays of 50 ms to 50 s. Every process of the pipeline is killed, and the
          pipeline stays away for 30 s. Then the broker is killed five times. Load, kills and verdict are those of
          tests/crash, which looks for every message in the log and the queues. The lead is 30 s: the broker arms the
          messages that are due later than that after the kill.

A round of `down` takes a minute per broker. A round of `killed` takes four minutes, one of them for the verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bench.deliveries import judge, read
from bench.generator import generate_taken
from bench.rawload import Load, template
from bench.recovery import TOPIC, Broker, Ours, Theirs, running, stored
from bench.report import Figures, Metric, Report, measure, parse, parser, tell
from bench.room import make_room
from bench.targets import Target, WheelMQ
from tests.crash import figures as crash
from tests.crash.load import Mix
from tests.crash.notes import Kind
from tests.crash.run import NOTHING_EXPIRES, Outcome, Plan, Run
from tests.crash.run import report as crash_lines
from tests.crash.schedule import PIPELINE_AWAY, Chain, Kill
from wheelmq.formats.wire import frame
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import SyncConnection

STORED_BYTES: Final = 1 << 30
DOWN_COUNT: Final = 10_000
DOWN_PER_S: Final = 2000.0
DOWN_LEAD_S: Final = 40.0
"""Time for the timers to be indexed, and for the broker to be stopped, started and killed."""
INDEX_SHARE: Final = 0.5
"""Share of this time for sending and indexing."""
UP_TOPIC: Final = "Up"
UP_LOOK_S: Final = 0.005
UP_DEADLINE_S: Final = 120.0
OUT_DEADLINE_S: Final = 60.0
OUT_LOOK_S: Final = 0.05

RATE: Final = 5000.0
RATE_SHORT: Final = 1000.0
AWAY_S: Final = 30.0
BROKER_KILLS: Final = 5
BROKER_KILLS_SHORT: Final = 2
PAUSE_S: Final = 2.0
"""Time from a healthy state to the next kill."""
SECONDS_MAX: Final = 600.0
MIX: Final = Mix(
    kinds=((Kind.DELIVER_AT, 0.75), (Kind.DELAY_MS, 0.25)),
    delays_ms=((0.2, 50, 1000), (0.4, 1000, 8000), (0.2, 8000, 25_000), (0.2, 32_000, 50_000)),
)
MIX_SHORT: Final = Mix(kinds=MIX.kinds, delays_ms=((0.2, 50, 1000), (0.5, 1000, 8000), (0.3, 8000, 15_000)))
SETTINGS: Final[dict[str, Any]] = {"log_file_bytes": 256 << 20, **NOTHING_EXPIRES}

ARMED, BEYOND = "within the lead", "beyond the lead"
DOWN: Final = [
    Metric("down_last_ms", "due while the broker was down: last one out after it is up, ms", at_most=1000),
    Metric("down_start_s", "last one out after the start of the broker began, s", ratio_at_most=1),
    Metric("up_s", "its start until it takes messages, s"),
    Metric("down_timers", "timers"),
    Metric("down_lost", "of these lost", at_most=0),
    Metric("down_twice", "of these twice", at_most=0),
    Metric("down_early", "of these early", at_most=0),
]
KILLED: Final = [
    Metric("timers", "timers, with pipeline and broker killed"),
    Metric("lost", "of these lost", at_most=0),
    Metric("twice", "of these twice", at_most=0),
    Metric("early", "of these early", at_most=0),
    Metric("violations", "anything else that must not be", at_most=0),
    Metric("p99_well_ms", "nothing killed yet: lateness p99, ms", at_most=20),
    Metric("p99_armed_ms", f"pipeline away, due {ARMED}: lateness p99, ms", at_most=20),
    Metric("max_armed_ms", f"pipeline away, due {ARMED}: lateness max, ms"),
    Metric("armed", f"pipeline away, due {ARMED}: timers"),
    Metric("p99_beyond_ms", f"pipeline away, due {BEYOND}: lateness p99, ms", at_most=20),
    Metric("max_beyond_ms", f"pipeline away, due {BEYOND}: lateness max, ms"),
    Metric("beyond", f"pipeline away, due {BEYOND}: timers"),
    Metric("turning_s", "pipeline killed to its next turn, s"),
    Metric("broker_kills", "kills of the broker"),
    Metric("serving_s", "broker killed to its taking messages, median, s"),
    Metric("serving_max_s", "broker killed to its taking messages, longest, s"),
]


def main(argv: Sequence[str] | None = None) -> int:
    made = parser("absences", __doc__, rounds=1)
    made.add_argument("--part", choices=("down", "killed"), help="one of them alone")
    made.add_argument(
        "--lead-s", type=float, default=DOWN_LEAD_S, help="so much earlier than they are due they are sent (40)"
    )
    options = parse(made, argv)
    if options.part == "killed":
        options.only = "WheelMQ"
    metrics = {"down": DOWN, "killed": KILLED}.get(options.part, [*DOWN, *KILLED])
    report = Report("timers while a part is away", metrics)
    make_room(report, options, STORED_BYTES)
    measure(report, options, lambda target: _absences(target, options, report))
    return report.finish(options.json)


def _absences(target: Target, options: argparse.Namespace, report: Report) -> Figures:
    figures: Figures = {}
    if options.part == "killed":
        target.end()
    else:
        figures |= _down(target, int(options.lead_s * 1000))
    if options.part != "down" and isinstance(target, WheelMQ):
        outcome = _killed(target.home / "killed", is_short=options.short)
        report.notes += outcome.violations
        figures |= _of_kills(outcome)
    return figures


# The broker is down ---------------------------------------------------------------------------------------------------


def _down(target: Target, lead_ms: int) -> Figures:
    """Measure timers that become due while the broker is down. The target is ended on return."""
    load = Load(rate=DOWN_PER_S, messages=DOWN_COUNT, seconds=lead_ms / 1000, delays_ms=(lead_ms, lead_ms))
    result, taken = generate_taken(target.broker, TOPIC, load)
    end_ms = result["first_ms"] + lead_ms * INDEX_SHARE
    target.await_indexed(end_ms / 1000 - time.time())
    target.end()
    broker = _alone(target)
    if isinstance(target, WheelMQ):  # it was stopped cleanly; only a kill -9 counts here
        with running(broker):
            broker.kill()
    first_ms, last_ms = result["first_ms"] + lead_ms, result["last_ms"] + lead_ms
    if time.time() * 1000 > first_ms:
        raise RuntimeError("the first of them was due before the broker was down: this machine is too busy")
    tell(f"{target.name}: {result['good']:,} fall due while it is down")
    time.sleep(max(0.0, last_ms / 1000 - time.time()))
    began_s = time.time()
    with running(broker):
        up_ms = _until_up(broker.address)
        end_s = time.monotonic() + OUT_DEADLINE_S
        while stored(broker) < result["good"] and time.monotonic() < end_s:
            time.sleep(OUT_LOOK_S)
        broker.kill()
    found = read(target.store, TOPIC)
    outcome = judge(found, taken)
    return {
        "down_last_ms": float(found.store_ms.max() - up_ms),
        "down_start_s": float(found.store_ms.max()) / 1000 - began_s,
        "up_s": up_ms / 1000 - began_s,
        "down_timers": result["good"],
        "down_lost": outcome.lost,
        "down_twice": outcome.twice,
        "down_early": outcome.early,
    }


def _alone(target: Target) -> Broker:
    """Return the broker of an ended target, on its store."""
    if isinstance(target, WheelMQ):
        return Ours(target.home, target.store)
    return Theirs(target.home / "again", target.store, target.namesrv)


def _until_up(address: str) -> int:
    """Return the time at which the broker accepted a message, in epoch milliseconds."""
    raw = template(UP_TOPIC, 16, timed=False).frame.tobytes()
    end_s = time.monotonic() + UP_DEADLINE_S
    with closing(SyncConnection(address)) as link:
        while time.monotonic() < end_s:
            with contextlib.suppress(CallError):
                if link.call(frame.decode(raw, 0, len(raw))).code == ResponseCode.SUCCESS:
                    return int(time.time() * 1000)
            time.sleep(UP_LOOK_S)
    raise RuntimeError(f"the broker takes no message after {UP_DEADLINE_S:.0f} s")


# Pipeline and broker are killed ---------------------------------------------------------------------------------------


def _killed(home: Path, *, is_short: bool) -> Outcome:
    kills = BROKER_KILLS_SHORT if is_short else BROKER_KILLS
    away: Chain = (Kill(PIPELINE_AWAY, PAUSE_S, away_s=AWAY_S),)
    plan = Plan(
        kills=kills + 1,
        seed=1,
        home=home,
        rate=RATE_SHORT if is_short else RATE,
        chains=[away, *([(Kill("broker", PAUSE_S),)] * kills)],
        mix=MIX_SHORT if is_short else MIX,
        seconds_max=SECONDS_MAX,
        settings=SETTINGS,
    )
    outcome = asyncio.run(Run(plan, tell).execute())
    tell("\n".join(crash_lines(outcome)))
    return outcome


def _of_kills(outcome: Outcome) -> Figures:
    late, kills = outcome.lateness_ms, outcome.recovery_s
    serving, turning = kills["serving"].get("broker", {}), kills["turning"].get(PIPELINE_AWAY, {})
    found: dict[str, Any] = {
        "timers": outcome.counts.get("timers delivered"),
        "lost": outcome.counts.get("lost"),
        "twice": outcome.counts.get("twice"),
        "early": outcome.counts.get("early"),
        "violations": len(outcome.violations),
        "p99_well_ms": late.get("nothing killed yet", {}).get("p99"),
        "turning_s": turning.get("p50"),
        "broker_kills": serving.get("count"),
        "serving_s": serving.get("p50"),
        "serving_max_s": serving.get("max"),
    }
    for name, row in (("armed", crash.ARMED), ("beyond", "pipeline away longer than that")):
        spread = late.get(row, {})
        found |= {name: spread.get("count"), f"p99_{name}_ms": spread.get("p99"), f"max_{name}_ms": spread.get("max")}
    return {name: float(value) for name, value in found.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
