"""Kill a broker with SIGKILL repeatedly while it accepts sends. Each message must exist once, unchanged.

    python -m tests.crash.sends --kills 300 --flush SYNC_FLUSH [--seed N]

Between two kills at least 500 messages are acknowledged. After each start a reader continues through every queue, by
queue offset and by log position. At the end it reads all queues again, and the files are read without a broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.crash.figures import spread
from tests.crash.following import Follower
from tests.crash.load import Load, Mix
from tests.crash.notes import Kind
from tests.crash.options import add_flush, add_json, add_limit, add_seed_and_home
from tests.crash.parts import BrokerProcess, Role, check_role, fired
from tests.crash.requests import until
from tests.crash.run import NOTHING_EXPIRES
from tests.crash.verdict import judge
from wheelmq.cli.ports import free_port
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient

BETWEEN_MIN: Final = 500
"""Least number of messages acknowledged between two kills."""
BETWEEN_EXTRA: Final = 500
LOOK_S: Final = 0.005
PAUSE_S: Final = 0.05
"""Longest time from the last awaited message to the kill."""
READY_DEADLINE_S: Final = 300.0
"""The first start may compile kernels."""
ACKNOWLEDGED_DEADLINE_S: Final = 60.0
POINT_PATIENCE: Final = 2000
"""A failpoint that does not fire within this number of further messages is replaced by a kill by hand."""

UNDER_LOAD: Final = {
    "block.checkpoint": (1, 2),
    "block.logged": (4, 20),
    "block.queued": (4, 20),
    "block.synced": (2, 8),
    "checkpoint.before": (1, 2),
    "checkpoint.written": (1, 2),
    "dispatch.before": (40, 150),
    "dispatch.units": (40, 150),
    "file.allocated": (1, 3),
    "flush.log_synced": (3, 15),
    "log.blank": (1, 2),
    "log.grown": (1, 2),
    "release.after": (10, 60),
    "release.before": (10, 60),
    "replace.renamed": (2, 3),
    "replace.written": (2, 3),
    "send.appended": (60, 250),
}
"""Failpoints of a broker that accepts sends, and the passages at which they may fire."""
IN_START: Final = (
    "blocks.checked",
    "blocks.loaded",
    "blocks.recovered",
    "blocks.wheel",
    "recover.cut",
    "recover.rebuilt",
    "recover.scanned",
    "recover.staged",
    "replace.renamed",
)
"""Failpoints that a start passes once. A broker that ends there is killed before it has accepted anything."""
POINT_SHARE: Final = 0.35
IN_START_SHARE: Final = 0.1

MIX: Final = Mix(
    kinds=(
        (Kind.PLAIN, 0.82),
        (Kind.DELIVER_AT, 0.05),
        (Kind.DELAY_MS, 0.05),
        (Kind.IN_BLOCK, 0.05),
        (Kind.LEVEL, 0.03),
    ),
    delays_ms=((0.6, 50, 1000), (0.4, 1000, 4000)),
    batch_share=0.05,
)
SETTINGS: Final = {
    "snapshot_log_bytes": 1 << 18,
    "log_file_bytes": 512 << 10,
    "queue_file_bytes": 20 * 3000,
    "timer_log_file_bytes": 52 * 5000 + 16,
    "timer_slots": 60,
    "timer_roll_window_slots": 35,
    "block_length_seconds": 60,
    "block_log_file_bytes": 32 << 10,
    "block_queue_file_bytes": 24 * 100,
    "clean_resource_interval_ms": 1000,
    "flush_interval_ms": 50,
    "checkpoint_ms": 300,
    "max_hash_slot_num": 20_000,
    "max_index_num": 50_000,
    **NOTHING_EXPIRES,
}
"""Sizes of files that fill up between two kills."""
DRAIN_S: Final = 30.0


@dataclass(frozen=True)
class Moment:
    """The moment at which a broker ends.

    It ends by hand, after `acknowledged` more messages and `pause_s`, or at a failpoint.
    """

    acknowledged: int
    pause_s: float
    point: tuple[str, int] | None
    in_start: str | None
    """The failpoint that first interrupts the start before it, if any."""


def make_moments(count: int, seed: int) -> list[Moment]:
    chance = random.Random(seed)
    moments = []
    for _ in range(count):
        point = None
        if chance.random() < POINT_SHARE:
            name = chance.choice(sorted(UNDER_LOAD))
            point = (name, chance.randint(*UNDER_LOAD[name]))
        moments.append(
            Moment(
                acknowledged=BETWEEN_MIN + chance.randrange(BETWEEN_EXTRA),
                pause_s=chance.uniform(0, PAUSE_S),
                point=point,
                in_start=chance.choice(IN_START) if chance.random() < IN_START_SHARE else None,
            )
        )
    return moments


class Violated(Exception):
    """A violation that makes the rest of the run meaningless."""


@dataclass
class Outcome:
    seed: int
    flush: str
    kills: int = 0
    """Kills with at least 500 acknowledged messages since the previous one."""
    at_failpoints: int = 0
    """The part of `kills` at failpoints."""
    extra_kills: int = 0
    """Kills during a start, or at a failpoint that fired before 500 messages were acknowledged."""
    between: list[int] = field(default_factory=list)
    """Number of acknowledged messages between each kill and the previous one."""
    serving_s: list[float] = field(default_factory=list)
    """Time from each start to the broker's first answer."""
    read: int = 0
    viewed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    processors: int | None = field(default_factory=os.cpu_count)


