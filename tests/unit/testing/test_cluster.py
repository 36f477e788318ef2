"""The parts of a simulated cluster: its event loop, its network, and the shells of brokers on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.clock import ManualClock
from wheelmq.testing.cluster.event_loop import GRACE_S, SimulatedLoop
from wheelmq.testing.cluster.member import HA_PORT, Member
from wheelmq.testing.cluster.names import ClusterNames
from wheelmq.testing.cluster.network import MachineNetwork, Network, Weather
from wheelmq.testing.cluster.operator import ask
from wheelmq.testing.stops import Died, Stops


class Peer(asyncio.Protocol):
    """One end of a connection, which remembers what came."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: Any = None
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    """Two machines, `1` and `2`. The second one listens."""

    def __init__(self, **weather: Any) -> None:
        self.clock = ManualClock()
        self.network = Network(self.clock, Weather(**{"delay_ms_max": 5, "splits": 0.5, **weather}), seed=1)
        self.loops = [SimulatedLoop(self.clock, MachineNetwork(self.network, one), lambda: False) for one in "12"]
        self.server, self.client = Peer(), Peer()
        self.failure: BaseException | None = None
        self.network.listen("2:1", "2", self.loops[1], lambda: self.server)

    def connect(self) -> None:
        async def dial() -> None:
            try:
                await asyncio.get_running_loop().create_connection(lambda: self.client, "2", 1)
            except OSError as error:
                self.failure = error

        with self.loops[0].running():
            self.loops[0].create_task(dial())

    def run(self, ms: int = 50) -> None:
        for _ in range(ms + 1):
            self.network.deliver()
            while sum(loop.run() for loop in self.loops):
                pass
            self.clock.advance(1)


def test_bytes_of_a_connection_arrive_in_their_order() -> None:
    pair = Pair(buffer_bytes=1 << 20)
    pair.connect()
    pair.run()
    for number in range(30):
        pair.client.transport.write(b"%d," % number)
    pair.run()
    assert pair.server.received == b"".join(b"%d," % number for number in range(30))
    pair.client.transport.close()
    pair.run()
    assert (pair.server.lost, pair.client.lost) == ([None], [None])


def test_a_broken_connection_loses_only_its_last_bytes() -> None:
    ends = set()
    for seed in range(20):
        pair = Pair(buffer_bytes=1 << 20)
        pair.connect()
        pair.run()
        pair.client.transport.randomness = Random(seed)
        pair.client.transport.write(b"0123456789")
        pair.network.break_one(Random(seed))
        pair.client.transport.write(b"456789")
        pair.run()
        assert b"0123456789".startswith(pair.server.received)
        assert isinstance(pair.server.lost[0], ConnectionResetError)
        ends.add(len(pair.server.received))
    assert len(ends) > 3


def test_a_cut_holds_bytes_and_new_connections_back() -> None:
    pair = Pair(buffer_bytes=1 << 20)
    pair.network.cut("1", "2")
    pair.connect()
    pair.run()
    assert pair.client.transport is None and pair.failure is None
    pair.network.heal("1", "2", Random(1))
    pair.run()
    pair.client.transport.write(b"before")
    pair.run()
    pair.network.cut("1", "2")
    pair.client.transport.write(b", during")
    pair.run()
    assert pair.server.received == b"before" and pair.server.lost == []
    pair.network.cuts.clear()
    pair.run()
    assert pair.server.received == b"before, during"


def test_a_machine_without_power_notifies_nobody_until_it_is_back() -> None:
    pair = Pair(buffer_bytes=1 << 20)
    pair.connect()
    pair.run()
    pair.network.process_gone("2", dark=True)
    pair.run()
    assert pair.client.lost == []
    pair.network.power_on("2")
    pair.run()
    assert isinstance(pair.client.lost[0], ConnectionResetError)
    pair.connect()
    pair.run()
    assert isinstance(pair.failure, ConnectionRefusedError)


def test_a_sender_waits_while_too_many_bytes_are_on_their_way() -> None:
    waits: list[str] = []
    pair = Pair(buffer_bytes=10)
    pair.client.pause_writing = lambda: waits.append("pause")  # type: ignore[method-assign]
    pair.client.resume_writing = lambda: waits.append("resume")  # type: ignore[method-assign]
    pair.connect()
    pair.run()
    pair.client.transport.write(b"x" * 11)
    assert waits == ["pause"]
    pair.run()
    assert waits == ["pause", "resume"]


