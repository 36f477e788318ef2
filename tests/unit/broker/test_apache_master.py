"""The requests of a slave to a master of Apache RocketMQ, answered by a broker of ours, which serves the same codes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.unit.broker.broker_group import SLAVE, Group, Member, play, send
from tests.unit.client.conftest import SMALL, until
from wheelmq.broker.replication.apache_log import begin_apache_log
from wheelmq.broker.replication.apache_master import LogRange, check_log_files, check_range, checkpoint_of, log_range
from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.replication.master_link import MasterWrong
from wheelmq.broker.replication.table_sync import TableSync
from wheelmq.broker.settings import BrokerSettings
from wheelmq.delay.levels.offsets import DelayOffsetsBody
from wheelmq.delay.timer.mark import TimerCheck
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.disk.timer import TIMER_CHECK
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import bodies
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.disk import Disk


def test_a_checkpoint_has_the_progress_of_timer_and_levels(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        await send(group, 2, delay_ms=3_600_000)
        await send(group, 1, delay_level=18)
        requests = RpcClient(master.address)
        try:
            checkpoint = await checkpoint_of(requests)
            checkpoint.check()
            assert checkpoint.log_start == 0 and checkpoint.log_end == master.log_end
            assert await log_range(requests) == LogRange(LogPosition(0), LogPosition(master.log_end))
            assert TimerCheck(*TIMER_CHECK.unpack(checkpoint.timer_check).values()).last_read_ms > 0
            assert bodies.read(checkpoint.delay_offsets, DelayOffsetsBody).offset_table[18] == 0
        finally:
            await requests.close()

    play(tmp_path, scene)


def test_a_master_with_other_log_files_is_rejected(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        requests = RpcClient(master.address)
        try:
            await check_log_files(requests, SMALL["log_file_bytes"])
            with pytest.raises(MasterWrong, match="Set log_file_bytes=1048576, and start this slave with an empty"):
                await check_log_files(requests, 1 << 30)
        finally:
            await requests.close()

    play(tmp_path, scene)


def test_a_log_that_the_master_does_not_continue_is_rejected(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        broker = await group.add()
        assert broker.app.broker is not None
        log = broker.app.broker.parts.store.log
        check_range(LogRange(LogPosition(1 << 20), LogPosition(1 << 21)), log)  # an empty log can begin anywhere
        await send(group, 3)
        check_range(LogRange(LogPosition(0), log.end), log)
        with pytest.raises(MasterWrong, match="the master has lost messages"):
            check_range(LogRange(LogPosition(0), LogPosition(log.end - 1)), log)
        with pytest.raises(MasterWrong, match="has deleted the files between them"):
            check_range(LogRange(LogPosition(log.end + 1), LogPosition(1 << 21)), log)

    play(tmp_path, scene)


def test_a_slave_has_the_tables_of_its_apache_master(tmp_path: Path) -> None:
    async def scene(group: Group) -> None:
        master = await group.add()
        await send(group, 1)
        paths = StorePaths(tmp_path / "slave")
        paths.config.mkdir(parents=True)
        begin_apache_log(Disk(), paths, Random(0), master.address)
        slave = Member(BrokerSettings.of(store_path=paths.root, listen_port=0, **SMALL, **SLAVE))
        group.members.append(slave)
        await slave.start()
        assert slave.app.broker is not None
        parts = slave.app.broker.parts
        requests = RpcClient(master.address)
        try:
            await TableSync(parts, requests, is_apache=True).run_once()
        finally:
            await requests.close()
        assert "T" in parts.topics and not parts.engine.knows_pending
        assert parts.file_upkeep.apache_checkpoints.log_start == 0

    play(tmp_path, scene)


def test_a_slave_of_apache_with_a_log_does_not_follow_a_wheelmq_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's log has no epochs, so the two logs may differ anywhere. An empty store can change its master."""

    async def scene(group: Group) -> None:
        slave = await group.add()
        await send(group, 2)
        await slave.stop()
        paths = StorePaths(slave.settings.store.path)
        [before] = Epochs(Disk(), paths).all
        begin_apache_log(Disk(), paths, Random(0), "10.0.0.1:10911")
        [own] = Epochs(Disk(), paths).all
        assert own.number > before.number, "no other log has this epoch"
        master = await group.add()
        slave.settings = BrokerSettings.of(
            store_path=paths.root, listen_port=0, namesrv=(group.namesrv,), **SMALL, **SLAVE
        )
        await slave.start()
        await until(lambda: "Start this slave with an empty store" in caplog.text)
        await slave.stop()
        empty = StorePaths(tmp_path / "empty")
        empty.config.mkdir(parents=True)
        begin_apache_log(Disk(), empty, Random(0), "10.0.0.1:10911")
        other = Member(
            BrokerSettings.of(store_path=empty.root, listen_port=0, namesrv=(group.namesrv,), **SMALL, **SLAVE)
        )
        group.members.append(other)
        await other.start()
        await send(group, 3)
        await until(lambda: other.lives == 2 and other.stored("T") == 3)
        assert other.log_end == master.log_end

    play(tmp_path, scene)