class Run:
    """One run, from an empty folder to the verdict."""

    def __init__(
        self, home: Path, kills: int, flush: str, seed: int, tell: Callable[[str], None], *, rate: float = 3000.0
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._tell = tell
        self._moments = make_moments(kills, seed)
        self.broker = BrokerProcess(home, free_port(), flush, SETTINGS, home / "failpoints.log")
        self.load = Load(self.broker.address, MIX, rate, seed)
        self.follower = Follower(RpcClient(self.broker.address), self.load.notes, MIX.body_bytes)
        self.outcome = Outcome(seed, flush)
        self._acknowledged_before = self._asked = 0
        """Numbers of acknowledged and requested messages at the last kill that counts."""
        self._looked_for = 0
        """Number of messages that were searched after a start."""
        self._points_met = 0

    async def execute(self, seconds_max: float) -> Outcome:
        """Execute the run. The broker has ended when this returns or raises."""
        began = time.monotonic()
        self.load.start()
        try:
            for i, moment in enumerate(self._moments):
                if time.monotonic() > began + seconds_max:
                    raise Violated(f"the time ran out after {i} kills")
                await self._one(moment)
            await self._finish()
        except (Violated, CallError, Refused) as problem:
            self._object(str(problem))
        finally:
            await self.load.stop(grace_s=0.0)
            await self.follower.close()
            code = await self.broker.stop()
        if code:
            self._object(f"the broker's clean stop ended with code {code}")
        self._judge()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _object(self, text: str) -> None:
        self.outcome.violations.append(text)
        self._tell(f"VIOLATION {text}")

    # One kill --------------------------------------------------------------------------------------------------------

    async def _one(self, moment: Moment) -> None:
        """Start the broker, read its queues, let it accept sends, kill it. Raises Violated, CallError, Refused."""
        if moment.in_start is not None:
            await self.broker.start((moment.in_start, 1))
            await self._see_dead()
            self.outcome.extra_kills += 1
        await self.broker.start(moment.point)
        if await self._get_ready():
            await self._load_up(moment.acknowledged + POINT_PATIENCE * (moment.point is not None))
        what = await self._end(moment)
        if self._between() < BETWEEN_MIN:  # the kill came too early to count
            self.outcome.extra_kills += 1
            await self.broker.start()
            await self._get_ready()
            await self._load_up(moment.acknowledged)
            what = await self._end(moment)
        self.outcome.at_failpoints += what in UNDER_LOAD
        self.outcome.kills += 1
        self.outcome.between.append(self._between())
        self._tell(
            f"{self.outcome.kills:4d} {what:20s} after {self._between():5d} acknowledged, "
            f"serving in {self.outcome.serving_s[-1]:.2f} s"
        )
        self._acknowledged_before, self._asked = self.load.acknowledged, self.load.notes.count

    def _between(self) -> int:
        """Return the number of messages acknowledged since the last kill that counts."""
        return self.load.acknowledged - self._acknowledged_before

    async def _get_ready(self) -> bool:
        """Wait until the broker serves, read on, and search the messages acknowledged before the last kill.

        Returns False if the broker ended meanwhile at a failpoint. Raises Violated, Refused.
        """
        self.load.is_held = True
        began = time.monotonic()
        while (metrics := await self.broker.metrics()) is None or not metrics["takes_sends"]:
            if not self.broker.is_alive:
                return False
            if time.monotonic() > began + READY_DEADLINE_S:
                raise Violated(f"the broker does not serve after {READY_DEADLINE_S} s; see {self.home}")
            await asyncio.sleep(LOOK_S)
        self.outcome.serving_s.append(round(time.monotonic() - began, 3))
        try:
            await self.follower.follow()
        except CallError:
            if await until(self._is_dead, READY_DEADLINE_S, LOOK_S):
                return False
            raise
        self.follower.find_lost(self._looked_for, self._asked)
        self._looked_for = self._asked
        if self.follower.wrong:
            raise Violated(f"{dict(self.follower.wrong)}; the store is in {self.home}")
        self.load.is_held = False
        return True

    async def _load_up(self, count: int) -> None:
        """Wait until `count` messages are acknowledged since the last kill, or the broker is dead.

        Raises Violated.
        """
        if not await until(lambda: self._between() >= count or self._is_dead(), ACKNOWLEDGED_DEADLINE_S, LOOK_S):
            raise Violated(f"{self._between()} are acknowledged, and {count} do not come")

    async def _end(self, moment: Moment) -> str:
        """Kill the broker, unless a failpoint has ended it. Returns the cause of its end. Raises Violated."""
        if not self._is_dead():
            await asyncio.sleep(moment.pause_s)  # the kill comes at a random moment
        is_there = check_role(self.broker.pid, Role.BROKER)
        if is_there:
            self.broker.kill()
        return await self._see_dead(by_hand=is_there)

    async def _see_dead(self, *, by_hand: bool = False) -> str:
        """Wait for the broker's end by SIGKILL, at the armed failpoint or by hand.

        Returns the cause. Raises Violated.
        """
        code = await self.broker.wait_dead()
        met = fired(self.broker.failpoint_log)[self._points_met :]
        self._points_met += len(met)
        expected = [] if self.broker.armed is None else [(self.broker.pid, self.broker.armed[0])]
        if code != -signal.SIGKILL or not (met == expected or (by_hand and not met)) or not (met or by_hand):
            raise Violated(f"the broker ended with code {code}, {met} fired, and {expected} was armed; see {self.home}")
        return met[0][1] if met else "by hand"

    def _is_dead(self) -> bool:
        return not self.broker.is_alive

    # The end ---------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Start again, wait for the timers, and read all queues again. Raises Violated, CallError, Refused."""
        await self.broker.start()
        if not await self._get_ready():
            raise Violated(f"the broker ended by itself; see {self.home}")
        await self.load.stop()
        stop = time.monotonic() + DRAIN_S
        while (metrics := await self.broker.metrics()) is None or metrics["timers"]["pending"]:
            if time.monotonic() > stop:
                raise Violated(f"timers are pending {DRAIN_S} s after the last send: {metrics}")
            await asyncio.sleep(LOOK_S)
        await self.follower.follow()
        await self.follower.read_again()
        self.follower.find_lost(0, self.load.notes.count)

    def _judge(self) -> None:
        """Judge the files by code of the tests, and add the follower's findings."""
        outcome = self.outcome
        verdict = judge(self.broker.store, self.load.notes)
        outcome.counts = verdict.counts
        outcome.violations += [*verdict.violations, *self.follower.stories]
        outcome.read, outcome.viewed = self.follower.read, self.follower.viewed
        outcome.refusals = dict(self.load.refusals)
        if not outcome.violations and outcome.read != verdict.counts["delivered"]:
            self._object(f"{outcome.read} were read, and {verdict.counts['delivered']} are there")


def report(outcome: Outcome) -> list[str]:
    counts = outcome.counts
    lines = [
        f"{outcome.kills} kills under send load, {outcome.at_failpoints} of them at failpoints, and "
        f"{outcome.extra_kills} more in starts or sooner; {outcome.flush}, seed {outcome.seed}, "
        f"{outcome.seconds:.0f} s, {outcome.processors} processors",
        f"  acknowledged {counts.get('acknowledged', 0)}  "
        + "  ".join(f"{name} {counts.get(name, '?')}" for name in ("lost", "invented", "twice")),
        f"  between two kills at least {min(outcome.between, default=0)} acknowledged, {spread(outcome.between)}",
        f"  read by queue offset {outcome.read}, by log position {outcome.viewed}; asked and never answered "
        f"{counts.get('unanswered', 0)}, of which stored {counts.get('unanswered and delivered', 0)}",
        f"  by way of blocks {counts.get('in blocks', '?')}, through {counts.get('blocks', '?')} that are there and "
        f"{counts.get('blocks gone', '?')} that are gone",
        f"  from a start to the first answer, s: {spread(outcome.serving_s)}",
    ]
    lines += [f"  refused: {name} {count}" for name, count in outcome.refusals.items()]
    lines += [f"VIOLATION {text}" for text in outcome.violations]
    lines.append("FAILED" if outcome.violations else "nothing lost, nothing invented, nothing twice")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.sends", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    add_flush(parser, "SYNC_FLUSH")
    add_seed_and_home(parser, "moments", "store and logs")
    parser.add_argument("--rate", type=float, default=3000.0, help="messages a second")
    add_limit(parser, 3600.0)
    add_json(parser)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-sends-"))
    print(f"seed {seed}: {options.kills} kills, {options.flush}, in {home}", flush=True)
    run = Run(home, options.kills, options.flush, seed, lambda text: print(text, flush=True), rate=options.rate)
    outcome = asyncio.run(run.execute(options.seconds_max))
    print("\n".join(report(outcome)))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    if not outcome.violations and options.home is None:
        with contextlib.suppress(OSError):
            shutil.rmtree(home)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