def test_the_loop_runs_timers_at_their_time_and_ends_tasks() -> None:
    pair = Pair(buffer_bytes=10)
    loop, passed = pair.loops[0], list[int]()

    async def sleep(ms: int) -> None:
        try:
            await asyncio.sleep(ms / 1000)
            passed.append(ms)
        finally:
            passed.append(-ms)

    with loop.running():
        tasks = [loop.create_task(sleep(ms)) for ms in (20, 10, 90)]
    loop.run()
    assert loop.next_ms() == 10
    pair.run(30)
    assert passed == [10, -10, 20, -20]
    loop.end()
    assert passed == [10, -10, 20, -20, -90] and all(task.done() for task in tasks)


@pytest.mark.parametrize("is_task", [False, True])
def test_an_error_that_no_code_handles_fails_the_check(is_task: bool) -> None:
    pair = Pair(buffer_bytes=10)
    clock, loop = pair.clock, pair.loops[0]

    def fail() -> None:
        raise ValueError("a mistake")

    async def fail_later() -> None:
        fail()

    async def handle() -> None:
        with pytest.raises(ValueError):
            await asyncio.get_running_loop().create_task(fail_later())

    with loop.running():
        loop.create_task(handle())
    loop.run()
    loop.check()
    with loop.running():
        if is_task:
            loop.create_task(fail_later())
        else:
            loop.call_soon(fail)
    loop.run()
    if is_task:
        loop.check()
        clock.advance(round(GRACE_S * 1000))
    with pytest.raises(AssertionError, match="ValueError: a mistake"):
        loop.check()


def test_the_death_of_a_process_is_no_error() -> None:
    loop = Pair(buffer_bytes=10).loops[0]

    async def die() -> None:
        raise Died("here")

    with loop.running():
        loop.create_task(die())
    loop.run()
    loop.check()


# Shells ----------------------------------------------------------------------------------------------------------


class Brokers:
    """A name server, and brokers that the test starts."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.network = Network(self.clock, Weather(delay_ms_max=0, splits=0.0, buffer_bytes=1 << 20), seed=1)
        self.names = ClusterNames(folder / "names", self.clock, self.network)
        self.members: list[Member] = []
        self._folder = folder

    def add(self, **settings: Any) -> Member:
        number = len(self.members)
        folder = self._folder / f"store-{number}"
        member = Member(
            number,
            folder,
            clock=self.clock,
            network=self.network,
            stops=Stops(),
            is_held=False,
            seed=number,
            settings=settings,
        )
        self.members.append(member)
        return member

    def advance(self, ms: int) -> None:
        for _ in range(ms):
            self.network.deliver()
            self.names.work()
            while sum(self._work(member) for member in self.members):
                self.network.deliver()
                self.names.work()
            self.clock.advance(1)

    @staticmethod
    def _work(member: Member) -> bool:
        """Let a broker work, and start it again if it must change its role."""
        has_worked = member.work()
        life = member.next_life
        if life is not None:
            member.stop()
            life()
            member.start()
        return has_worked


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    found = Brokers(tmp_path)
    yield found
    for member in found.members:
        if member.is_running:
            member.kill()


def test_a_slave_whose_store_is_another_one_tries_again_without_hurry(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it connects 50 times per second, and its master logs each time that a replica is gone."""
    dialed: list[str] = []
    dial: Callable[..., Any] = Network.dial

    def note(network: Network, one: Any) -> None:
        dialed.append(one.address)
        dial(network, one)

    monkeypatch.setattr(Network, "dial", note)
    epochs: dict[Member, int] = {}
    for member in (brokers.add(), brokers.add()):
        member.harness.start()
        member.harness.send("T", b"its own message")
        epochs[member] = member.harness.broker.parts.replication.epoch
        member.harness.crash()
    slave, master = sorted(epochs, key=epochs.__getitem__)  # a slave does not connect to a master of an earlier epoch
    slave.harness.change(broker_role="SLAVE", broker_id=1)
    for member in (master, slave):
        member.start()
    brokers.advance(3000)
    count = dialed.count(f"{master.host}:{HA_PORT}")
    assert 2 <= count <= 7


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_former_masters_that_come_back_together_get_two_ids(
    brokers: Brokers, order: tuple[int, int], is_restarted: bool
) -> None:
    settings: dict[str, Any] = {"in_sync_replicas": 2}
    first = brokers.add(broker_role="SYNC_MASTER", **settings)
    others = [brokers.add(broker_role="SLAVE", broker_id=number, **settings) for number in (1, 2)]
    members = [first, *others]
    for member in members:
        member.start()
    brokers.advance(3000)
    for former, later in zip(members, others, strict=False):
        brokers.advance(3000)
        former.kill()
        ask(later, RequestCode.WMQ_PROMOTE, leastLogEnd=0)
        brokers.advance(1000)
    last = others[-1]
    for number in order:
        members[number].start()
        brokers.advance(4000)
        if is_restarted:
            members[number].kill()
            last.kill()
            last.start()
            brokers.advance(2000)
    for number in order:
        if not members[number].is_running:
            members[number].start()
    brokers.advance(4000)
    assert last.broker_id == 0 and len({member.broker_id for member in members}) == 3


