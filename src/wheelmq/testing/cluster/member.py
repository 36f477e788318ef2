"""One broker of a cluster: the real core and the real shells, on a machine with a disk of its own.

The composition follows `BrokerApp` and `live`: a broker that must change its role stops, prepares its store, and starts
again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from wheelmq.broker.broker import Broker
from wheelmq.broker.parts import Parts
from wheelmq.broker.registration import Registrar
from wheelmq.broker.replication.following import Following
from wheelmq.broker.replication.master_watch import LaterMaster, MasterWatch
from wheelmq.broker.replication.role import StoredRole, store_role
from wheelmq.broker.task_list import TickTask
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.net.replica_port import ReplicaConnection, ReplicaPort
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.cluster.event_loop import SimulatedLoop
from wheelmq.testing.cluster.names import ADDRESS
from wheelmq.testing.cluster.network import MachineNetwork, Network
from wheelmq.testing.cluster.requests_port import PeerConnection, RequestProtocol, host_of
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.stops import Died, Stops
from wheelmq.testing.workers import HeldWorker

PORT: Final = 10_911
HA_PORT: Final = 10_912
ROUNDS_MAX: Final = 10_000
"""A member fails if it has more rounds of work than this at one moment."""


class Member:
    """A machine, and the broker process that runs on it now."""

    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        clock: ManualClock,
        network: Network,
        stops: Stops,
        is_held: bool,
        seed: int,
        settings: Mapping[str, Any],
    ) -> None:
        self.number = number
        self.name = f"member {number}"
        self.host = f"10.1.0.{number + 1}"
        self.address = f"{self.host}:{PORT}"
        self.disk = SimulatedDisk()
        self._clock, self._network, self._stops = clock, network, stops
        worker = HeldWorker if is_held else lambda: None
        self.harness = BrokerHarness(
            folder,
            clock=clock,
            disk=self.disk,
            worker=worker(),
            background=worker(),
            tables=worker(),
            seed=seed,
            starts=False,
            broker_ip=self.host,
            listen_port=PORT,
            namesrv=(ADDRESS,),
            **settings,
        )
        self.paths = StorePaths(folder)
        self._last_id = int(settings.get("broker_id", 0))
        self.loop = self._new_loop()
        self.is_open = False
        """Whether the broker serves requests. A master first looks for a later one."""
        self.next_life: Callable[[], object] | None = None
        """The work before the next start in another role."""
        self._wants_tick = False
        self._ticks_ms = 0
        """The time at which the broker needs a tick."""

    def _new_loop(self) -> SimulatedLoop:
        network = MachineNetwork(self._network, self.host)
        return SimulatedLoop(self._clock, network, lambda: self._stops.died is not None)

    @property
    def is_running(self) -> bool:
        return self.harness.is_running

    @property
    def broker(self) -> Broker:
        return self.harness.broker

    @property
    def parts(self) -> Parts:
        return self.harness.broker.parts

    @property
    def is_master(self) -> bool:
        """Whether the broker serves as a master."""
        return self.is_open and self.is_running and self.parts.role.is_master

    @property
    def has_agreed(self) -> bool:
        """Whether the broker is a slave whose log is a part of its master's log."""
        link = self.parts.replication.link
        return link is not None and link.agreed_epoch is not None

    @property
    def broker_id(self) -> int:
        """The id of the running broker, or of the last one."""
        return self.parts.role.broker_id if self.is_running else self._last_id

    # A life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker. It serves once it knows its role. Raises OSError, Died."""
        self._network.power_on(self.host)
        self.harness.open()
        self.loop = self._new_loop()
        with self.loop.running():
            self.loop.create_task(self._begin(self.harness.broker))

    async def _begin(self, broker: Broker) -> None:
        parts = broker.parts
        watch = MasterWatch(parts, self._step_down)
        if parts.role.is_master:
            later = await (watch.wait_for_answer() if parts.role.is_sync else watch.later_master())
            if later is not None:
                self._step_down(later)
                return
        self.is_open = True
        self._network.listen(self.address, self.host, self.loop, self._accept)
        port = ReplicaPort(broker, self._schedule_round, self._schedule_tick)
        self._network.listen(f"{self.host}:{HA_PORT}", self.host, self.loop, lambda: ReplicaConnection(port))
        parts.replication.ha_port = HA_PORT
        registration = Registrar(parts.settings, parts.topics, parts.replication, parts.clock, parts.sign)
        broker.tasks.add(TickTask("registration", lambda at: registration.poll()))
        registration.start()
        watch.start()
        if not parts.role.is_master:
            Following(
                broker,
                registration.masters,
                registration.register_soon,
                self._schedule_round,
                self._schedule_tick,
                self._end_life,
            ).start()
        self._wants_tick = True

    def _end_life(self, between: Callable[[], object]) -> None:
        self.next_life = between

    def _step_down(self, later: LaterMaster) -> None:
        parts = self.parts
        stored = StoredRole(is_master=False, broker_id=later.free_id)
        self.next_life = lambda: store_role(parts.disk, parts.paths, stored)

    def _schedule_round(self) -> None:
        """Do nothing: `work` ends a round after each run of the loop."""

    def _schedule_tick(self) -> None:
        self._wants_tick = True

    # Requests of other brokers -------------------------------------------------------------------------------------

    def _accept(self) -> asyncio.Protocol:
        return RequestProtocol(self._opened, self._received, self._lost)

    def _opened(self, transport: asyncio.Transport) -> PeerConnection:
        connection = PeerConnection(host_of(transport), transport)
        self.harness.accept(connection)
        return connection

    def _received(self, data: bytes, connection: PeerConnection) -> None:
        self.harness.feed(data, connection)
        self._wants_tick = True

    def _lost(self, connection: PeerConnection) -> None:
        if not connection.is_lost:
            self.harness.lose(connection)

    # Work ----------------------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Do all that can be done now. Returns whether there was something. Raises Died."""
        if not self._has_work():
            return False
        has_worked = False
        for _ in range(ROUNDS_MAX):
            has_run = self.loop.run()
            self.check_alive()
            self.loop.check()
            if self.next_life is not None:
                return True
            if not self.is_open:
                return has_worked or has_run
            if self._wants_tick:
                self._wants_tick = False
                self.harness.tick(by_event=False)
            elif has_run:
                self.harness.end_round()
            else:
                wait_ms = self.broker.next_tick_ms()
                if wait_ms:
                    self._ticks_ms = self._clock.monotonic_ms() + wait_ms
                    return has_worked
                self.harness.tick(by_event=False)
            has_worked = True
        raise AssertionError(f"{self.name} always has more work")

    def _has_work(self) -> bool:
        if not self.is_running:
            return False
        return self._wants_tick or self._ticks_ms <= self._clock.monotonic_ms() or self.loop.next_ms() == 0

    def note_action(self) -> None:
        """Note that something outside has used the broker, which may need a tick now."""
        self._ticks_ms = 0

    def serve_waiting_sends(self) -> None:
        """Serve the sends that wait for their topic, as a stop does. Raises Died."""
        self.harness.settle()
        while isinstance(tables := self.harness.tables, HeldWorker) and len(tables):
            tables.run()
            self.harness.settle()

    def check_alive(self) -> None:
        """Raise Died if the process has ended in a task, where asyncio keeps the exception."""
        if self._stops.died is not None:
            raise Died(self._stops.died)

    def next_ms(self) -> int | None:
        """Return the milliseconds until the next work; None without any."""
        if not self.is_running:
            return None
        times = [self.loop.next_ms()]
        if self.is_open:
            times.append(max(0, self._ticks_ms - self._clock.monotonic_ms()))
        return min((one for one in times if one is not None), default=None)

    # Ends of a process ---------------------------------------------------------------------------------------------

    def kill(self, *, dark: bool = False) -> None:
        """End the process as `kill -9` does, or as a loss of power."""
        self._gone(dark=dark)
        self.harness.crash()

    def stop(self) -> None:
        """Stop cleanly. Raises OSError, Died."""
        self._gone(dark=False)
        self.harness.stop()

    def _gone(self, *, dark: bool) -> None:
        if self.is_running:
            self._last_id = self.parts.role.broker_id
        self.is_open, self.next_life, self._wants_tick, self._ticks_ms = False, None, False, 0
        self._network.process_gone(self.host, dark=dark)
        self.loop.end()

    def wipe(self, broker_id: int) -> None:
        """Replace the disk of the stopped broker by an empty one. It will be a new slave with this id."""
        shutil.rmtree(self.paths.root, ignore_errors=True)
        self.disk = self.harness.disk = SimulatedDisk()
        self.harness.change(broker_role="SLAVE", broker_id=broker_id)
        self._last_id = broker_id
