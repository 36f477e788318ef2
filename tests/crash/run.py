"""Kill every part of a running WheelMQ with SIGKILL, repeatedly and under load; then judge the result.

    python -m tests.crash.run --kills 80 [--seed N] [--only broker,jvm] [--flush SYNC_FLUSH] [--seconds-max 2000]

It prints a line per kill and a table at the end, and all figures as JSON on request. It ends with 0 only if no
message was lost, delivered twice, delivered early, or otherwise not delivered as requested.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.crash import figures
from tests.crash.killing import Death, Killer, Watch
from tests.crash.load import Load, Mix
from tests.crash.options import add_flush, add_json, add_limit, add_seed_and_home
from tests.crash.parts import BrokerProcess, Event, Pipeline
from tests.crash.schedule import Chain, deaths, known, make_schedule
from tests.crash.verdict import Verdict, judge
from wheelmq.cli.ports import free_port
from wheelmq.pipeline.training import make_startup_cache

NOTHING_EXPIRES: Final = {"disk_max_used_space_ratio": 100, "disk_space_clean_forcibly_ratio": 100, "delete_when": "23"}
"""Nothing expires, however full the machine's disk is, because the verdict reads the whole store."""
BROKER_SETTINGS: Final = {
    "log_file_bytes": 16 << 20,
    "queue_file_bytes": 20 * 6000,
    "timer_log_file_bytes": 52 * 20_000 + 16,
    "timer_slots": 60,
    "timer_roll_window_slots": 35,
    "block_length_seconds": 60,
    "block_log_file_bytes": 1 << 20,
    "block_queue_file_bytes": 24 * 5000,
    "clean_resource_interval_ms": 1000,
    "checkpoint_ms": 1000,
    "snapshot_log_bytes": 1 << 20,
    **NOTHING_EXPIRES,
}
"""Small sizes and short times.

Files fill within seconds, the wheel turns once within minutes, and the load exceeds the roll window. There is a
snapshot about every second, and a block is deleted every minute.
"""

LEAD_S: Final = 30.0
"""Armed messages last this long. Within this time the killed pipeline, or its killed part, must turn again."""
START_DEADLINE_S: Final = 120.0
DRAIN_EXTRA_S: Final = 45.0
FIRST_TURNS: Final = 3
"""Spark's first turns are slow: the broker has already armed their messages itself."""
LONG_ARMED_MIN: Final = 20_000
"""Timers over five seconds that must be armed before the first kill, to see which part arms them.

A run with few kills needs fewer.
"""
LONG_ARMED_EACH: Final = 1000
LONG_DEADLINE_S: Final = 60.0
LEAVE_DEADLINE_S: Final = 20.0
"""Time for workers to notice that their JVM was killed."""


@dataclass
class Plan:
    kills: int
    seed: int
    home: Path
    only: tuple[str, ...] = ()
    flush: str = "ASYNC_FLUSH"
    rate: float = 2000.0
    pending_min: int = 500
    """Least number of pending timers at each kill."""
    seconds_max: float = 2000.0
    late_p99_max_ms: float = 250.0
    turning_max_s: float = LEAD_S
    share_min: float = 0.99
    """The least share of the timers over five seconds that the pipeline must arm before the first kill."""
    spark: bool = True
    chains: Sequence[Chain] = ()
    """The kills in order, instead of those of the seed."""
    mix: Mix = field(default_factory=Mix)
    settings: dict[str, Any] = field(default_factory=lambda: dict(BROKER_SETTINGS))


@dataclass
class Outcome:
    seed: int
    flush: str
    violations: list[str]
    deaths: list[Death]
    counts: dict[str, int]
    lateness_ms: dict[str, dict[str, float]]
    recovery_s: dict[str, dict[str, dict[str, float]]]
    armed_by_pipeline: float | None
    seconds: float
    refusals: dict[str, int]
    driver_deaths: int
    processors: int | None = field(default_factory=os.cpu_count)
    load_average: tuple[float, float, float] = field(default_factory=os.getloadavg)

    @property
    def kills(self) -> int:
        return sum(death.times for death in self.deaths)


