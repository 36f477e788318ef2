"""One application and several brokers: a fault of one broker does not affect the others.

`make brokers` runs all tests; `make test` runs three brokers, one of which is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.crash.fleet import LATE_MS, Fleet, Member
from tests.crash.parts import Pipeline, Role
from tests.crash.proxy import SlowProxy

START_DEADLINE_S = 240.0
TURNS_DEADLINE_S = 90.0
SHARE_MIN = 0.9
"""The least share of the timers over five seconds that the pipeline must arm, for a broker without faults."""
SLOW_S = 1.5

IS_WHOLE = os.environ.get("BROKERS") == "whole"
at_length = pytest.mark.skipif(not IS_WHOLE, reason="make brokers runs it")


def run_fleet(home: Path, story: Callable[[Fleet], Awaitable[None]]) -> dict[str, Member]:
    """Run `story` with a fleet, check that no process is left, and return its brokers."""

    async def run() -> dict[str, Member]:
        fleet = Fleet(home)
        try:
            await story(fleet)
        finally:
            await fleet.close()
        left = [pid for pipeline in fleet.pipelines for pid in pipeline.left_over()]
        psutil.wait_procs([psutil.Process(pid) for pid in left if psutil.pid_exists(pid)], timeout=20)
        assert not [pid for pipeline in fleet.pipelines for pid in pipeline.left_over()]
        return fleet.members

    return asyncio.run(run())


def check(members: dict[str, Member]) -> None:
    """Check that no broker lost a message or delivered one twice or early."""
    for name, one in members.items():
        verdict = one.verdict()
        assert verdict.violations == [], name
        assert verdict.delivered is not None and len(verdict.delivered) > 100, name
        late_ms = verdict.delivered["store_ms"] - verdict.delivered["due_ms"]
        late = int(np.count_nonzero(late_ms > LATE_MS))
        print(f"{name}: {len(late_ms)} delivered, {late} later than {LATE_MS} ms, median {np.median(late_ms)} ms")


class Bystanders:
    """Brokers without faults, whose queries continue under their leases."""

    def __init__(self, fleet: Fleet, *names: str) -> None:
        self._fleet = fleet
        self._members = [fleet.members[name] for name in names]
        self._epochs = [one.epoch for one in self._members]
        self._armed = [one.armed() for one in self._members]
        self._turns = [one.turns for one in self._members]

    async def turn_on(self, what: str, turns: int = 5) -> None:
        """Wait for more turns of each broker. Raises TimeoutError."""
        await self._fleet.until(
            f"the others turn while {what}",
            lambda: all(one.turns >= was + turns for one, was in zip(self._members, self._turns, strict=True)),
            TURNS_DEADLINE_S,
        )

    def check_leases(self) -> None:
        """Check that their queries continued."""
        assert [one.epoch for one in self._members] == self._epochs

    def check(self) -> None:
        """Check that they kept their leases, and that the pipeline armed its share of their timers."""
        self.check_leases()
        for one, before in zip(self._members, self._armed, strict=True):
            armed = one.armed() - before
            assert armed["pipeline"] >= SHARE_MIN * armed.total(), armed


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("groups", [8, pytest.param(1, marks=at_length)])
def test_trouble_of_one_broker_does_not_affect_the_others(tmp_path: Path, groups: int) -> None:
    """A broker is killed and comes back.

    `make brokers` adds: it is slow, its turn hangs, another one joins and leaves; and the same with one query for all.
    """

    async def story(fleet: Fleet) -> None:
        await fleet.start_namesrv()
        for name in ("a", "b"):
            await fleet.add(name)
        c = await fleet.add("c", registered=False)
        proxy = SlowProxy(c.process.address)
        pipeline = fleet.start_pipeline([await proxy.start()], namesrv=[fleet.namesrv_address], groups=groups)
        try:
            await three(fleet)
            await killed(fleet, c)
            if IS_WHOLE:
                await slow(fleet, proxy, c)
                await hanging(fleet, pipeline)
                await joining(fleet)
            await fleet.drain()
            if IS_WHOLE:
                await leaving(fleet)
        finally:
            proxy.delay_s = 0.0
            await pipeline.stop()
            await proxy.stop()

    async def three(fleet: Fleet) -> None:
        members = fleet.members.values()
        await fleet.until("they turn", lambda: all(one.is_turning for one in members), START_DEADLINE_S)
        for one in members:
            one.load.start()
        await fleet.until("first turns", lambda: all(one.turns >= 5 for one in members), START_DEADLINE_S)

    async def killed(fleet: Fleet, c: Member) -> None:
        bystanders = Bystanders(fleet, "a", "b")
        epoch, boot_ms = c.epoch, c.watch.last.boot_ms
        c.process.kill()
        assert await c.process.wait_dead() == -signal.SIGKILL
        await bystanders.turn_on("one is down")
        await c.process.start()
        await fleet.until(
            "it turns again",
            lambda: not c.process.is_alive or (c.watch.last.boot_ms > boot_ms and c.epoch > epoch and c.is_turning),
            TURNS_DEADLINE_S,
        )
        assert c.process.is_alive, c.process.state
        turns = c.turns
        await fleet.until("it commits again", lambda: c.turns > turns, TURNS_DEADLINE_S)
        bystanders.check()

    async def slow(fleet: Fleet, proxy: SlowProxy, c: Member) -> None:
        bystanders = Bystanders(fleet, "a", "b")
        turns = c.turns
        proxy.delay_s = SLOW_S
        await bystanders.turn_on("one is slow", turns=10)
        await fleet.until("the slow one turns too", lambda: c.turns > turns, TURNS_DEADLINE_S)
        proxy.delay_s = 0.0
        bystanders.check()

    async def hanging(fleet: Fleet, pipeline: Pipeline) -> None:
        """Every task worker stops without ending, so each query is abandoned and restarted."""
        epochs = {name: one.epoch for name, one in fleet.members.items()}
        workers = pipeline.find_processes()[Role.TASK]
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        await fleet.until("one is given up", lambda: any("stopped: " in text for text in fleet.heard), 120.0)
        turns = {name: one.turns for name, one in fleet.members.items()}
        await fleet.until(
            "they turn again", lambda: all(one.turns > turns[name] + 1 for name, one in fleet.members.items()), 180.0
        )
        assert any(one.epoch > epochs[name] for name, one in fleet.members.items())

    async def joining(fleet: Fleet) -> None:
        bystanders = Bystanders(fleet, "a", "b")
        d = await fleet.add("d")
        await fleet.until("it is served", lambda: d.is_turning, TURNS_DEADLINE_S)
        d.load.start()
        await fleet.until("it commits", lambda: d.turns >= 3, TURNS_DEADLINE_S)
        await bystanders.turn_on("one joins")
        bystanders.check_leases()

    async def leaving(fleet: Fleet) -> None:
        d = fleet.members["d"]
        assert await d.process.stop() == 0
        await fleet.until(
            "it is let go", lambda: "serves" in fleet.heard[-1] and d.process.address not in fleet.heard[-1], 60.0
        )

    check(run_fleet(tmp_path, story))


@at_length
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_only_one_of_two_applications_turns_for_a_broker(tmp_path: Path) -> None:
    """The second is rejected with the holder's name, takes over after the first, and the first cannot continue."""

    async def story(fleet: Fleet) -> None:
        one = await fleet.add("a")
        await fleet.until("it is there", lambda: bool(one.watch.last.metrics), START_DEADLINE_S)
        first = fleet.start_pipeline([one.process.address], "first")
        await fleet.until("the first turns", lambda: one.is_turning and one.holder == "first", START_DEADLINE_S)
        one.load.start()
        second = fleet.start_pipeline([one.process.address], "second")
        await fleet.until(
            "the second is refused",
            lambda: any("second waits" in text and "'first' at " in text for text in fleet.heard),
            START_DEADLINE_S,
        )
        turns = one.turns
        await fleet.until("the first goes on", lambda: one.turns > turns + 2, TURNS_DEADLINE_S)
        assert one.holder == "first"
        frozen = [pid for pids in first.find_processes().values() for pid in pids]
        for pid in frozen:  # it is away for long, as in a suspended machine
            os.kill(pid, signal.SIGSTOP)
        await fleet.until("the second takes over", lambda: one.is_turning and one.holder == "second", TURNS_DEADLINE_S)
        epoch, turns = one.epoch, one.turns
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        await fleet.until(
            "the first is refused",
            lambda: any("first waits" in text and "'second' at " in text for text in fleet.heard),
            TURNS_DEADLINE_S,
        )
        await fleet.until("the second turns", lambda: one.turns > turns + 2, TURNS_DEADLINE_S)
        assert (one.holder, one.epoch) == ("second", epoch)
        assert await second.stop()
        await fleet.until("the first takes over", lambda: one.is_turning and one.holder == "first", TURNS_DEADLINE_S)
        await fleet.drain()

    check(run_fleet(tmp_path, story))


@at_length
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_separate_executors_read_over_the_wire(tmp_path: Path) -> None:
    """As on a cluster, executors are separate processes, and none of them reads the store's folder."""

    async def story(fleet: Fleet) -> None:
        one = await fleet.add("a")
        await fleet.until("it is there", lambda: bool(one.watch.last.metrics), START_DEADLINE_S)
        master = "local-cluster[2,1,1024]"
        pipeline = fleet.start_pipeline([one.process.address], master=master, over_the_wire=True)
        await fleet.until("it turns", lambda: one.is_turning, START_DEADLINE_S)
        one.load.start()
        await fleet.until("turns", lambda: one.turns >= 10, START_DEADLINE_S)
        found = pipeline.find_processes()
        assert len(found[Role.JVM]) == 3, "the driver's and two executors'"
        assert one.watch.last.metrics["pipeline"]["read_bytes"] > 100_000
        bystanders = Bystanders(fleet, "a")
        await bystanders.turn_on("nothing happens", turns=8)
        bystanders.check()
        await fleet.drain()

    check(run_fleet(tmp_path, story))
