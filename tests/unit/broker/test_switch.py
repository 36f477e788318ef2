"""`wheelmq promote`: a slave becomes the master, after a hand-over or without the former master."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from compat.apache.apache import free_port
from tests.unit.broker.broker_group import SLAVE, Group, Member, play, send
from tests.unit.client.conftest import until
from wheelmq.cli.switch import SwitchRejected, switch
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection


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
