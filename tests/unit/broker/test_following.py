"""A slave follows its master over real sockets: log, tables, promotions, and the return of a former master."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compat.apache.apache import free_port
from tests.unit.client.conftest import SMALL, registered, until
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.lives import live
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli.switch import SwitchRejected, switch
from wheelmq.client import Producer, ProducerSettings, TlsOptions
from wheelmq.config.tls import TlsSettings
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection

SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}


class Member:
    """One broker of the name, which starts again by itself when its role changes."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.lives = 0
        self._app: BrokerApp | None = None
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[BaseException | None] | None = None

    @property
    def app(self) -> BrokerApp:
        assert self._app is not None
        return self._app

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.settings.broker.listen_port}"

    @property
    def is_master(self) -> bool:
        return self.app.broker is not None and self.app.broker.parts.role.is_master

    @property
    def log_end(self) -> int:
        assert self.app.broker is not None
        return self.app.broker.parts.store.log.end

    def stored(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic."""
        assert self.app.broker is not None
        queues = self.app.broker.parts.store.queues.items()
        return sum(int(queue.end - queue.start) for (name, _), queue in queues if name == topic)

    @property
    def in_blocks(self) -> int:
        """The number of pending messages in blocks."""
        return 0 if self.app.broker is None else self.app.broker.parts.block_parts.in_blocks.total

    async def start(self) -> None:
        self._stop.clear()
        self._started.clear()

        def make() -> BrokerApp:
            self._app = BrokerApp(self.settings, owns_process=False)
            self.settings = self._app.settings
            return self._app

        def on_start(app: BrokerApp) -> None:
            self.lives += 1
            self._started.set()

        self._task = asyncio.create_task(live(make, self._stop, on_start))
        await asyncio.wait((self._task, asyncio.create_task(self._started.wait())), return_when="FIRST_COMPLETED")
        if self._task.done():
            raise AssertionError("the broker ended") from self._task.exception()

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task
            self._task = None


class Group:
    """A name server, and the brokers of one name."""

    def __init__(self, folder: Path, namesrv: NameServerApp, tls: TlsOptions | None) -> None:
        self.app = namesrv
        self.namesrv = f"127.0.0.1:{namesrv.port}"
        self.tls = tls
        """The TLS of clients."""
        self._folder = folder
        self.members: list[Member] = []

    async def add(self, **settings: Any) -> Member:
        chosen = {**SMALL, "namesrv": (self.namesrv,), "listen_port": 0, **settings}
        store = self._folder / f"store-{len(self.members)}"
        member = Member(BrokerSettings.of(store_path=store, **chosen))
        self.members.append(member)
        await member.start()
        await registered(member.app)
        return member


@asynccontextmanager
async def running(folder: Path, tls: TlsSettings | None = None) -> AsyncIterator[Group]:
    namesrv = NameServerApp(NameServerSettings(kv_config_path=folder / "kvConfig.json", listen_port=0), tls=tls)
    await namesrv.start()
    group = Group(folder, namesrv, None if tls is None else tls.outgoing_options())
    try:
        yield group
    finally:
        for member in group.members:
            await member.stop()
        await group.app.stop()


def ha_port(member: Member) -> int:
    assert member.app.broker is not None
    return member.app.broker.parts.replication.ha_port


def play(folder: Path, scene: Callable[[Group], Awaitable[None]], tls: TlsSettings | None = None) -> None:
    """Run a scene. With `tls` the name server has these settings."""

    async def run() -> None:
        async with running(folder, tls) as group:
            await scene(group)

    asyncio.run(run())


async def send(group: Group, count: int, **options: Any) -> None:
    """Send messages. Three brokers share the loop of the test, so an answer may take seconds on a busy machine."""
    async with Producer(group.namesrv, ProducerSettings(timeout_ms=20_000), tls=group.tls) as producer:
        for i in range(count):
            await producer.send("T", b"%d" % i, **options)


def test_a_slave_gets_log_and_tables(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        await send(group, 20)
        slave = await group.add(**SLAVE)
        await until(lambda: slave.stored("T") == 20)
        await send(group, 5, delay_ms=60_000)
        await until(lambda: slave.log_end == master.log_end and slave.stored("rmq_sys_wheel_timer") == 5)
        assert slave.app.broker is not None and master.app.broker is not None
        mine, theirs = slave.app.broker.parts, master.app.broker.parts
        theirs.consumer_offsets.commit("g", "T", 0, 3)
        await until(lambda: mine.consumer_offsets.get("g", "T", 0) == 3)
        assert mine.topics.get("T") == theirs.topics.get("T") and mine.topics.version == theirs.topics.version
        assert mine.epochs.all == theirs.epochs.all

    play(tmp_path, scene)


@pytest.mark.parametrize("planned", [True, False])
def test_a_promoted_slave_takes_over_and_the_former_master_follows_it(tmp_path: Path, planned: bool) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 10)
        await send(group, 5, delay_ms=1500)
        await until(lambda: slave.log_end == master.log_end)
        if not planned:
            await master.stop()
        done = await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert slave.is_master and done.fields["handed_over"] == planned
        await until(lambda: slave.stored("T") == 15)
        await send(group, 3)
        if not planned:
            await master.start()
        await until(lambda: not master.is_master and master.stored("T") == slave.stored("T") == 18)
        assert master.app.broker is not None and master.app.broker.parts.role.broker_id == 1
        assert slave.app.broker is not None and master.log_end == slave.log_end

    play(tmp_path, scene)


def test_a_slave_follows_again_after_a_failed_promotion(tmp_path: Path) -> None:
    """Its copy of the blocks ended with the promotion."""

    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 1)
        await until(lambda: slave.log_end == master.log_end)
        assert slave.app.broker is not None
        obstacle = slave.app.broker.parts.store.paths.epochs.with_suffix(".tmp")
        obstacle.mkdir()
        with closing(SyncConnection(slave.address)) as connection, pytest.raises(Refused):
            promote = Command(code=RequestCode.WMQ_PROMOTE, ext={"leastLogEnd": "0"})
            await asyncio.to_thread(connection.ask, promote)
        obstacle.rmdir()
        await send(group, 3, delay_in_seconds=900)
        await until(lambda: slave.in_blocks == 3)
        assert not slave.is_master

    play(tmp_path, scene)


def test_a_former_master_removes_the_records_that_no_replica_got(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 10)
        await until(lambda: slave.log_end == master.log_end)
        assert slave.app.following is not None
        await slave.app.following.stop()  # the network between them is cut
        await send(group, 4)
        await master.stop()
        await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        await send(group, 2)
        await master.start()
        await until(lambda: master.lives >= 3 and master.stored("T") == 12 and master.log_end == slave.log_end)
        assert not master.is_master

    play(tmp_path, scene)


@pytest.mark.parametrize("planned", [True, False])
def test_messages_in_blocks_survive_a_failover_and_follow_the_former_master_back(tmp_path: Path, planned: bool) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        await send(group, 1)
        await send(group, 3, delay_in_seconds=900)
        slave = await group.add(**SLAVE)
        await until(lambda: slave.log_end == master.log_end and slave.in_blocks == 3)
        await send(group, 4, delay_in_seconds=2)
        if not planned:
            await until(lambda: slave.in_blocks == 7)
            await master.stop()
        await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert slave.in_blocks == 7
        await send(group, 2, delay_in_seconds=900)
        await until(lambda: slave.stored("T") == 5)
        if not planned:
            await master.start()
        await until(lambda: not master.is_master and master.stored("T") == 5 and master.in_blocks == 5)
        assert slave.in_blocks == 5

    play(tmp_path, scene)


def test_a_former_master_removes_messages_in_blocks_that_no_replica_got(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 1)
        await send(group, 2, delay_in_seconds=900)
        await until(lambda: slave.log_end == master.log_end and slave.in_blocks == 2)
        assert slave.app.following is not None
        await slave.app.following.stop()  # the network between them is cut
        await send(group, 3, delay_in_seconds=900)
        await send(group, 1, delay_in_seconds=90_000)
        await master.stop()
        await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        await send(group, 1, delay_in_seconds=900)
        await master.start()
        await until(lambda: master.lives >= 3 and not master.is_master and master.in_blocks == 3)
        await send(group, 1, delay_in_seconds=90_000)
        await until(lambda: master.in_blocks == slave.in_blocks == 4)

    play(tmp_path, scene)


def test_a_switch_to_a_slave_that_lacks_messages_in_blocks_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheelmq.cli.switch.CATCH_UP_S", 0.3)
    monkeypatch.setattr("wheelmq.broker.replication.block_sync.BlockSync.run", lambda self: asyncio.sleep(3600))

    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 1)
        await send(group, 1, delay_in_seconds=900)
        await until(lambda: slave.log_end == master.log_end)
        with pytest.raises(SwitchRejected, match="does not copy the blocks"):
            await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert not slave.is_master

    play(tmp_path, scene)


def test_a_switch_to_a_slave_that_lags_for_ever_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheelmq.cli.switch.CATCH_UP_S", 0.3)
    monkeypatch.setattr("wheelmq.broker.replication.replication.HAND_OVER_MS", 500)

    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        other = await group.add(**{**SLAVE, "broker_id": 2})
        await send(group, 1)
        await until(lambda: slave.log_end == other.log_end == master.log_end)
        assert slave.app.following is not None
        await slave.app.following.stop()
        await send(group, 4)
        with pytest.raises(SwitchRejected, match="did not catch up"):
            await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert not slave.is_master
        await until(lambda: master.is_master)
        await send(group, 1)

    play(tmp_path, scene)


def ask(member: Member, code: RequestCode, **ext: str) -> None:
    with closing(SyncConnection(member.address)) as connection:
        connection.ask(Command(code=code, ext=ext))


def test_a_switch_without_a_name_server_needs_force(tmp_path: Path) -> None:
    """The master may serve clients, and would be a second one."""

    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await until(lambda: slave.log_end == master.log_end)
        with pytest.raises(SwitchRejected, match="no name server answers"):
            await asyncio.to_thread(switch, slave.address, f"127.0.0.1:{free_port()}", force=False)
        assert master.is_master and not slave.is_master

    play(tmp_path, scene)


def test_a_switch_names_the_slave_that_has_more(tmp_path: Path) -> None:
    """With SYNC_MASTER and two of three brokers in sync, only this slave has all acknowledged messages."""

    async def scene(group: Group) -> None:
        master = await group.add()
        ahead = await group.add(**SLAVE)
        behind = await group.add(broker_id=2, broker_role="SLAVE")
        await send(group, 5)
        await until(lambda: ahead.log_end == behind.log_end == master.log_end)
        assert behind.app.following is not None
        await behind.app.following.stop()  # the network between them is cut
        await send(group, 5)
        await until(lambda: ahead.log_end == master.log_end)
        await master.stop()
        with pytest.raises(SwitchRejected, match=f"Promote {ahead.address}"):
            await asyncio.to_thread(switch, behind.address, group.namesrv, force=True)
        await asyncio.to_thread(switch, ahead.address, group.namesrv, force=True)
        assert ahead.is_master and ahead.stored("T") == 10 and not behind.is_master

    play(tmp_path, scene)


def test_a_master_finds_a_successor_whose_address_it_cannot_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address is the one that the operator can reach. The name server knows another one."""

    async def scene(group: Group) -> None:
        master = await group.add()
        slave = await group.add(**SLAVE)
        await send(group, 3)
        await until(lambda: slave.log_end == master.log_end)
        await asyncio.to_thread(ask, master, RequestCode.WMQ_HAND_OVER, successor=f"127.0.0.1:{free_port()}")
        await until(lambda: "which does not answer" in caplog.text)
        assert not master.is_master and not slave.is_master
        await asyncio.to_thread(ask, slave, RequestCode.WMQ_PROMOTE, leastLogEnd="0")
        await until(lambda: master.lives == 2 and master.log_end == slave.log_end)
        assert slave.is_master and not master.is_master

    play(tmp_path, scene)


def test_a_slave_follows_no_earlier_master_that_a_name_server_still_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The former master and one name server were cut off. The slave keeps the records of the later master."""

    async def scene(group: Group) -> None:
        cut_off = NameServerApp(NameServerSettings(kv_config_path=tmp_path / "cut-off.json", listen_port=0))
        await cut_off.start()
        old = f"127.0.0.1:{cut_off.port}"
        former = await group.add(namesrv=(old,), listen_port=free_port(beside=(-2, 1)))
        later = await group.add(**SLAVE, namesrv=(group.namesrv,), ha_master_address=f"127.0.0.1:{ha_port(former)}")
        await until(lambda: former.log_end == later.log_end)
        await asyncio.to_thread(switch, later.address, group.namesrv, force=True)
        slave = await group.add(broker_id=2, broker_role="SLAVE")
        await send(group, 5)
        await until(lambda: slave.stored("T") == 5)

        async def restart(*namesrv: str) -> None:
            await slave.stop()
            node = msgspec.structs.replace(slave.settings.broker, namesrv=namesrv)
            slave.settings = msgspec.structs.replace(slave.settings, broker=node)
            await slave.start()

        await restart(old)
        await until(lambda: "has records of the later epoch" in caplog.text)
        assert slave.stored("T") == 5
        await restart(old, group.namesrv)
        await send(group, 3)
        await until(lambda: slave.stored("T") == later.stored("T") == 8)
        assert former.is_master and former.stored("T") == 0
        await former.stop()
        await slave.stop()
        await cut_off.stop()

    play(tmp_path, scene)


def test_a_slave_without_a_name_server_follows_a_given_master(tmp_path: Path) -> None:
    """The port for requests is the one before the HA port, so the slave also copies tables and blocks."""

    async def scene(group: Group) -> None:
        master = await group.add(listen_port=free_port(beside=(-2, 1)))
        await send(group, 3)
        await send(group, 1, delay_in_seconds=3600)
        ha = f"127.0.0.1:{ha_port(master)}"
        slave = Member(
            BrokerSettings.of(store_path=tmp_path / "alone", listen_port=0, ha_master_address=ha, **SMALL, **SLAVE)
        )
        group.members.append(slave)
        await slave.start()
        await until(lambda: slave.stored("T") == 3 and slave.in_blocks == 1)
        assert slave.app.broker is not None
        await until(lambda: slave.app.broker is not None and "T" in slave.app.broker.parts.topics)

    play(tmp_path, scene)


def test_a_slave_rejects_a_given_master_whose_port_for_requests_is_not_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The HA port does not show whether a master is one of Apache RocketMQ, so the slave must not guess."""

    async def scene(group: Group) -> None:
        master = await group.add()
        ha = f"127.0.0.1:{ha_port(master)}"
        settings = BrokerSettings.of(
            store_path=tmp_path / "alone", listen_port=0, ha_master_address=ha, **SMALL, **SLAVE
        )
        slave = Member(settings)
        group.members.append(slave)
        await slave.start()
        await until(lambda: "ha_master_address" in caplog.text and "give this slave a name server" in caplog.text)
        assert slave.log_end == 0

    play(tmp_path, scene)


def test_a_taken_ha_port_is_logged_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(group: Group) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            master = await group.add(ha_listen_port=port)
            assert master.app.broker is not None and master.app.broker.parts.replication.ha_port == 0
            assert f"HA port {port}" in caplog.text and "ha_listen_port" in caplog.text

    play(tmp_path, scene)


@pytest.mark.parametrize("mode", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_a_promoted_slave_has_the_mode_of_its_former_master(tmp_path: Path, mode: str) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(broker_role=mode)
        slave = await group.add(**SLAVE)
        await until(lambda: slave.log_end == master.log_end and slave.app.broker is not None)
        await send(group, 3)
        await until(lambda: slave.log_end == master.log_end)
        await master.stop()
        await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        for _ in range(2):
            assert slave.app.broker is not None
            assert slave.app.broker.parts.role.is_sync == (mode == "SYNC_MASTER")
            await slave.stop()
            await slave.start()

    play(tmp_path, scene)


def test_a_sync_master_serves_once_a_name_server_knows_no_later_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log may end with records that no replica got. A later master does not have them."""

    async def scene(group: Group) -> None:
        master = await group.add(broker_role="SYNC_MASTER")
        port = group.app.port
        await group.app.stop()
        await master.stop()
        starting = asyncio.create_task(master.start())
        await until(lambda: "the broker does not serve yet" in caplog.text)
        assert not starting.done()
        settings = NameServerSettings(kv_config_path=tmp_path / "kvConfig.json", listen_port=port)
        group.app = NameServerApp(settings)
        await group.app.start()
        await starting
        assert master.is_master

    play(tmp_path, scene)


def test_a_sync_master_that_waits_for_a_name_server_can_be_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(group: Group) -> None:
        master = await group.add(broker_role="SYNC_MASTER")
        await group.app.stop()
        await master.stop()
        starting = asyncio.create_task(master.start())
        await until(lambda: "the broker does not serve yet" in caplog.text)
        await master.stop()
        starting.cancel()
        assert master.lives == 1

    play(tmp_path, scene)
