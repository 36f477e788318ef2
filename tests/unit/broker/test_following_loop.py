"""The loop of a slave that follows its master, without sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.unit.broker.test_master_link import SLAVE, open_link
from wheelmq.broker.replication import following as following_module
from wheelmq.broker.replication.following import DAMAGED_S_MAX, RETRY_S, WAIT_S, Following
from wheelmq.broker.replication.master_link import MasterWrong
from wheelmq.broker.replication.replication import MasterAddress
from wheelmq.formats.units import LogPosition
from wheelmq.store.follower import MasterLogDamaged
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.replication import copy_log

MASTER = MasterAddress("h:1", "h:2")
OTHER = MasterAddress("h:3", "h:4")
STEPS_MAX = 50


class FakeStream:
    """A connection to a master that sends nothing."""

    def __init__(self) -> None:
        self.is_open = True
        self.failure = ""

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.is_open = False

    async def wait(self, timeout_s: float) -> bytes:
        raise AssertionError("a slave that is behind takes no more bytes")


class Slave:
    """A slave in its loop. Each sleep of the loop is noted, and ends at once."""

    def __init__(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = harness.broker
        self.stream = FakeStream()
        self.master = MASTER
        self.sleeps: list[float] = []
        self.events: dict[int, Any] = {}
        """Functions to call in the sleep with this number."""

        async def connect(*arguments: Any) -> FakeStream:
            return self.stream

        async def sleep(seconds: float) -> None:
            self.sleeps.append(seconds)
            assert len(self.sleeps) < STEPS_MAX, "the loop does not end"
            self.events.get(len(self.sleeps), lambda: None)()

        monkeypatch.setattr(following_module.ByteStream, "connect", connect)
        monkeypatch.setattr(following_module.asyncio, "sleep", sleep)
        ignore: Any = lambda *arguments: None  # noqa: E731
        self.following = Following(self.broker, lambda: self.master, ignore, ignore, ignore, ignore)

    def follow_while_stuck(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """Follow with more received bytes than fit, and with queues that cannot be written."""
        link = open_link(harness, has_epochs=True)
        monkeypatch.setattr("wheelmq.broker.replication.master_link.BEHIND_BYTES_MAX", -1)
        monkeypatch.setattr(self.broker.parts.replica_log, "has_more", lambda: False)
        asyncio.run(self.following._stream_log(link, "h:2", on_agreed=lambda epoch: None, of=MASTER))


@pytest.fixture
def harness(tmp_path: Path) -> Any:
    with BrokerHarness(tmp_path / "master") as master, BrokerHarness(tmp_path / "slave", **SLAVE) as slave:
        master.send("T")
        copy_log(master, slave, Random(1))
        yield slave


class TestSlaveThatIsBehind:
    def test_it_notices_the_end_of_the_connection(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slave = Slave(harness, monkeypatch)
        slave.events[3] = slave.stream.close
        with pytest.raises(MasterWrong, match="closed the connection"):
            slave.follow_while_stuck(harness, monkeypatch)
        assert slave.sleeps == [WAIT_S] * 3, "it waits for the disk, and does not spin"

    def test_it_notices_another_master(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        slave = Slave(harness, monkeypatch)
        monkeypatch.setattr(slave.following, "_has_other_master", lambda of: slave.master != of)
        slave.events[2] = lambda: setattr(slave, "master", OTHER)
        slave.follow_while_stuck(harness, monkeypatch)
        assert len(slave.sleeps) == 2

    def test_it_notices_a_failed_disk(self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        slave = Slave(harness, monkeypatch)
        slave.events[2] = lambda: setattr(slave.broker.parts.health, "failure", OSError("the disk"))
        with pytest.raises(MasterWrong):
            slave.follow_while_stuck(harness, monkeypatch)
        assert len(slave.sleeps) == 2
        slave.broker.parts.health.failure = None

    def test_a_long_time_without_room_is_no_silence_of_the_master(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slave = Slave(harness, monkeypatch)
        slave.events[2] = lambda: harness.clock.advance(60_000)
        slave.events[4] = slave.stream.close
        with pytest.raises(MasterWrong, match="closed the connection"):
            slave.follow_while_stuck(harness, monkeypatch)


def test_the_pause_grows_while_a_record_of_the_master_stays_damaged(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slave = Slave(harness, monkeypatch)
    positions = [100] * 9 + [200] * 2

    async def follow() -> None:
        raise MasterLogDamaged(LogPosition(positions[len(slave.sleeps)]), "0")

    monkeypatch.setattr(slave.following, "_follow", follow)
    slave.events[len(positions)] = lambda: setattr(slave.broker.parts.role, "is_master", True)
    asyncio.run(slave.following._run())
    doubled = [RETRY_S * 2**i for i in range(7)]
    assert slave.sleeps == [*doubled, DAMAGED_S_MAX, DAMAGED_S_MAX, RETRY_S, 2 * RETRY_S]
    assert len(caplog.records) == 1, "the clock of the test stands still"
    assert "log position 100 are no record. Stop the master and put a good copy" in caplog.text
    assert "It tries again in 0.5 s" in caplog.text
