"""Lose machines under load, and let the other broker take over. Each message must exist once, and on time.

    python -m tests.failover.run --losses 1000 --mode SYNC_MASTER [--seed N]

Senders and a reader use one address throughout. After each loss the slave is promoted, the lost broker comes back as
its slave, and the next loss follows. At the end both logs are compared, and the files of the master are read.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.crash.figures import spread
from tests.crash.following import Follower
from tests.crash.load import Load, Mix
from tests.crash.notes import Kind
from tests.crash.options import add_json, add_limit, add_seed_and_home
from tests.crash.verdict import judge
from tests.failover.group import Group, NotReady
from tests.failover.logs import difference
from wheelmq.broker.replication.replicas import PATIENCE_MS
from wheelmq.cli.switch import SwitchRejected
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient

MIX: Final = Mix(
    kinds=(
        (Kind.PLAIN, 0.52),
        (Kind.IN_BLOCK, 0.08),
        (Kind.DELIVER_AT, 0.15),
        (Kind.DELAY_MS, 0.15),
        (Kind.LEVEL, 0.05),
        (Kind.CANCEL, 0.05),
    ),
    delays_ms=((0.6, 50, 1000), (0.4, 1000, 4000)),
    batch_share=0.05,
)
RATE: Final = 600.0
ACKNOWLEDGED_S: Final = 60.0
DRAIN_S: Final = 60.0
POLL_S: Final = 0.01
REPORT_S: Final = 0.02
"""Time between two looks at the reported replication lag."""


class Loss(StrEnum):
    """The ways to lose a master, or a part of the network."""

    KILL = "the master is killed"
    DISK = "the master is killed and its disk is lost"
    ISOLATED = "the master is cut off, and half of the senders stay with it"
    SLOW = "the link to the slave is slow and breaks, then the master is killed"
    SLAVE = "the slave is killed"
    LINK = "the link to the slave is cut for a time"
    SWITCH = "the master hands over"


WEIGHTS: Final = {
    Loss.KILL: 5,
    Loss.DISK: 3,
    Loss.ISOLATED: 4,
    Loss.SLOW: 3,
    Loss.SLAVE: 1,
    Loss.LINK: 2,
    Loss.SWITCH: 2,
}
PROMOTES: Final = (Loss.KILL, Loss.DISK, Loss.ISOLATED, Loss.SLOW, Loss.SWITCH)


@dataclass(frozen=True)
class Moment:
    """One loss, after `acknowledged` more messages and a pause; `length_s` is the time that a cut lasts."""

    loss: Loss
    acknowledged: int
    pause_s: float
    length_s: float


def make_moments(count: int, seed: int) -> list[Moment]:
    """Return the losses of a run. Any seven in a row at the start are of all kinds."""
    chance = random.Random(seed)
    kinds = list(Loss)
    chance.shuffle(kinds)
    kinds += chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, count - len(kinds)))
    return [
        Moment(kind, 50 + chance.randrange(300), chance.uniform(0, 0.05), chance.uniform(0.1, 1.2))
        for kind in kinds[:count]
    ]


class Violated(Exception):
    """A violation that makes the rest of the run meaningless."""


@dataclass
class Outcome:
    seed: int
    mode: str
    losses: dict[str, int] = field(default_factory=dict)
    failover_ms: list[int] = field(default_factory=list)
    """Time from each loss of a master to the first acknowledgement by its successor."""
    windows: list[tuple[int, int]] = field(default_factory=list)
    """Each time without a master that releases timers, in milliseconds since 1970."""
    exposed: list[tuple[int, int]] = field(default_factory=list)
    """Times of acknowledgements that an asynchronous failover may lose, as the reported lag says."""
    late_ms: list[int] = field(default_factory=list)
    """How late timers were that fell due in such a time, from the promotion on."""
    read: int = 0
    new_readers: int = 0
    """Times that the reader began again, after a failover with a reported lag above PATIENCE_MS."""
    lost: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Run:
    """One run, from empty folders to the verdict."""

    def __init__(self, home: Path, losses: int, mode: str, seed: int, tell: Callable[[str], None]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self._tell = tell
        self._moments = make_moments(losses, seed)
        self._seed = seed
        self.group = Group(home, mode, seed)
        self.outcome = Outcome(seed, mode)
        self._replicated_ms = 0
        """The last report of the master says that a replica has all that it acknowledged before this time."""
        self.load: Load
        self.follower: Follower
        self._is_reader_exposed = False
        """Whether the reader may have read records that a failover takes back: the lag was too long to wait for."""

    async def execute(self, seconds_max: float) -> Outcome:
        """Execute the run. All brokers have ended when this returns or raises."""
        began = time.monotonic()
        polling: asyncio.Task[None] | None = None
        try:
            await self.group.open()
            self.load = Load(self.group.clients.address, MIX, RATE, self._seed)
            self.follower = self._new_follower()
            self.load.start()
            polling = asyncio.create_task(self._poll_lag())
            for i, moment in enumerate(self._moments):
                if time.monotonic() > began + seconds_max:
                    raise Violated(f"the time ran out after {i} losses")
                await self._one(moment)
            await self._finish()
        except (Violated, NotReady, SwitchRejected, CallError, Refused) as problem:
            self._object(f"{type(problem).__name__}: {problem}")
        finally:
            if polling is not None:
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)
                await self.load.stop(grace_s=0.0)
                await self.follower.close()
            for member in self.group.members:
                await member.process.stop()
            await self.group.close()
        self._judge()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _new_follower(self) -> Follower:
        return Follower(RpcClient(self.group.readers.address), self.load.notes, MIX.body_bytes)

    def _object(self, text: str) -> None:
        self.outcome.violations.append(text)
        self._tell(f"VIOLATION {text}")

    async def _poll_lag(self) -> None:
        while True:
            asked_ms = _now_ms()
            state = await self.group.master.state()
            if state is not None and state.is_master:
                self._replicated_ms = asked_ms - state.lag_ms
            await asyncio.sleep(REPORT_S)

    # One loss --------------------------------------------------------------------------------------------------------

    async def _one(self, moment: Moment) -> None:
        """Wait for acknowledgements, lose a machine or a link, fail over, and wait until all is well again."""
        await self._acknowledged(moment.acknowledged)
        await asyncio.sleep(moment.pause_s)  # the loss comes at a random moment
        self._begin_exposure()
        began = time.monotonic()
        match moment.loss:
            case Loss.KILL:
                await self._kill_master()
                await self._promote(began)
                await self.group.slave.process.start()
            case Loss.DISK:
                await self._kill_master()
                await self._promote(began)
                await self.group.slave.lose_disk()
                await self.group.slave.process.start()
            case Loss.ISOLATED:
                await self._split(moment.length_s)
            case Loss.SLOW:
                link = self.group.master.ha
                link.delay_s, link.break_share = 0.002 + moment.length_s / 50, 0.02
                await asyncio.sleep(moment.length_s)
                self._begin_exposure()
                began = time.monotonic()
                await self._kill_master()
                await self._promote(began)
                link.heal()
                await self.group.slave.process.start()
            case Loss.SLAVE:
                self.group.slave.process.kill()
                await self.group.slave.process.wait_dead()
                await self.group.slave.process.start()
            case Loss.LINK:
                self.group.master.ha.cut()
                await asyncio.sleep(moment.length_s)
                self.group.master.ha.heal()
            case Loss.SWITCH:
                await self._promote(began, force=False)
        await self.group.wait_for_slave()
        self._end_exposure(moment.loss)
        if self._is_reader_exposed:
            await self.follower.close()
            self.follower = self._new_follower()
            self.outcome.new_readers += 1
        await self.follower.follow()
        if self.follower.wrong:
            raise Violated(f"{dict(self.follower.wrong)}; the stores are in {self.home}")
        self.outcome.losses[moment.loss] = self.outcome.losses.get(moment.loss, 0) + 1
        self._tell(
            f"{sum(self.outcome.losses.values()):4d} {moment.loss.value}: well again after "
            f"{time.monotonic() - began:.2f} s, {self.load.acknowledged} acknowledged"
        )

    async def _kill_master(self) -> None:
        self.group.master.process.kill()
        await self.group.master.process.wait_dead()

    async def _split(self, length_s: float) -> None:
        """Cut off the master. Half of the senders stay with it until the cut ends."""
        old = self.group.master
        old.isolate()
        began = time.monotonic()
        await self._promote(began, stays=True)
        await asyncio.sleep(length_s)
        self.group.clients.move(self.group.master.target)
        old.heal()

    async def _promote(self, began: float, *, force: bool = True, stays: bool = False) -> None:
        """Promote the slave, lead the clients to it, and wait for its first acknowledgement."""
        lost_ms = _now_ms()
        await self.group.promote(force=force)
        self.outcome.windows.append((lost_ms, _now_ms()))
        new, old = self.group.master.target, self.group.slave.target
        self.group.readers.move(new)
        self.group.clients.move(*((new, old) if stays else (new,)))
        if self.outcome.mode == "ASYNC_MASTER":  # a SYNC_MASTER acknowledges nothing without its slave
            before = self.load.acknowledged
            await self._until(lambda: self.load.acknowledged > before, "an acknowledgement by the new master")
            self.outcome.failover_ms.append(round(1000 * (time.monotonic() - began)))

    def _begin_exposure(self) -> None:
        self._exposed_from_ms = self._replicated_ms
        is_sync = self.outcome.mode == "SYNC_MASTER"
        self._is_reader_exposed = not is_sync and _now_ms() - self._replicated_ms > PATIENCE_MS

    def _end_exposure(self, loss: Loss) -> None:
        if loss in PROMOTES:
            self.outcome.exposed.append((self._exposed_from_ms, _now_ms()))

    async def _acknowledged(self, count: int) -> None:
        """Wait for `count` more acknowledged messages. Raises Violated."""
        goal = self.load.acknowledged + count
        await self._until(lambda: self.load.acknowledged >= goal, f"{count} acknowledgements")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + ACKNOWLEDGED_S
        while not condition():
            if time.monotonic() > deadline:
                raise Violated(f"{what} did not come in {ACKNOWLEDGED_S:.0f} s: {dict(self.load.refusals)}")
            await asyncio.sleep(POLL_S)

    # The end ---------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Wait for the timers, and read all queues again. Raises Violated, CallError, Refused."""
        await self.load.stop()
        deadline = time.monotonic() + DRAIN_S
        while (metrics := await self.group.master.process.metrics()) is None or metrics["timers"]["pending"]:
            if time.monotonic() > deadline:
                raise Violated(f"timers are pending {DRAIN_S} s after the last send: {metrics}")
            await asyncio.sleep(POLL_S)
        await self.group.wait_for_slave()
        await self.follower.follow()
        await self.follower.read_again()

    def _judge(self) -> None:
        """Judge the files of the master, compare the logs, and add the reader's findings."""
        outcome = self.outcome
        if not hasattr(self, "load"):
            return
        master, slave = self.group.master.process.store, self.group.slave.process.store
        verdict = judge(master, self.load.notes)
        outcome.counts = verdict.counts
        outcome.lost = verdict.counts.get("lost", 0)
        violations = verdict.violations
        if outcome.mode == "ASYNC_MASTER":
            violations = [text for text in violations if not text.startswith(MAY_BE_LOST)]
            self._judge_losses(verdict.lost)
        outcome.violations += [*violations, *self.follower.stories]
        outcome.read, outcome.refusals = self.follower.read, dict(self.load.refusals)
        if (text := difference(master, slave)) is not None:
            self._object(text)
        if verdict.delivered is not None:
            due_ms, store_ms = verdict.delivered["due_ms"], verdict.delivered["store_ms"]
            for lost_ms, promoted_ms in outcome.windows:
                mine = (due_ms >= lost_ms) & (due_ms <= promoted_ms)
                outcome.late_ms += np.maximum(0, store_ms[mine] - promoted_ms).tolist()

    def _judge_losses(self, lost: Any) -> None:
        """Check that each lost message was acknowledged within the lag that the master had reported.

        The lag is that of the log. Messages in blocks have none that is reported as a time.
        """
        rows, outside = self.load.notes.rows, []
        for number in lost.tolist():
            at_ms = int(rows[number]["answered_ms"])
            if rows[number]["kind"] == Kind.IN_BLOCK:
                continue
            if not any(first <= at_ms <= last for first, last in self.outcome.exposed):
                outside.append((number, at_ms))
        if outside:
            self._object(
                f"{len(outside)} messages were acknowledged outside of each reported lag and are lost, such as "
                f"(number, time) {outside[:3]}; exposed were {self.outcome.exposed}"
            )