class TestPowerCut:
    """A SYNC_MASTER with ASYNC_FLUSH has lost acknowledged messages in a power cut. Its slave has them."""

    @pytest.fixture(params=["log", "block"])
    def pair(self, brokers: Brokers, request: pytest.FixtureRequest) -> tuple[Member, Member]:
        """Return a master and its slave. Both have a message that is not on the disk of the master."""
        master = brokers.add(broker_role="SYNC_MASTER", flush_mode="ASYNC_FLUSH", flush_interval_ms=60_000)
        slave = brokers.add(broker_role="SLAVE", broker_id=1)
        for member in (master, slave):
            member.start()
        brokers.advance(3000)
        properties = {props.DELAY_IN_SECONDS: "600"} if request.param == "block" else {}
        self.send(brokers, master, b"first", properties=properties)
        self.send(brokers, master, b"second", properties=properties)
        assert units_of(master) == units_of(slave)
        return master, slave

    @staticmethod
    def send(brokers: Brokers, master: Member, body: bytes, **options: Any) -> None:
        sent = master.harness.submit(master.harness.send_command("T", body, **options))
        master.harness.tick()
        brokers.advance(300)
        assert sent.answer is not None and sent.answer.code == ResponseCode.SUCCESS

    @staticmethod
    def cut_power(member: Member) -> None:
        member.kill(dark=True)
        member.disk.cut_power(Random(1), keep=0.0)

    def test_the_master_waits_until_the_slave_is_promoted(
        self, brokers: Brokers, pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture
    ) -> None:
        master, slave = pair
        had = units_of(slave)
        self.cut_power(master)
        for is_clean in (True, False):
            master.start()
            brokers.advance(5000)
            assert not master.is_open and units_of(slave) == had
            assert f"wheelmq promote {slave.address} --force" in caplog.text
            (master.stop if is_clean else master.kill)()
        master.start()
        ask(slave, RequestCode.WMQ_PROMOTE, leastLogEnd=0)
        brokers.advance(5000)
        assert (master.is_master, master.broker_id, slave.is_master) == (False, 1, True)
        assert units_of(master) == units_of(slave) == had

    def test_the_master_waits_for_a_slave_that_does_not_answer(
        self, brokers: Brokers, pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture
    ) -> None:
        master, slave = pair
        master.parts.store.flush()
        master.parts.flush.want()
        master.harness.tick()
        brokers.advance(300)
        for member in (slave, master):
            self.cut_power(member)
        master.start()
        brokers.advance(5000)
        assert not master.is_open and "in_sync_replicas=1" in caplog.text
        slave.start()
        brokers.advance(5000)
        assert master.is_master and units_of(master) == units_of(slave)

    @pytest.mark.parametrize("settings", [{"in_sync_replicas": 1}, {"broker_role": "ASYNC_MASTER"}])
    def test_a_master_that_needs_no_replicas_does_not_wait(
        self, brokers: Brokers, pair: tuple[Member, Member], settings: dict[str, Any]
    ) -> None:
        master, slave = pair
        for member in (slave, master):
            self.cut_power(member)
        master.harness.change(**settings)
        master.start()
        brokers.advance(3000)
        assert master.is_master

    def test_a_killed_master_has_lost_nothing_and_does_not_wait(
        self, brokers: Brokers, pair: tuple[Member, Member]
    ) -> None:
        for member in reversed(pair):
            member.kill()
        pair[0].start()
        brokers.advance(3000)
        assert pair[0].is_master


def units_of(member: Member) -> tuple[int, dict[int, int]]:
    """Return the end of the log, and the number of messages in each block."""
    return member.parts.store.log.end, {block.number: block.queue.end for block in member.parts.blocks}
