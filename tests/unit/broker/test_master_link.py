"""The connection of a replica to its master: both sides without sockets, and bytes that come in any pieces."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.property.test_replicas import state_of
from wheelmq.broker.replication.master_link import MasterLink, MasterWrong, MustTruncate
from wheelmq.formats.disk.epochs import Epoch
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.replication import DATA, EPOCH, EPOCHS, STATE_HANDSHAKE
from wheelmq.store.follower import MasterLogDamaged
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness

SMALL_FILES: dict[str, Any] = {"log_file_bytes": 8192}
SLAVE: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE"}
PROTOCOLS = pytest.mark.parametrize("has_epochs", [True, False], ids=["with epochs", "classic"])


def open_link(replica: BrokerHarness, *, has_epochs: bool) -> MasterLink:
    parts = replica.broker.parts
    return MasterLink(
        parts.store.log,
        parts.replica_log,
        parts.epochs,
        parts.settings.replication,
        replica.clock.monotonic_ms(),
        replica_id=1 if has_epochs else None,
    )


class Wire:
    """A connection between two harnesses. The bytes of the master wait in it until `pump` passes them on."""

    def __init__(self, master: BrokerHarness, replica: BrokerHarness, *, has_epochs: bool) -> None:
        self._master, self._replica = master, replica
        self._coming = bytearray()
        self.is_full = False
        self.is_open = True
        self._link = open_link(replica, has_epochs=has_epochs)
        self._peer = master.broker.open_replica(self, "10.0.0.9:5000")
        self._to_master(self._link.greeting())

    def write(self, data: bytes | memoryview) -> None:
        self._coming += data

    def close(self) -> None:
        self.is_open = False

    def pump(self, count: int) -> None:
        """Pass at most `count` bytes on to the replica, and its reports back."""
        data = bytes(self._coming[:count])
        del self._coming[:count]
        self._to_master(self._replica.broker.follow(self._link, data))
        self._replica.settle()
        self._to_master(self._replica.broker.follow(self._link, b""))

    def lose(self) -> None:
        assert self._peer is not None
        self._master.broker.lose_replica(self._peer)

    def _to_master(self, data: bytes) -> None:
        if data and self.is_open:
            assert self._peer is not None
            self._master.broker.receive_of_replica(self._peer, data)
            self._master.end_round()


@PROTOCOLS
@pytest.mark.parametrize("seed", range(12))
def test_a_log_is_followed_over_connections_that_break_anywhere(tmp_path: Path, seed: int, has_epochs: bool) -> None:
    with (
        BrokerHarness(tmp_path / "a", **SMALL_FILES) as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SMALL_FILES, **SLAVE) as replica,
    ):
        chance = Random(seed)
        mine, theirs = replica.broker.parts.store.log, master.broker.parts.store.log
        for i in range(60):
            master.send("T", b"%d" % i * chance.randint(1, 200), delay_ms=chance.choice([None, 50_000]))
        wire = Wire(master, replica, has_epochs=has_epochs)
        for _ in range(2000):
            if mine.end == theirs.end:
                break
            wire.pump(chance.choice([1, 7, 100, 3000]))
            if chance.random() < 0.2:
                wire.lose()
                wire = Wire(master, replica, has_epochs=has_epochs)
        assert mine.end == theirs.end
        assert state_of(replica.broker) == state_of(master.broker)
        assert bytes(mine.read(mine.start, 4096)) == bytes(theirs.read(theirs.start, 4096))
        invariants.check(replica.broker)
        if has_epochs:
            assert replica.broker.parts.epochs.all == master.broker.parts.epochs.all


def test_a_damaged_record_ends_the_connection_and_both_sides_name_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        BrokerHarness(tmp_path / "a") as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SLAVE) as replica,
    ):
        theirs, mine = master.broker.parts.store.log, replica.broker.parts.store.log
        master.send("T", b"intact")
        damaged_at = theirs.end
        for body in (b"damaged", b"later"):
            master.send("T", body)
        array = theirs.files.file_at(LogPosition(0)).array
        body_at = bytes(array[: theirs.end]).index(b"damaged")
        array[body_at] = ord("D")
        for _ in range(3):
            wire = Wire(master, replica, has_epochs=True)
            with pytest.raises(MasterLogDamaged, match=f"{damaged_at} are no record.*good copy.*commitlog/0{{20}} "):
                for _ in range(10):
                    wire.pump(1000)
            replica.settle()  # ticks do not read the record again
            with pytest.raises(MasterLogDamaged):
                wire.pump(0)
            wire.lose()
        lines = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert len(lines) == 1 and f"the record at log position {damaged_at}, whose body has changed" in lines[0]
        assert "put a good copy of the file commitlog/00000000000000000000 in place" in lines[0]
        array[body_at] = ord("d")
        wire = Wire(master, replica, has_epochs=True)
        for _ in range(10):
            wire.pump(1000)
        assert mine.end == theirs.end and replica.broker.parts.store.queues.end("T", 0) == 3


def test_a_slave_with_a_damaged_record_of_its_master_can_be_promoted(tmp_path: Path) -> None:
    with (
        BrokerHarness(tmp_path / "a") as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SLAVE) as replica,
    ):
        master.send("T", b"intact")
        end = master.broker.parts.store.log.end
        master.send("T", b"damaged")
        array = master.broker.parts.store.log.files.file_at(LogPosition(0)).array
        array[bytes(array[: end * 3]).index(b"damaged")] = 0
        wire = Wire(master, replica, has_epochs=True)
        with pytest.raises(MasterLogDamaged):
            for _ in range(10):
                wire.pump(1000)
        replica.broker.parts.replication.promote("the test")
        replica.send("T", b"later")
        assert replica.bodies("T") == [b"intact", b"later"]


def test_an_epoch_without_bytes_is_taken_at_the_end_of_the_log(tmp_path: Path) -> None:
    with (
        BrokerHarness(tmp_path / "a") as master,
        BrokerHarness(tmp_path / "b", clock=master.clock, **SLAVE) as replica,
    ):
        master.send("T")
        theirs, own = master.broker.parts, replica.broker.parts
        theirs.epochs.begin(theirs.epochs.next_for_promotion(Random(1)), theirs.store.log.end)
        wire = Wire(master, replica, has_epochs=True)
        while own.store.log.end < theirs.store.log.end:
            wire.pump(100)
        assert own.epochs.all == theirs.epochs.all


def test_a_log_without_a_common_epoch_is_not_followed(tmp_path: Path) -> None:
    with (
        BrokerHarness(tmp_path / "a", seed=1) as master,
        BrokerHarness(tmp_path / "b", seed=2) as replica,
    ):
        master.send("T")
        replica.send("T")
        replica.restart(**SLAVE)
        with pytest.raises(MasterWrong, match="no epoch in common"):
            Wire(master, replica, has_epochs=True).pump(1000)


def test_a_longer_log_is_truncated_to_the_common_part(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path / "b") as replica:
        replica.send("T")
        agreed = replica.broker.parts.store.log.end
        replica.send("T")
        replica.restart(**SLAVE)
        own = replica.broker.parts.epochs.last
        assert own is not None
        link = open_link(replica, has_epochs=True)
        link.greeting()
        epochs = [own, Epoch(own.number + (1 << 18), LogPosition(agreed))]
        with pytest.raises(MustTruncate) as error:
            link.receive(handshake(epochs, agreed + 100), replica.clock.monotonic_ms())
        assert error.value.position == agreed


@pytest.mark.parametrize("size", [-1, 1 << 30])
def test_a_frame_of_an_impossible_size_ends_the_connection(tmp_path: Path, size: int) -> None:
    with BrokerHarness(tmp_path, **SLAVE) as replica:
        link = open_link(replica, has_epochs=False)
        link.greeting()
        with pytest.raises(MasterWrong, match="a frame of"):
            link.receive(DATA.pack(0, size), replica.clock.monotonic_ms())


def handshake(epochs: list[Epoch], end: int) -> bytes:
    body = b"".join(EPOCH.pack(one.number, one.start) for one in epochs)
    return EPOCHS.pack(STATE_HANDSHAKE, len(body), end, epochs[-1].number) + body
