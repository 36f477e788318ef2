"""Kill shippers and brokers under load, lose the machine, and continue on the restored store.

    python -m tests.crash.shipping --losses 10 --kills 6 [--seed N] [--s3]

A loss ends broker and shipper by SIGKILL at the same moment, and abandons their store. `wheelmq restore` brings a store
back from the target, and a new broker and a new shipper continue with it and the same target. The shipper's status
says up to which time the target had everything: each message that was acknowledged before must be in the restored
store, once. At the end the last store is judged by the code for crash runs.

Before the first loss, `wheelmq backup` copies the store of the running broker. Each message that was acknowledged
before must be in the store that is restored from this copy.
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
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.crash.figures import spread
from tests.crash.load import Load
from tests.crash.notes import QUEUES, TOPICS, Fate, Notes
from tests.crash.parts import LOG_VARIABLE, POINTS_VARIABLE, BrokerProcess, fired
from tests.crash.sends import MIX, SETTINGS, UNDER_LOAD
from tests.crash.verdict import judge
from tests.s3_server import s3_server
from wheelmq.cli.ports import free_port
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient
from wheelmq.store.ship_status import ShipStatus, read_statuses
from wheelmq.system.disk import ReadOnlyDisk

LOOK_S: Final = 0.02
READY_DEADLINE_S: Final = 300.0
"""The first start may compile kernels."""
COMPLETE_DEADLINE_S: Final = 60.0
DRAIN_S: Final = 40.0
INTERVAL: Final = "200ms"
AGE_MS_MAX: Final = 1000
"""The bound: what a lost machine takes with it."""

IN_SHIPPER: Final = {
    "create.named": (1, 12),
    "create.written": (1, 12),
    "ship.chunks": (1, 2),
    "ship.merged": (1, 2),
    "ship.opened": (1, 1),
    "ship.points": (1, 2),
    "ship.removed": (1, 8),
    "ship.stored": (1, 12),
    "target.written": (1, 12),
}
"""Failpoints of a shipper, and the passages at which they may fire."""


class Violated(Exception):
    """A violation that makes the rest of the run meaningless."""


class ShipperProcess:
    """`wheelmq ship` on a home, restarted by the test."""

    def __init__(self, home: Path, target: Sequence[str], failpoint_log: Path) -> None:
        self._command = [sys.executable, "-P", "-m", "wheelmq", "ship", *target, "--home", str(home), "--json"]
        self._command += ["--interval", INTERVAL, "--merged-count", "6", "--keep", "1d", "--ends-with-stdin"]
        self._store = StorePaths(home / "store")
        self._log = home / "ship.log"
        self._failpoint_log = failpoint_log
        self._process: Process | None = None
        self.armed: tuple[str, int] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, armed: tuple[str, int] | None = None) -> None:
        self.armed = armed
        points = f"{armed[0]}={armed[1]}" if armed is not None else ""
        environment = {**os.environ, LOG_VARIABLE: str(self._failpoint_log), POINTS_VARIABLE: points}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=log, stderr=log, env=environment, process_group=0
            )

    def kill(self) -> None:
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)

    async def end(self) -> int:
        """Stop it cleanly, and return its exit code."""
        assert self._process is not None
        if self.is_alive:
            os.kill(self.pid, signal.SIGTERM)
        return await self._process.wait()

    async def wait_dead(self) -> None:
        assert self._process is not None
        await self._process.wait()

    def status(self) -> ShipStatus | None:
        return next(iter(read_statuses(ReadOnlyDisk(), self._store)), None)

    async def until_complete(self, since_ms: int) -> None:
        """Wait until the target has everything up to `since_ms`. Raises Violated."""
        stop = time.monotonic() + COMPLETE_DEADLINE_S
        while (status := self.status()) is None or status.complete_ms < since_ms:
            if not self.is_alive or time.monotonic() > stop:
                raise Violated(f"the shipper does not catch up: {status}; see {self._log}")
            await asyncio.sleep(LOOK_S)


@dataclass
class ShippingOutcome:
    seed: int
    losses: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    """Kills by failpoint, or by hand."""
    ages_ms: list[int] = field(default_factory=list)
    """Age of the last complete copy at each loss."""
    lost: list[int] = field(default_factory=list)
    """Acknowledged messages that each loss took with it."""
    lost_ms: list[int] = field(default_factory=list)
    """Age of the oldest acknowledged message that each loss took with it."""
    restore_s: list[float] = field(default_factory=list)
    backed_up: int = 0
    """Messages that were acknowledged before the backup, and that it contains."""
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class ShippingRun:
    def __init__(
        self,
        home: Path,
        losses: int,
        kills: int,
        seed: int,
        tell: Callable[[str], None],
        rate: float,
        target: Sequence[str] = (),
    ) -> None:
        """`target` is the argument with the target, and its options. Without one it is a folder in `home`."""
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._losses, self._kills = losses, kills
        self._random = random.Random(seed)
        self._tell = tell
        self._port = free_port()
        self._target = target or [str(home / "target")]
        self._log = home / "failpoints.log"
        self.outcome = ShippingOutcome(seed)
        self.load = Load(f"127.0.0.1:{self._port}", MIX, rate, seed)
        self._machine(0)

    def _machine(self, number: int) -> None:
        """Name the folders of a machine, and its processes."""
        self.folder = self._home / f"machine-{number}"
        self.folder.mkdir(exist_ok=True)
        self.broker = BrokerProcess(self.folder, self._port, "ASYNC_FLUSH", SETTINGS, self._log)
        self.shipper = ShipperProcess(self.folder, self._target, self._log)

    async def execute(self) -> ShippingOutcome:
        """Execute the run. No process is left when this returns or raises."""
        try:
            await self.broker.start()
            await self._until_serving()
            await self.shipper.start()
            await self.shipper.until_complete(now_ms())
            await self._create_topics()
            self.load.start()
            for number in range(1, self._losses + 1):
                for _ in range(self._kills):
                    await self._kill_one()
                if number == 1:
                    await self._back_up()
                await self._lose(number)
            await self._finish()
        except Violated as problem:
            self.outcome.violations.append(str(problem))
        finally:
            await self.load.stop(grace_s=0.0)
            self.shipper.kill()
            await self.broker.stop()
        if not self.outcome.violations:
            verdict = judge(self.broker.store, self.load.notes)
            self.outcome.counts, self.outcome.violations = verdict.counts, verdict.violations
        return self.outcome

    async def _create_topics(self) -> None:
        """Create the topics, so that no send waits for a new one for longer than its delay."""
        caller = RpcClient(self.broker.address)
        for topic in TOPICS:
            fields = headers.texts(
                topic=topic,
                defaultTopic="TBW102",
                readQueueNums=QUEUES,
                writeQueueNums=QUEUES,
                perm=6,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=False,
            )
            await caller.ask(Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields), 5.0)
        await caller.close()

    async def _until_serving(self) -> None:
        stop = time.monotonic() + READY_DEADLINE_S
        while (metrics := await self.broker.metrics()) is None or not metrics["takes_sends"]:
            if time.monotonic() > stop:
                raise Violated(f"the broker does not serve; see {self.folder}")
            if not self.broker.is_alive:
                if self.broker.armed is None:
                    raise Violated(f"the broker ended by itself; see {self.folder}")
                await self.broker.start()
            await asyncio.sleep(LOOK_S)

    # Kills ---------------------------------------------------------------------------------------------------------

    async def _kill_one(self) -> None:
        """Kill the shipper, the broker or both, at a failpoint or by hand, and start them again."""
        which = self._random.choice(("shipper", "shipper", "broker", "both"))
        armed = self._random.random() < 0.6
        before = len(fired(self._log))
        if which != "broker":
            self.shipper.kill()
            await self.shipper.wait_dead()
            await self.shipper.start(self._point(IN_SHIPPER) if armed else None)
        if which != "shipper":
            self.broker.kill()
            await self.broker.wait_dead()
            await self.broker.start(self._point(UNDER_LOAD) if armed else None)
        await asyncio.sleep(self._random.uniform(0.5, 2.0))
        names = [name for _, name in fired(self._log)[before:]]
        self.outcome.killed.update(names or [f"{which} by hand"])
        if not self.broker.is_alive:
            await self.broker.start()
        if not self.shipper.is_alive:
            await self.shipper.start()
        await self._until_serving()

    def _point(self, points: dict[str, tuple[int, int]]) -> tuple[str, int]:
        name = self._random.choice(sorted(points))
        return name, self._random.randint(*points[name])

    # Losses --------------------------------------------------------------------------------------------------------

    async def _lose(self, number: int) -> None:
        """Lose the machine once its copy is complete, and continue on another one."""
        if self.broker.armed is not None:
            self.broker.kill()
            await self.broker.wait_dead()
            await self.broker.start()
        if self.shipper.armed is not None or not self.shipper.is_alive:
            self.shipper.kill()
            await self.shipper.wait_dead()
            await self.shipper.start()
        await self._until_serving()
        await self.shipper.until_complete(now_ms())
        await asyncio.sleep(self._random.uniform(0.5, 2.5))
        lost_at_ms = now_ms()
        self.broker.kill()
        self.shipper.kill()
        await self.broker.wait_dead()
        await self.shipper.wait_dead()
        await asyncio.sleep(0.1)  # answers that are on their way
        status = self.shipper.status()
        assert status is not None
        self.outcome.losses += 1
        self.outcome.ages_ms.append(lost_at_ms - status.complete_ms)
        self._machine(number)
        await self._restore()
        self._note_lost(status.complete_ms, lost_at_ms)
        await self.broker.start()
        await self._until_serving()
        await self.shipper.start()
        await self.shipper.until_complete(lost_at_ms)
        found = self.outcome
        self._tell(
            f"loss {number}: copy {found.ages_ms[-1]} ms old, {found.lost[-1]} acknowledged messages lost, "
            f"the oldest {found.lost_ms[-1]} ms before; restored in {found.restore_s[-1]} s"
        )

    async def _restore(self) -> None:
        began = time.monotonic()
        made = await self._run("restore", *self._target, "--home", self.folder)
        self.outcome.restore_s.append(round(time.monotonic() - began, 2))
        assert made["event"] == "restored"

    async def _run(self, *arguments: object) -> dict[str, Any]:
        """Run a command of `wheelmq`. Returns its last event. Raises Violated."""
        command = [sys.executable, "-P", "-m", "wheelmq", *map(str, arguments), "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        output, errors = await process.communicate()
        if process.returncode:
            raise Violated(f"`wheelmq {arguments[0]}` failed: {output.decode()} {errors.decode()}")
        event: dict[str, Any] = json.loads(output.splitlines()[-1])
        return event

    async def _back_up(self) -> None:
        """Copy the store of the running broker once, and restore the copy."""
        rows = self.load.notes.rows
        before = np.flatnonzero(rows["fate"] == Fate.STORED)
        copy, home = self._home / "backup", self._home / "from-backup"
        copied = await self._run("backup", copy, "--home", self.folder)
        restored = await self._run("restore", copy, "--home", home)
        assert copied["event"] == "verified" and restored["event"] == "restored"
        missing = np.setdiff1d(before, numbers_in(home / "store", self.load.notes))
        same = ("records", "block_records", "timers", "in_levels", "in_blocks", "log_end")
        if len(missing) or any(copied[name] != restored[name] for name in same):
            raise Violated(f"the backup lacks {len(missing)} acknowledged messages: {copied}, {restored}")
        self.outcome.backed_up = len(before)

    def _note_lost(self, complete_ms: int, lost_at_ms: int) -> None:
        """Take back the promise for messages that were acknowledged after the last complete copy.

        Count those that are missing in the restored store.
        """
        rows = self.load.notes.rows
        late = np.flatnonzero((rows["fate"] == Fate.STORED) & (rows["answered_ms"] >= complete_ms))
        there = numbers_in(self.folder / "store", self.load.notes)
        missing = late[~np.isin(late, there)]
        self.outcome.lost.append(len(missing))
        oldest_ms = int(rows["answered_ms"][missing].min()) if len(missing) else lost_at_ms
        self.outcome.lost_ms.append(lost_at_ms - oldest_ms)
        for number in late.tolist():
            rows[number]["fate"], rows[number]["outcome"] = Fate.ASKED, 0
            rows[number]["queue_offset"] = rows[number]["origin"] = -1  # they may belong to another message now

    async def _finish(self) -> None:
        """Let everything leave."""
        await self.load.stop()
        stop = time.monotonic() + DRAIN_S
        while (metrics := await self.broker.metrics()) is None or metrics["timers"]["pending"]:
            if time.monotonic() > stop:
                raise Violated(f"timers are pending {DRAIN_S} s after the last send: {metrics}")
            await asyncio.sleep(LOOK_S)
        if await self.shipper.end() != 0:
            raise Violated(f"the clean stop of the shipper failed; see {self.folder}")


def numbers_in(root: Path, notes: Notes) -> np.ndarray[Any, Any]:
    """Return the numbers of all messages that a store has."""
    prefix, found = notes.key_prefix.encode(), set()
    for folder in (root / "commitlog", *(root / "scheduledtempdata").glob("*/log")):
        for path in folder.iterdir():
            raw, at = path.read_bytes(), -1
            while (at := raw.find(prefix, at + 1)) >= 0:
                digits = raw[at + len(prefix) : at + len(prefix) + 10]
                with contextlib.suppress(ValueError):
                    found.add(int(digits, 16))
    return np.array(sorted(found), np.int64)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def report(outcome: ShippingOutcome) -> list[str]:
    counts = outcome.counts
    lines = [
        f"{outcome.losses} machines lost, {sum(outcome.killed.values())} kills before; seed {outcome.seed}",
        f"  kills: {', '.join(f'{name} {count}' for name, count in sorted(outcome.killed.items()))}",
        f"  age of the last complete copy at a loss, ms: {spread(outcome.ages_ms)}",
        f"  age of the oldest acknowledged message that was lost, ms: {spread(outcome.lost_ms)}",
        f"  acknowledged messages lost per machine: {spread(outcome.lost)}",
        f"  seconds of a restore: {spread(outcome.restore_s)}",
        f"  acknowledged messages in a backup of the running broker: {outcome.backed_up}",
        f"  acknowledged {counts.get('acknowledged', 0)}  "
        + "  ".join(f"{name} {counts.get(name, '?')}" for name in ("lost", "invented", "twice", "early")),
    ]
    lines += [f"VIOLATION {text}" for text in outcome.violations]
    lines.append("FAILED" if outcome.violations else "nothing else lost, nothing twice, nothing early")
    return lines


def print_now(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.shipping", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", type=int, default=10)
    parser.add_argument("--kills", type=int, default=6, help="kills before each loss")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rate", type=float, default=1500.0, help="messages a second")
    parser.add_argument("--s3", action="store_true", help="ship to an S3 server")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = Path(tempfile.mkdtemp(prefix="wheelmq-shipping-"))
    print(f"seed {seed}: {options.losses} losses, in {home}", flush=True)
    with contextlib.ExitStack() as stack:
        target = []
        if options.s3:
            address = stack.enter_context(s3_server())
            target = [f"s3://copies/{home.name}", "--storage", f"endpoint_url={address}"]
        run = ShippingRun(home, options.losses, options.kills, seed, print_now, options.rate, target)
        outcome = asyncio.run(run.execute())
    print("\n".join(report(outcome)))
    late = [age for age in outcome.ages_ms if age > AGE_MS_MAX]
    if late:
        print(f"VIOLATION {len(late)} copies were older than {AGE_MS_MAX} ms: {late}")
    if not outcome.violations:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if outcome.violations or late else 0


if __name__ == "__main__":
    sys.exit(main())
