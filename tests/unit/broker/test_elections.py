"""Brokers whose master a controller elects, over real sockets, with a model of Apache's controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.broker_group import Group, Member, running
from tests.unit.broker.controller_model import ControllerModel
from tests.unit.client.conftest import until
from wheelmq.client import Producer, ProducerSettings
from wheelmq.client.results import SendStatus
from wheelmq.formats.wire.codes import RequestCode as Code
from wheelmq.net.errors import CallError, Refused

NAME = "broker-a"
PATIENT = ProducerSettings(timeout_ms=15_000)


class Elected:
    """A group whose brokers have a controller."""

    def __init__(self, group: Group, controller: ControllerModel) -> None:
        self.group = group
        self.controller = controller

    async def add(self, **settings: Any) -> Member:
        chosen = {"controller_heartbeat_ms": 50, "slave_timeout_ms": 10_000, "controller_poll_ms": 200, **settings}
        return await self.group.add(controller_mode=True, controller_addresses=(self.controller.address,), **chosen)

    async def send(self, count: int, body: bytes = b"%d", **options: Any) -> int:
        """Send messages. Returns the number of acknowledged ones."""
        acknowledged = 0
        async with Producer(self.group.namesrv, settings=PATIENT) as producer:
            for i in range(count):
                try:
                    sent = await producer.send("T", body % i, **options)
                    acknowledged += sent.status is SendStatus.OK
                except (CallError, Refused):
                    pass
        return acknowledged

    @property
    def members(self) -> list[int]:
        return sorted(self.controller.sets[NAME].members)

    async def pair(self, **settings: Any) -> tuple[Member, Member]:
        """Start a master and a slave in sync."""
        master = await self.add(**settings)
        await until(lambda: master.is_master)
        slave = await self.add(**settings)
        await until(lambda: self.members == [1, 2])
        assert not slave.is_master
        return master, slave


def play(folder: Path, scene: Callable[[Elected], Awaitable[None]]) -> None:
    async def run() -> None:
        controller = ControllerModel()
        await controller.start()
        try:
            async with running(folder) as group:
                await scene(Elected(group, controller))
        finally:
            await controller.stop()

    asyncio.run(run())


def asked(elected: Elected, code: Code) -> list[tuple[dict[str, str], bytes]]:
    return [(ext, body) for one, ext, body in elected.controller.requests if one == code]


def test_the_first_broker_is_elected_and_the_second_one_follows(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master, slave = await elected.pair()
        assert await elected.send(20) == 20
        await until(lambda: slave.stored("T") == 20)
        assert master.app.broker is not None and slave.app.broker is not None
        assert slave.app.broker.parts.epochs.all == master.app.broker.parts.epochs.all == ((1, 0),)
        assert slave.app.broker.parts.role.broker_id == 2
        assert (slave.app.broker.parts.paths.root / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"

    play(tmp_path, scene)


def test_the_requests_have_apaches_fields(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master, slave = await elected.pair(election_priority=7, controller_heartbeat_timeout_ms=4000)
        names = {"clusterName": "DefaultCluster", "brokerName": NAME}
        assert asked(elected, Code.CONTROLLER_GET_NEXT_BROKER_ID) == [(names, b"")] * 2
        ((applied, _), _) = asked(elected, Code.CONTROLLER_APPLY_BROKER_ID)
        assert applied.pop("registerCheckCode").startswith(f"{master.address};")
        assert applied == {**names, "appliedBrokerId": "1"}
        ((registered, _), _) = asked(elected, Code.CONTROLLER_REGISTER_BROKER)
        assert int(registered.pop("invokeTime")) > 0
        assert registered == {**names, "brokerId": "1", "brokerAddress": master.address}
        ((election, _),) = asked(elected, Code.CONTROLLER_ELECT_MASTER)
        assert int(election.pop("invokeTime")) > 0
        assert election == {**names, "brokerId": "1", "designateElect": "false"}
        ((change, body),) = asked(elected, Code.CONTROLLER_ALTER_SYNC_STATE_SET)
        assert int(change.pop("invokeTime")) > 0
        assert change == {"brokerName": NAME, "masterBrokerId": "1", "masterEpoch": "1"}
        assert body == b'{"syncStateSet":[1,2],"syncStateSetEpoch":1}'
        await until(lambda: elected.controller.alive[2][1]["epoch"] == "1")
        assert elected.controller.alive[2][1] == {
            **names,
            "brokerAddr": slave.address,
            "brokerId": "2",
            "epoch": "1",
            "maxOffset": "0",
            "confirmOffset": "0",
            "heartbeatTimeoutMills": "4000",
            "electionPriority": "7",
        }

    play(tmp_path, scene)


@pytest.mark.parametrize("notifies", [True, False])
def test_a_lost_master_is_replaced_and_comes_back_as_a_slave(tmp_path: Path, notifies: bool) -> None:
    """With authentication, notices of the controller are rejected. The slave asks when its master is lost."""

    async def scene(elected: Elected) -> None:
        elected.controller.notifies = notifies
        master, slave = await elected.pair(controller_poll_ms=60_000)
        assert await elected.send(10) == 10
        await master.stop()
        await until(lambda: slave.is_master)
        assert await elected.send(5) == 5
        await master.start()
        await until(lambda: master.app.broker is not None and master.stored("T") == 15)
        await until(lambda: elected.members == [1, 2])
        assert not master.is_master and master.log_end == slave.log_end

    play(tmp_path, scene)


def test_an_administrator_elects_the_slave(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master, slave = await elected.pair()
        assert await elected.send(10) == 10
        elected.controller.elect(NAME, 2)
        await until(lambda: slave.is_master and not master.is_master and master.lives == 2)
        await until(lambda: elected.members == [1, 2])
        assert await elected.send(3) == 3
        await until(lambda: slave.stored("T") == 13 and master.log_end == slave.log_end)

    play(tmp_path, scene)


def test_a_master_alone_in_sync_gets_its_role_back_with_another_epoch(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master = await elected.add()
        assert await elected.send(3) == 3
        await master.stop()
        await master.start()
        await until(lambda: master.app.broker is not None and master.is_master)
        assert elected.controller.sets[NAME].epoch == 2
        assert await elected.send(2) == 2 and master.stored("T") == 5

    play(tmp_path, scene)


def test_a_broker_whose_loss_the_controller_did_not_notice_gets_another_epoch(tmp_path: Path) -> None:
    """It closes its connections, so that the controller notices."""

    async def scene(elected: Elected) -> None:
        master = await elected.add()
        assert await elected.send(3) == 3
        elected.controller.is_leader = False  # a loss then causes no election
        await master.stop()
        elected.controller.is_leader = True
        assert elected.controller.sets[NAME].master == 1
        await master.start()
        await until(lambda: master.app.broker is not None and master.is_master)
        assert elected.controller.sets[NAME].epoch == 2

    play(tmp_path, scene)


def test_a_slave_that_leaves_is_removed_at_once_and_a_cut_off_master_acknowledges_nothing(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master, slave = await elected.pair(slave_timeout_ms=1000)
        await slave.stop()
        await until(lambda: elected.members == [1])
        assert await elected.send(3) == 3
        await slave.start()
        await until(lambda: elected.members == [1, 2])
        await elected.controller.stop()
        await slave.stop()
        assert await elected.send(1) == 0
        assert master.is_master

    play(tmp_path, scene)


def test_an_answer_that_is_lost_may_have_changed_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wheelmq.broker.replication.controller.controllers.TIMEOUT_S", 0.3)

    async def scene(elected: Elected) -> None:
        elected.controller.mute = {Code.CONTROLLER_ALTER_SYNC_STATE_SET}
        master = await elected.add(slave_timeout_ms=1000)
        slave = await elected.add(slave_timeout_ms=1000)
        await until(lambda: elected.members == [1, 2])
        await slave.stop()
        elected.controller.alive.pop(2, None)
        elected.controller.mute = {Code.CONTROLLER_ALTER_SYNC_STATE_SET, Code.CONTROLLER_GET_REPLICA_INFO}
        assert await elected.send(1) == 0, "the lost slave may be in sync"
        elected.controller.mute = set()
        await until(lambda: elected.members == [1])
        assert await elected.send(3) == 3 and master.is_master

    play(tmp_path, scene)


def test_messages_in_blocks_wait_for_the_replicas_in_sync(tmp_path: Path) -> None:
    async def scene(elected: Elected) -> None:
        master = await elected.add()
        assert await elected.send(1) == 1
        assert await elected.send(5, delay_in_seconds=900) == 5
        slave = await elected.add()
        await until(lambda: elected.members == [1, 2])
        assert slave.in_blocks == 5, "it has all blocks before it is in sync"
        assert await elected.send(3, delay_in_seconds=900) == 3 and slave.in_blocks == 8
        await master.stop()
        await until(lambda: slave.is_master)
        assert slave.in_blocks == 8 and await elected.send(1, delay_in_seconds=900) == 1

    play(tmp_path, scene)


def test_a_store_without_its_identity_gets_another_id(tmp_path: Path) -> None:
    """A broker that lost its disk must not count as the replica that it was."""

    async def scene(elected: Elected) -> None:
        master, slave = await elected.pair()
        await slave.stop()
        assert slave.app.broker is not None
        (slave.app.broker.parts.paths.root / "brokerIdentity").unlink()
        await slave.start()
        await until(lambda: elected.members == [1, 3])
        assert master.is_master

    play(tmp_path, scene)
