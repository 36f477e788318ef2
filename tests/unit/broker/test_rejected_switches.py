"""Switches of the master that `wheelmq promote` rejects, because messages would be lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.broker.broker_group import SLAVE, Group, copied_pair, play, send
from tests.unit.client.conftest import until
from wheelmq.cli.switch import SwitchRejected, more_in_blocks, switch


def test_a_switch_without_an_answer_of_a_name_server_needs_force(tmp_path: Path) -> None:
    """The master may serve, and would lose what it acknowledges until it finds the promoted slave."""

    async def scene(group: Group) -> None:
        master, slave = await copied_pair(group, 1)
        with pytest.raises(SwitchRejected, match=r"127\.0\.0\.1:1 does not say.* --force"):
            await asyncio.to_thread(switch, slave.address, "127.0.0.1:1", force=False)
        assert master.is_master and not slave.is_master
        done = await asyncio.to_thread(switch, slave.address, f"127.0.0.1:1;{group.namesrv}", force=False)
        assert slave.is_master and done.fields["handed_over"]

    play(tmp_path, scene)


def test_a_switch_to_a_slave_that_has_less_than_another_one_is_rejected(tmp_path: Path) -> None:
    """The other one would remove what it has more, and the master may have acknowledged this."""

    async def scene(group: Group) -> None:
        master = await group.add()
        longer = await group.add(**SLAVE)
        shorter = await group.add(**{**SLAVE, "broker_id": 2})
        await send(group, 1)
        await until(lambda: longer.log_end == shorter.log_end == master.log_end)
        assert shorter.app.following is not None
        await shorter.app.following.stop()
        await send(group, 3)
        await until(lambda: longer.log_end == master.log_end)
        await master.stop()
        with pytest.raises(SwitchRejected, match=f"wheelmq promote {longer.address} --force"):
            await asyncio.to_thread(switch, shorter.address, group.namesrv, force=True)
        assert not shorter.is_master
        await longer.stop()
        done = await asyncio.to_thread(switch, shorter.address, group.namesrv, force=True)
        assert shorter.is_master and not done.fields["handed_over"]

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("own", "theirs", "more"),
    [
        ({}, {"7": 3}, 3),
        ({"7": 2}, {"7": 3, "8": 4}, 5),
        ({"7": 3}, {"7": 2}, 0),
        pytest.param({"7": 3}, {"6": 9, "7": 3}, 0, id="a removed block"),
    ],
)
def test_a_slave_that_lacks_messages_in_blocks_has_less(own: dict[str, int], theirs: dict[str, int], more: int) -> None:
    assert more_in_blocks(own, theirs) == more


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


def test_a_slave_is_not_promoted_once_its_master_may_have_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers answered, but too late."""
    monkeypatch.setattr("wheelmq.cli.switch.CATCH_UP_S", -1.0)
    monkeypatch.setattr("wheelmq.broker.replication.replication.HAND_OVER_MS", 0)

    async def scene(group: Group) -> None:
        master, slave = await copied_pair(group, 1)
        with pytest.raises(SwitchRejected, match="did not catch up"):
            await asyncio.to_thread(switch, slave.address, group.namesrv, force=False)
        assert not slave.is_master
        await until(lambda: master.is_master)

    play(tmp_path, scene)