MAY_BE_LOST: Final = (
    "lost:",
    "cancels acknowledged and not in the log:",
    "cancelled, says the answer, and is not:",
    "not found, says the answer, and was pending:",
    "settled, says the answer, and was not:",
)
"""Consequences of lost records."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def report(outcome: Outcome) -> list[str]:
    counts = outcome.counts
    lines = [
        f"{sum(outcome.losses.values())} losses, {outcome.mode}, seed {outcome.seed}, {outcome.seconds:.0f} s",
        *(f"  {count:4d} times {name}" for name, count in Counter(outcome.losses).most_common()),
        f"  acknowledged {counts.get('acknowledged', 0)}  delivered {counts.get('delivered', 0)}  lost {outcome.lost}  "
        + "  ".join(f"{name} {counts.get(name, '?')}" for name in ("twice", "early", "invented")),
        f"  without an answer {counts.get('unanswered', 0)}, of which delivered "
        f"{counts.get('unanswered and delivered', 0)}; read by the consumer {outcome.read}, which began "
        f"again {outcome.new_readers} times after a long lag",
        f"  from the loss to the first acknowledgement, ms: {spread(outcome.failover_ms)}",
        f"  timers due meanwhile: {len(outcome.late_ms)}, after the promotion, ms: {spread(outcome.late_ms)}",
    ]
    lines += [f"  refused: {name} {count}" for name, count in outcome.refusals.items()]
    lines += [f"VIOLATION {text}" for text in outcome.violations]
    lines.append("FAILED" if outcome.violations else "all well")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.failover.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", type=int, default=500)
    parser.add_argument("--mode", choices=("SYNC_MASTER", "ASYNC_MASTER"), default="SYNC_MASTER")
    add_seed_and_home(parser, "losses")
    add_limit(parser, 7200.0)
    add_json(parser)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-failover-"))
    print(f"seed {seed}: {options.losses} losses, {options.mode}, in {home}", flush=True)
    run = Run(home, options.losses, options.mode, seed, lambda text: print(text, flush=True))
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
