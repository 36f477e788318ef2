"""Lose machines under load, and let Apache RocketMQ's own controller elect the other broker.

    python -m tests.failover.controlled --losses 200 [--seed N]

The losses are those of tests.failover.run. No operator promotes a broker. Each loss waits until both brokers are in
sync, because the controller elects no other broker.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from compat.apache.apache import ApacheController
from tests.crash.options import add_limit, add_seed_and_home
from tests.crash.parts import BrokerProcess
from tests.failover.group import NAME, Group, Member, NotReady
from tests.failover.network import Link
from tests.failover.run import Moment, Run, report
from wheelmq.broker.replication.controller import requests
from wheelmq.cli.switch import Switched
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient

FAILOVER_MS_MAX: Final = 5000
POLL_S: Final = 0.005
DEADLINE_S: Final = 60.0


class ControlledMember(Member):
    """One broker, with a proxy to the controller that a test can cut."""

    def __init__(
        self, number: int, home: Path, names: tuple[str, int], controller: tuple[str, int], randomness: random.Random
    ) -> None:
        self.controller = Link(f"127.0.{number}.3", 0, [controller], randomness)
        super().__init__(number, home, names, "SYNC_MASTER", randomness)
        self.links = (*self.links, self.controller)

    def _make(self) -> BrokerProcess:
        for name in ("broker_role", "broker_id"):
            self._settings.pop(name, None)
        self._settings |= {"controller_mode": "true", "controller_addresses": self.controller.address}
        return super()._make()

    async def lose_disk(self) -> None:
        """Remove the store of the dead broker. The controller then gives it another id."""
        await asyncio.to_thread(shutil.rmtree, self.process.store)


class ControlledGroup(Group):
    """Two brokers whose master the controller elects."""

    def __init__(self, home: Path, seed: int) -> None:
        super().__init__(home, "SYNC_MASTER", seed)
        self._java = ApacheController(home / "controller")
        self._caller = RpcClient(self._java.address)

    async def open(self) -> None:
        await asyncio.to_thread(self._java.start)
        await super().open()

    def new_member(self, number: int, names: tuple[str, int]) -> Member:
        controller = (self._java.host, self._java.port)
        return ControlledMember(number, self._home / f"broker-{number}", names, controller, self._randomness)

    async def close(self) -> None:
        await self._caller.close()
        await super().close()
        if self._java.is_running:
            await asyncio.to_thread(self._java.kill)

    async def in_sync(self) -> set[int]:
        """Return the ids of the replicas in sync. Raises CallError, Refused."""
        answer = await self._caller.ask(requests.replica_info(NAME))
        return set(requests.decision_in(answer).members)

    async def wait_for_slave(self) -> None:
        await super().wait_for_slave()
        await self.wait_for_sync()

    async def wait_for_sync(self) -> None:
        """Wait until both brokers are in sync. Raises NotReady."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            state = await self.slave.state()
            if state is not None and not state.is_master and state.broker_id in await self.in_sync():
                return
            if time.monotonic() > deadline_s:
                raise NotReady(f"the slave is not in sync: {state}, {await self.in_sync()}")
            await asyncio.sleep(POLL_S)

    async def promote(self, *, force: bool) -> Switched:
        """Wait until the controller has elected the slave. Without `force`, ask it for that. Raises NotReady."""
        if not force:
            await self._ask_for_election()
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            state = await self.slave.state()
            if state is not None and state.is_master:
                break
            if time.monotonic() > deadline_s:
                raise NotReady(f"the slave was not elected: {state}, in sync are {await self.in_sync()}")
            await asyncio.sleep(POLL_S)
        self.master, self.slave = self.slave, self.master
        return Switched("elected")

    async def _ask_for_election(self) -> None:
        state = await self.slave.state()
        assert state is not None
        ext: dict[str, Any] = {"clusterName": state.cluster, "brokerName": NAME, "brokerId": state.broker_id}
        ext |= {"designateElect": True, "invokeTime": time.time_ns() // 1_000_000}
        await self._caller.ask(Command(code=RequestCode.CONTROLLER_ELECT_MASTER, ext=headers.texts(**ext)))


class ControlledRun(Run):
    """A run whose master the controller elects."""

    group: ControlledGroup

    def __init__(self, home: Path, losses: int, seed: int, tell: Callable[[str], None]) -> None:
        super().__init__(home, losses, "SYNC_MASTER", seed, tell)
        self.group = ControlledGroup(home, seed)

    async def _kill_master(self) -> None:
        """Kill the master once the slave is in sync. A link that broke a moment ago may remove it yet."""
        self.group.master.ha.break_share = 0.0
        await self.group.wait_for_slave()
        self._lost_at = time.monotonic()
        await super()._kill_master()

    async def _one(self, moment: Moment) -> None:
        self._lost_at = 0.0
        await super()._one(moment)

    async def _promote(self, began: float, *, force: bool = True, stays: bool = False) -> None:
        await super()._promote(began, force=force, stays=stays)
        before = self.load.acknowledged
        await self._until(lambda: self.load.acknowledged > before, "an acknowledgement by the new master")
        took_ms = round(1000 * (time.monotonic() - (self._lost_at or began)))
        self.outcome.failover_ms.append(took_ms)
        if took_ms > FAILOVER_MS_MAX:
            self._object(f"{took_ms} ms from the loss to the next acknowledgement")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.failover.controlled", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--losses", type=int, default=200)
    add_seed_and_home(parser, "losses")
    add_limit(parser, 7200.0)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    home = options.home or Path(tempfile.mkdtemp(prefix="wheelmq-controlled-"))
    print(f"seed {seed}: {options.losses} losses, in {home}", flush=True)
    run = ControlledRun(home, options.losses, seed, lambda text: print(text, flush=True))
    outcome = asyncio.run(run.execute(options.seconds_max))
    print("\n".join(report(outcome)))
    if not outcome.violations and options.home is None:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
