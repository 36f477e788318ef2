"""Kill brokers and Spark while a query copies a topic. Each message must be once in the copy, unchanged.

    python -m tests.crash.connector --kills 200 [--side broker|spark|both] [--seed N] [--flush SYNC_FLUSH]

The query reads by the connector's source and writes by its sink with guarantee exactly-once. A broker is killed at
random moments, and at failpoints of the batches of the sink. Of Spark, a run kills Python workers, the process that
plans the source, the process that commits the sink, and the driver with its JVM. Between two kills the query begins
and commits at least one batch. At the end, both topics are read from the brokers.

With `--guarantee at-least-once` the same run finds duplicates: the verdict can fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tests.crash.copies import CopyVerdict, Unreadable, judge_copies, of_sink, of_source, read_topic
from tests.crash.copying import LEAVE_DEADLINE_S, CopierProcess, CopyProgress, Feeder, Victim, read_progress
from tests.crash.figures import spread
from tests.crash.options import add_flush, add_json, add_limit, add_seed_and_home
from tests.crash.parts import BrokerProcess, Role, check_role, fired
from tests.crash.requests import until
from tests.crash.sends import SETTINGS
from wheelmq.cli.ports import free_port
from wheelmq.client import Admin, QueueName, Span, TopicUnknown
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.errors import CallError, Refused
from wheelmq.pipeline.training import make_startup_cache

SOURCE: Final = "Messages"
SINK: Final = "Copies"
QUEUES: Final = 2
"""Queues of each topic at each broker."""
BACKLOG_MAX: Final = 300
"""Messages that the sender may be ahead of the query."""
LOOK_S: Final = 0.02
PAUSE_S_MAX: Final = 1.0
"""The longest time from the awaited batch to a kill. A batch takes about as long."""
AWAY_S_MAX: Final = 3.0
"""The longest time from the end of a broker to its next start, in one of four kills. Otherwise it starts at once."""
READY_DEADLINE_S: Final = 300.0
"""The first start may compile kernels."""
COMMITTED_DEADLINE_S: Final = 240.0
"""Time for a batch after a kill. A JVM starts, and a batch may wait twice for a broker."""
DRAIN_DEADLINE_S: Final = 300.0

BATCH_POINTS: Final = {
    "batch.appended": (45, 120),
    "batch.checked": (3, 6),
    "batch.decided": (3, 6),
    "batch.layout_saved": (3, 6),
    "batch.marked": (3, 6),
    "batch.removed": (11, 25),
    "batch.saved": (9, 18),
}
"""Failpoints of a broker in the batches of a sink, and the passages at which they may fire.

The plain code passes batch.appended at each row, and the kernel once per chunk.
"""
POINT_SHARE: Final = 0.5
"""The share of a broker's kills that are followed by one at a failpoint."""
SPARK_SHARES: Final = {Victim.TASK: 0.4, Victim.COMMIT: 0.3, Victim.SOURCE: 0.2, Victim.DRIVER: 0.1}
SIDES: Final = ("broker", "spark", "both")


@dataclass(frozen=True)
class CopyKill:
    """A kill, `pause_s` after a batch was committed."""

    what: str
    """A member of Victim, or `broker`."""
    broker: int = 0
    pause_s: float = 0.0
    away_s: float = 0.0
    point: tuple[str, int] | None = None
    """The failpoint at which the broker's next life ends, which is another kill."""

    @property
    def times(self) -> int:
        return 1 if self.point is None else 2


def make_kills(count: int, side: str, seed: int, brokers: int, *, has_batches: bool = True) -> list[CopyKill]:
    """Return `count` kills of each side in a random order.

    Without `has_batches`, brokers get no batches of the sink. Then their failpoints never fire, and a commit is idle.
    """
    chance = random.Random(seed)
    found: list[CopyKill] = []
    if side != "spark":
        while (left := count - sum(kill.times for kill in found)) > 0:
            point = None
            if has_batches and left > 1 and chance.random() < POINT_SHARE:
                name = chance.choice(sorted(BATCH_POINTS))
                point = (name, chance.randint(*BATCH_POINTS[name]))
            found.append(
                CopyKill(
                    "broker",
                    broker=chance.randrange(brokers),
                    pause_s=chance.uniform(0, PAUSE_S_MAX),
                    away_s=chance.uniform(0, AWAY_S_MAX) if chance.random() < 0.25 else 0.0,
                    point=point,
                )
            )
    if side != "broker":
        names = [name for name in SPARK_SHARES if has_batches or name is not Victim.COMMIT]
        shares = [SPARK_SHARES[name] for name in names]
        chosen = chance.choices(names, shares, k=count)
        found += [CopyKill(name.value, pause_s=chance.uniform(0, PAUSE_S_MAX)) for name in chosen]
    chance.shuffle(found)
    return found