class Run:
    """One run, from an empty folder to the verdict."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        plan.home.mkdir(parents=True, exist_ok=True)
        self._event = Event(plan.home / "events.jsonl")
        failpoint_log = plan.home / "failpoints.log"
        self.broker = BrokerProcess(plan.home, free_port(), plan.flush, plan.settings, failpoint_log)
        self.pipeline: Pipeline | None = None
        if plan.spark:
            self.pipeline = Pipeline([self.broker.address], plan.home / "logs", failpoint_log, self._event)
        self.watch = Watch(self.broker, self.pipeline)
        self.load = Load(self.broker.address, plan.mix, plan.rate, plan.seed)
        self.killer = Killer(
            self.broker,
            self.pipeline,
            self.watch,
            event=self._event,
            tell=tell,
            pending_min=plan.pending_min,
            turning_max_s=plan.turning_max_s,
        )
        self.violations: list[str] = []
        self._share: float | None = None

    async def execute(self) -> Outcome:
        """Execute the plan. Every process has ended when this returns or raises."""
        began = time.monotonic()
        watching = asyncio.create_task(self.watch.run())
        try:
            await self._start()
            self.load.start()
            await self._see_who_arms()
            plan = self._plan
            schedule = plan.chains or make_schedule(plan.kills, plan.seed, plan.only, spark=plan.spark)
            drain_s = self._plan.mix.delay_ms_max / 1000 + DRAIN_EXTRA_S
            await self.killer.work(schedule, began + self._plan.seconds_max - drain_s)
            await self._drain(drain_s)
        finally:
            await self.load.stop(grace_s=0.0)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            driver_deaths = self.pipeline.supervisor.child.deaths if self.pipeline is not None else 0
            await self._stop_pipeline()
            code = await self.broker.stop()
            if code != 0:
                self.violations.append(f"the broker's clean stop ended with code {code}")
            self._event.close()
        np.save(self._plan.home / "notes.npy", self.load.notes.rows)
        return self._outcome(judge(self.broker.store, self.load.notes), time.monotonic() - began, driver_deaths)

    async def _start(self) -> None:
        await self.broker.start()
        if self.pipeline is not None:
            self.pipeline.queue()
            self.pipeline.arm(None)
            self.pipeline.start()

        def is_up() -> bool:
            metrics = self.watch.last.metrics
            return bool(metrics) and (self.pipeline is None or bool(metrics["pipeline"]["is_turning"]))

        if not await self.watch.until(is_up, START_DEADLINE_S):
            raise TimeoutError(f"broker and pipeline are not up within {START_DEADLINE_S} s; see {self._plan.home}")

    async def _see_who_arms(self) -> None:
        """Measure which part arms the timers over five seconds, after the first turns and before the first kill."""
        if self.pipeline is None:
            return
        if not await self.watch.until(lambda: len(self.watch.commits) >= FIRST_TURNS, START_DEADLINE_S):
            raise TimeoutError(f"no {FIRST_TURNS} turns within {START_DEADLINE_S} s; see {self._plan.home}")
        before = dict(self.watch.last.metrics["timers"]["armed_by"])

        def armed() -> int:
            after = self.watch.last.metrics["timers"]["armed_by"]
            return sum(after[name] - before.get(name, 0) for name in after if name.endswith("_long"))

        goal = min(LONG_ARMED_MIN, self._plan.kills * LONG_ARMED_EACH)
        if not await self.watch.until(lambda: armed() >= goal, LONG_DEADLINE_S):
            self.violations.append(f"only {armed()} timers over 5 s were armed within {LONG_DEADLINE_S} s")
        self._share = figures.pipeline_share(before, self.watch.last.metrics["timers"]["armed_by"])

    async def _drain(self, drain_s: float) -> None:
        await self.load.stop()
        if not await self.watch.until(lambda: self.watch.last.pending == 0, drain_s):
            self.violations.append(f"{self.watch.last.pending} are pending {drain_s:.0f} s after the last send")

    async def _stop_pipeline(self) -> None:
        pipeline = self.pipeline
        if pipeline is None:
            return
        if not await pipeline.stop():
            self.violations.append("the pipeline did not stop when it was asked to")
        if not await self.watch.until(lambda: not pipeline.left_over(), LEAVE_DEADLINE_S):
            self.violations.append(f"processes of the pipeline are left over: {pipeline.left_over()}")

    def _outcome(self, verdict: Verdict, seconds: float, driver_deaths: int) -> Outcome:
        late = figures.lateness(verdict.delivered, self.killer.deaths) if verdict.delivered is not None else {}
        violations = [*self.killer.violations, *self.violations, *verdict.violations]
        last = self.watch.last
        if last.metrics and verdict.counts.get("log_end", 0) < last.metrics["log"]["end"]:
            violations.append(f"the log reads up to {verdict.counts['log_end']}, the broker said {last.metrics['log']}")
        for name in ("nothing killed yet", figures.ARMED):
            p99 = late.get(name, {}).get("p99", 0.0)
            if p99 > self._plan.late_p99_max_ms:
                violations.append(f"lateness, {name}: p99 {p99} ms, at most {self._plan.late_p99_max_ms} ms")
        if self._share is not None and self._share < self._plan.share_min:
            violations.append(f"of the timers over 5 s only {self._share:.2%} were armed by the pipeline")
        return Outcome(
            seed=self._plan.seed,
            flush=self._plan.flush,
            violations=violations,
            deaths=self.killer.deaths,
            counts=verdict.counts,
            lateness_ms=late,
            recovery_s=figures.recoveries(self.killer.deaths),
            armed_by_pipeline=self._share,
            seconds=round(seconds, 1),
            refusals=dict(self.load.refusals),
            driver_deaths=driver_deaths,
        )


def report(outcome: Outcome) -> list[str]:
    counts = outcome.counts
    busy = " ".join(f"{load:.1f}" for load in outcome.load_average)
    lines = [
        f"{outcome.kills} kills in {outcome.seconds:.0f} s, {outcome.flush}, seed {outcome.seed}, "
        f"{outcome.processors} processors, load average {busy}"
    ]
    lines.append("  " + "  ".join(f"{name} {counts.get(name, 0)}" for name in ("lost", "twice", "early", "invented")))
    rest = {name: count for name, count in counts.items() if name not in ("lost", "twice", "early", "invented")}
    lines += [f"  {name:48s} {count:10d}" for name, count in rest.items()]
    lines += [f"  refused: {name:39s} {count:10d}" for name, count in outcome.refusals.items()]
    if outcome.armed_by_pipeline is not None:
        lines.append(f"  timers over 5 s armed by the pipeline, nothing killed: {outcome.armed_by_pipeline:.2%}")
    lines.append("lateness, from due time to store time:")
    lines += figures.table(outcome.lateness_ms, "ms")
    lines.append("from the kill to the broker's return:")
    lines += figures.table(outcome.recovery_s["serving"], "s")
    lines.append("from the kill, or the broker's return, to the next turn:")
    lines += figures.table(outcome.recovery_s["turning"], "s")
    lines += [f"VIOLATION {text}" for text in outcome.violations]
    lines.append("FAILED" if outcome.violations else "nothing lost, nothing twice, nothing early")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=80)
    add_seed_and_home(parser, "schedule", "store and logs")
    parser.add_argument("--only", default="", metavar="WHAT,WHAT", help=", ".join(known()))
    add_flush(parser, "ASYNC_FLUSH")
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second")
    add_limit(parser, 2000.0)
    parser.add_argument("--late-p99-max-ms", type=float, default=250.0, help="of what was armed when Spark was killed")
    parser.add_argument(
        "--turning-max-s", type=float, default=LEAD_S, help="until Spark turns again (default: the lead)"
    )
    parser.add_argument("--no-spark", action="store_true", help="the broker alone")
    add_json(parser)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-crash-"))
    plan = Plan(
        kills=options.kills,
        seed=seed,
        home=home,
        only=tuple(filter(None, options.only.split(","))),
        flush=options.flush,
        rate=options.rate,
        seconds_max=options.seconds_max,
        late_p99_max_ms=options.late_p99_max_ms,
        turning_max_s=options.turning_max_s,
        spark=not options.no_spark,
    )
    schedule = make_schedule(plan.kills, plan.seed, plan.only, spark=plan.spark)
    print(f"seed {seed}: {deaths(schedule)} kills, {plan.flush}, in {home}", flush=True)
    if plan.spark:
        make_startup_cache()  # without it, a start of the JVM takes up to 40 s on two busy processors
    outcome = asyncio.run(Run(plan, lambda text: print(text, flush=True)).execute())
    print("\n".join(report(outcome)))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    if not outcome.violations and options.home is None:
        with contextlib.suppress(OSError):
            shutil.rmtree(home)
    else:
        print(f"store, logs and events are in {home}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
