"""`wheelmq promote`: a slave becomes the master, after a hand-over or without the former master."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from compat.apache.apache import free_port
from tests.unit.broker.broker_group import SLAVE, Group, Member, copied_pair, play, send
from tests.unit.client.conftest import until
from wheelmq.cli.switch import switch
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


def ask(member: Member, code: RequestCode, **ext: str) -> None:
    with closing(SyncConnection(member.address)) as connection:
        connection.ask(Command(code=code, ext=ext))


def test_a_master_finds_a_successor_whose_address_it_cannot_reach(tmp_path: Path) -> None:
    """The address is the one that the operator can reach. The name server knows another one."""

    async def scene(group: Group) -> None:
        master, slave = await copied_pair(group, 3)
        await asyncio.to_thread(ask, master, RequestCode.WMQ_HAND_OVER, successor=f"127.0.0.1:{free_port()}")
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