class Violated(Exception):
    """A violation that makes the rest of the run meaningless."""


@dataclass
class CopyOutcome:
    seed: int
    side: str
    flush: str
    guarantee: str
    kills: Counter[str] = field(default_factory=Counter)
    """Kills with at least one committed batch since the previous one, by process or failpoint."""
    in_batches: int = 0
    """The part of `kills` in the midst of a batch."""
    early: Counter[str] = field(default_factory=Counter)
    """Kills at failpoints before a batch was committed."""
    recovered_s: list[float] = field(default_factory=list)
    """Time from each kill to the commit of a later batch."""
    batches: int = 0
    events: dict[str, int] = field(default_factory=dict)
    """Events of the Spark application: starts and failures of the query."""
    repeats: int = 0
    """Sends that were repeated."""
    verdict: CopyVerdict | None = None
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0
    processors: int | None = field(default_factory=os.cpu_count)


class CopyRun:
    """One run, from an empty folder to the verdict."""

    def __init__(
        self,
        home: Path,
        kills: Sequence[CopyKill],
        outcome: CopyOutcome,
        tell: Callable[[str], None],
        *,
        brokers: int = 2,
        backlog_max: int = BACKLOG_MAX,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._kills, self.outcome, self._tell = home, kills, outcome, tell
        self._random = random.Random(outcome.seed)
        self._brokers, self._backlog_max = brokers, backlog_max
        self._failpoint_log = home / "failpoints.log"
        self._names = NameServerApp(NameServerSettings(kv_config_path=home / "kvConfig.json", listen_port=0))
        self.brokers: list[BrokerProcess] = []
        self._points_met = 0
        self._what, self._killed_s = "", 0.0
        """The last kill, and its monotonic time."""

    async def execute(self, seconds_max: float) -> CopyOutcome:
        """Execute the run. Every process has ended when this returns or raises."""
        began = time.monotonic()
        outcome = self.outcome
        await self._names.start()
        namesrv = f"127.0.0.1:{self._names.port}"
        self._admin = Admin(namesrv)
        self._copier = CopierProcess(self._home, namesrv, SOURCE, SINK, outcome.guarantee)
        self._feeder = Feeder(namesrv, SOURCE, outcome.seed, lambda: self._progress().rows, self._backlog_max)
        try:
            await self._start(namesrv)
            for kill in self._kills:
                if time.monotonic() > began + seconds_max:
                    raise Violated(f"the time ran out after {outcome.kills.total()} kills")
                await self._one(kill)
            await self._drain()
            await self._stop_copier()
            await self._judge()
        except (Violated, Unreadable, CallError, Refused) as problem:
            self._object(f"{type(problem).__name__}: {problem}")
        finally:
            await self._feeder.cancel()
            await self._copier.stop()
            await self._admin.stop()
            for broker in self.brokers:
                if await broker.stop():
                    self._object(f"the clean stop of a broker failed: {broker.state}")
            await self._names.stop()
        outcome.seconds = round(time.monotonic() - began, 1)
        return outcome

    def _object(self, text: str) -> None:
        self.outcome.violations.append(text)
        self._tell(f"VIOLATION {text}")

    async def _start(self, namesrv: str) -> None:
        ports: list[int] = []
        for number in range(self._brokers):
            ports.append(free_port(but=tuple(ports)))
            name = _name(number)
            settings = {**SETTINGS, "broker_name": name}
            home, options = self._home / name, ("--namesrv", namesrv)
            broker = BrokerProcess(home, ports[-1], self.outcome.flush, settings, self._failpoint_log, *options)
            self.brokers.append(broker)
            await broker.start()
        for broker in self.brokers:
            await self._until_serving(broker)
        await self._until_registered()
        for topic in (SOURCE, SINK):
            await self._admin.create_topic(topic, queues=QUEUES)
        self._feeder.start()
        self._copier.start()
        await self._until_committed(-1, READY_DEADLINE_S)

    # Kills ---------------------------------------------------------------------------------------------------------

    async def _one(self, kill: CopyKill) -> None:
        """Kill a process after a pause, and wait for the next batch. Raises Violated."""
        for broker in self.brokers:
            await self._until_serving(broker)
        await asyncio.sleep(kill.pause_s)
        if kill.what == "broker":
            await self._kill_broker(kill)
            return
        stop = time.monotonic() + COMMITTED_DEADLINE_S
        while time.monotonic() < stop:
            if await self._copier.kill(Victim(kill.what), self._random) is not None:
                await self._recover(self._note(kill.what))
                return
            await asyncio.sleep(LOOK_S)
        raise Violated(f"there is no process {kill.what}; see {self._home}")

    async def _kill_broker(self, kill: CopyKill) -> None:
        """Kill a broker by hand, and again at a failpoint of its next life. Raises Violated."""
        broker = self.brokers[kill.broker]
        if not check_role(broker.pid, Role.BROKER):
            raise Violated(f"a broker ended by itself: {broker.state}")
        broker.kill()
        begun = self._note(kill.what)
        await broker.wait_dead()
        await asyncio.sleep(kill.away_s)
        await broker.start(kill.point)
        if kill.point is None:
            await self._until_serving(broker)
            await self._recover(begun)
            return
        await self._recover(begun, broker)
        if not await until(lambda: not broker.is_alive, COMMITTED_DEADLINE_S, LOOK_S):
            raise Violated(f"failpoint {kill.point} does not fire within {COMMITTED_DEADLINE_S} s; see {self._home}")
        await self._check_fired(broker, kill.point[0])
        is_early = self._progress().committed <= begun
        begun = self._note(kill.point[0], is_early=is_early)
        await broker.start()
        await self._until_serving(broker)
        await self._recover(begun)
        if is_early:  # it does not count, and a kill by hand replaces it
            await self._kill_broker(CopyKill("broker", kill.broker))

    def _note(self, what: str, *, is_early: bool = False) -> int:
        """Count a kill. Returns the number of the last batch that has begun."""
        outcome, progress = self.outcome, self._progress()
        self._killed_s = time.monotonic()
        if is_early:
            outcome.early[what] += 1
        else:
            outcome.kills[what] += 1
            outcome.in_batches += progress.begun > progress.committed
        self._what = what
        return progress.begun

    async def _recover(self, begun: int, armed: BrokerProcess | None = None) -> None:
        """Wait until a batch after `begun` is committed, or the broker `armed` has ended. Raises Violated."""
        await self._until_committed(begun, COMMITTED_DEADLINE_S, armed)
        outcome, progress = self.outcome, self._progress()
        seconds = round(time.monotonic() - self._killed_s, 2)
        if progress.committed > begun:
            outcome.recovered_s.append(seconds)
        number = outcome.kills.total() + outcome.early.total()
        self._tell(
            f"{number:4d} {self._what:20s} {seconds:6.2f} s to batch {progress.committed}, {progress.rows} copied"
        )

    async def _check_fired(self, broker: BrokerProcess, point: str) -> None:
        """Check that the broker ended at its failpoint. Raises Violated."""
        code = await broker.wait_dead()
        met = fired(self._failpoint_log)[self._points_met :]
        self._points_met += len(met)
        if code != -signal.SIGKILL or met != [(broker.pid, point)]:
            raise Violated(f"a broker ended with code {code}, {met} fired, and {point} was armed: {broker.state}")

    # Waits ---------------------------------------------------------------------------------------------------------

    def _progress(self) -> CopyProgress:
        return read_progress(self._copier.checkpoint)

    async def _until_committed(self, committed: int, deadline_s: float, armed: BrokerProcess | None = None) -> None:
        def is_over() -> bool:
            return self._progress().committed > committed or (armed is not None and not armed.is_alive)

        if not await until(is_over, deadline_s, LOOK_S):
            state = [broker.state for broker in self.brokers]
            raise Violated(f"no batch after {committed} within {deadline_s} s, brokers {state}; see {self._home}")

    async def _until_serving(self, broker: BrokerProcess) -> None:
        stop = time.monotonic() + READY_DEADLINE_S
        while (metrics := await broker.metrics()) is None or not metrics["takes_sends"]:
            if not broker.is_alive or time.monotonic() > stop:
                raise Violated(f"a broker does not serve: {broker.state}")
            await asyncio.sleep(LOOK_S)

    async def _until_registered(self) -> None:
        stop = time.monotonic() + READY_DEADLINE_S
        while len(await self._admin.brokers()) < len(self.brokers):
            if time.monotonic() > stop:
                raise Violated("a broker does not register")
            await asyncio.sleep(LOOK_S)

    # The end -------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Stop the sends, and wait until the query has committed all messages. Raises Violated, CallError, Refused."""
        await self._feeder.stop()
        await self._until_registered()
        ends = {f"{one.broker_name}/{one.queue_id}": span.end for one, span in (await self._spans()).items()}
        if not await until(lambda: self._progress().offsets == ends, DRAIN_DEADLINE_S, LOOK_S):
            raise Violated(f"the query is at {self._progress()}, and the queues end at {ends}; see {self._home}")

    async def _spans(self) -> dict[QueueName, Span]:
        try:
            return await self._admin.spans(SOURCE)
        except TopicUnknown as error:
            raise Violated(str(error)) from None

    async def _stop_copier(self) -> None:
        outcome, copier = self.outcome, self._copier
        outcome.batches, outcome.events = self._progress().committed + 1, dict(copier.events())
        code = await copier.stop()
        if code or copier.unexpected_ends:
            self._object(f"drivers ended with codes {[*copier.unexpected_ends, code]}; see {self._home}")
        if not await until(lambda: not copier.left_over(), LEAVE_DEADLINE_S, LOOK_S):
            self._object(f"processes of Spark are left over: {copier.left_over()}")

    async def _judge(self) -> None:
        """Read both topics from the brokers, and compare them. Raises CallError, Refused, Unreadable."""
        addresses = await self._admin.brokers()
        messages = of_source(await read_topic(self._admin, addresses, SOURCE))
        copies = of_sink(await read_topic(self._admin, addresses, SINK))
        verdict = judge_copies(messages, copies, set(range(self._feeder.sent)))
        self.outcome.verdict, self.outcome.repeats = verdict, self._feeder.repeats
        for text in verdict.violations:
            self._object(text)
        if self._progress().rows != verdict.messages:
            self._object(f"the checkpoint has {self._progress().rows} messages, and the topic {verdict.messages}")


def _name(number: int) -> str:
    return f"broker-{'abcdefgh'[number]}"


def report(outcome: CopyOutcome) -> list[str]:
    verdict = outcome.verdict
    lines = [
        f"{outcome.kills.total()} kills while a query copies a topic, {outcome.in_batches} of them in the midst of a "
        f"batch, and {outcome.early.total()} sooner; {outcome.guarantee}, {outcome.flush}, side {outcome.side}, "
        f"seed {outcome.seed}, {outcome.seconds:.0f} s, {outcome.processors} processors",
        f"  kills: {_counts(outcome.kills)}",
        f"  {outcome.batches} batches; the query started {outcome.events.get('started', 0)} times and failed "
        f"{outcome.events.get('failed', 0)} times; {outcome.repeats} sends were repeated",
        f"  from a kill to the commit of a later batch, s: {spread(outcome.recovered_s)}",
    ]
    if verdict is not None:
        lines.append(
            f"  messages {verdict.messages}  copies {verdict.copies}  lost {len(verdict.lost)}  "
            f"duplicated {len(verdict.duplicated)}  invented {len(verdict.invented)}  changed {len(verdict.changed)}"
        )
    lines += [f"VIOLATION {text}" for text in outcome.violations]
    lines.append("FAILED" if outcome.violations or verdict is None else "nothing lost, nothing duplicated")
    return lines


def write_figures(outcome: CopyOutcome, path: Path) -> None:
    """Write all figures of a run as JSON. Raises OSError."""
    path.write_text(json.dumps(msgspec.to_builtins(outcome), indent=2) + "\n")


def _counts(kills: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.connector", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills of each side")
    parser.add_argument("--side", choices=SIDES, default="both")
    add_flush(parser, "ASYNC_FLUSH")
    parser.add_argument("--guarantee", choices=("exactly-once", "at-least-once"), default="exactly-once")
    add_seed_and_home(parser, "kills")
    parser.add_argument("--brokers", type=int, default=2)
    add_limit(parser, 7200.0)
    add_json(parser)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-connector-"))
    has_batches = options.guarantee == "exactly-once"
    kills = make_kills(options.kills, options.side, seed, options.brokers, has_batches=has_batches)
    print(f"seed {seed}: {options.kills} kills, side {options.side}, in {home}", flush=True)
    make_startup_cache()  # without it, each start of the JVM takes much longer
    outcome = CopyOutcome(seed, options.side, options.flush, options.guarantee)
    run = CopyRun(home, kills, outcome, lambda text: print(text, flush=True), brokers=options.brokers)
    asyncio.run(run.execute(options.seconds_max))
    print("\n".join(report(outcome)))
    if options.json is not None:
        write_figures(outcome, options.json)
    is_right = not outcome.violations and outcome.verdict is not None
    if is_right and options.home is None:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
