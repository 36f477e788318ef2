"""A slave follows its master over real sockets: log, tables, and the return of a former master."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from compat.apache.apache import free_port
from tests.unit.broker.broker_group import SLAVE, Group, Member, copied_pair, ha_port, play, send
from tests.unit.client.conftest import SMALL, until
from wheelmq.broker.settings import BrokerSettings
from wheelmq.cli.switch import switch
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.nameserver.app import NameServerApp
from wheelmq.nameserver.settings import NameServerSettings
from wheelmq.net.errors import Refused
from wheelmq.net.sync_connection import SyncConnection


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


def test_a_slave_follows_again_after_a_failed_promotion(tmp_path: Path) -> None:
    """Its copy of the blocks ended with the promotion."""

    async def scene(group: Group) -> None:
        _, slave = await copied_pair(group, 1)
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
        master, slave = await copied_pair(group, 10)
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
        await until(lambda: later.epochs == former.epochs)
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
