"""A name server and two brokers of one name, each on a loopback address of its own, with proxies between them.

Broker k listens on 127.0.k.1. It advertises 127.0.k.2, where a proxy listens on the same ports. Its name server is a
proxy on 127.0.k.3. So a test can cut off one broker from the others and from the name server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.crash.parts import BrokerProcess
from tests.crash.sends import SETTINGS
from tests.failover.network import Link, stop_all
from wheelmq.broker.replication.state_request import state_of
from wheelmq.cli.switch import Switched, switch
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient

POLL_S: Final = 0.01
READY_S: Final = 120.0
"""Deadline of a start with a whole log, and of a slave that catches up. The first start may compile kernels."""
NAME: Final = "broker-f"


class NotReady(Exception):
    """A broker did not reach a state in time."""


class Member:
    """One broker of the group, with the proxies around it."""

    def __init__(self, number: int, home: Path, names: tuple[str, int], mode: str, randomness: random.Random) -> None:
        host, advertised = f"127.0.{number}.1", f"127.0.{number}.2"
        self.number = number
        port, ha_port = free_ports(host, advertised)
        self.target = (host, port)
        self.requests = Link(advertised, port, [(host, port)], randomness)
        self.ha = Link(advertised, ha_port, [(host, ha_port)], randomness)
        self.names = Link(f"127.0.{number}.3", 0, [names], randomness)
        self.links: tuple[Link, ...] = (self.requests, self.ha, self.names)
        self._home = home
        self._settings: dict[str, Any] = {
            **SETTINGS,
            "listen_host": host,
            "broker_ip": advertised,
            "ha_listen_port": ha_port,
            "fast_port_enable": "false",
            "slave_timeout_ms": 1000,
            "broker_role": mode if number == 1 else "SLAVE",
            "broker_id": number - 1,
        }
        self._caller = RpcClient(f"{host}:{port}")
        self.process = self._make()

    def _make(self) -> BrokerProcess:
        options = ("--namesrv", self.names.address, "--name", NAME)
        return BrokerProcess(
            self._home,
            self.target[1],
            "ASYNC_FLUSH",
            self._settings,
            self._home / "failpoints.log",
            *options,
            host=self.target[0],
        )

    async def open(self) -> None:
        """Start the proxies, then the broker."""
        for link in self.links:
            await link.start()
        self.process = self._make()  # the proxy of the name server has its port now
        await self.process.start()

    async def close(self) -> None:
        await self._caller.close()
        if self.process.is_alive:
            self.process.kill()
            await self.process.wait_dead()
        await stop_all(self.links)

    async def lose_disk(self) -> None:
        """Remove the store of the dead broker. It then starts as a new slave."""
        await asyncio.to_thread(shutil.rmtree, self.process.store)
        self._settings |= {"broker_role": "SLAVE", "broker_id": 1}
        self.process = self._make()

    def isolate(self) -> None:
        """Cut the broker off from the other broker and from the name server. Clients still reach it."""
        for link in self.links:
            link.cut()

    def heal(self) -> None:
        for link in self.links:
            link.heal()

    async def state(self) -> ReplicationState | None:
        """Return the state of the broker; None if it does not answer."""
        try:
            return await state_of(self._caller)
        except (CallError, Refused):
            return None

    async def wait_for(self, what: str, condition: Callable[[ReplicationState], bool]) -> ReplicationState:
        """Wait until the state of the broker meets the condition. Raises NotReady."""
        deadline_s = time.monotonic() + READY_S
        while True:
            state = await self.state()
            if state is not None and condition(state):
                return state
            if not self.process.is_alive:
                raise NotReady(f"broker {self.number} ended: it was to {what}; see {self._home}")
            if time.monotonic() > deadline_s:
                raise NotReady(f"broker {self.number} was to {what}, and is {state}; see {self._home}")
            await asyncio.sleep(POLL_S)


class Group:
    """The two brokers, their name server, and the proxies of the clients."""

    def __init__(self, home: Path, mode: str, seed: int) -> None:
        self._home = home
        self._mode = mode
        self._randomness = random.Random(seed)
        self._names: NameServerApp | None = None
        self.clients = Link("127.0.0.1", 0, [], self._randomness)
        """Leads the senders to the brokers that they take for the master."""
        self.readers = Link("127.0.0.1", 0, [], self._randomness)
        """Leads the reader to the master."""
        self.members: list[Member] = []
        self.master: Member
        self.slave: Member

    @property
    def names_address(self) -> str:
        """The address of the name server, without a proxy."""
        assert self._names is not None
        return f"127.0.0.1:{self._names.port}"

    async def open(self) -> None:
        settings = NameServerSettings(kv_config_path=self._home / "kvConfig.json", listen_port=0)
        self._names = NameServerApp(settings)
        await self._names.start()
        names = ("127.0.0.1", self._names.port)
        for number in (1, 2):
            self.members.append(self.new_member(number, names))
            await self.members[-1].open()
            await self.members[-1].wait_for("start", lambda state: True)
        self.master, self.slave = self.members
        self.clients.move(self.master.target)
        self.readers.move(self.master.target)
        await self.clients.start()
        await self.readers.start()
        await self.wait_for_slave()

    def new_member(self, number: int, names: tuple[str, int]) -> Member:
        """Return the broker `number`, whose name server is at `names`."""
        return Member(number, self._home / f"broker-{number}", names, self._mode, self._randomness)

    async def close(self) -> None:
        await stop_all((self.clients, self.readers))
        for member in self.members:
            await member.close()
        if self._names is not None:
            await self._names.stop()

    async def wait_for_slave(self) -> None:
        """Wait until the slave has the log and the blocks that the master has now. Raises NotReady."""
        end = (await self.master.wait_for("have a slave", _has_slave)).log_end
        await self.slave.wait_for(f"follow to {end}", lambda state: not state.is_master and state.log_end >= end)

    async def promote(self, *, force: bool) -> Switched:
        """Make the slave the master. The clients find it at once; the former master is the slave from then on."""
        host, port = self.slave.target
        done = await asyncio.to_thread(switch, f"{host}:{port}", self.slave.names.address, force=force)
        self.master, self.slave = self.slave, self.master
        return done


def _has_slave(state: ReplicationState) -> bool:
    """Return whether a broker is the master, and one slave copies its log and has all of its blocks."""
    has_blocks = not state.has_blocks or 0 in state.lacking.values()
    return state.is_master and state.replicas > 0 and has_blocks


def free_ports(*hosts: str) -> tuple[int, int]:
    """Return two ports that are free on all of `hosts`."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < 2:
            first = stack.enter_context(socket.create_server((hosts[0], 0)))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError):
                for host in hosts[1:]:
                    stack.enter_context(socket.create_server((host, port)))
                found.append(port)
    return found[0], found[1]
