"""The other end of an HA connection in tests: a replica that speaks Apache's bytes, without a socket."""

from __future__ import annotations

from typing import NamedTuple

from wheelmq.broker.replication.replicas import ReplicaLink
from wheelmq.formats.disk.epochs import Epoch
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.replication import (
    DATA,
    EPOCH,
    EPOCH_DATA,
    EPOCH_REPORT,
    EPOCHS,
    HANDSHAKE,
    REPORT,
    STATE_HANDSHAKE,
    STATE_TRANSFER,
)
from wheelmq.testing.harness import BrokerHarness


class DataFrame(NamedTuple):
    """A frame that the master sent."""

    position: LogPosition
    data: bytes
    epoch: Epoch | None = None
    confirmed: LogPosition | None = None


class FakeReplica:
    """A replica that is connected to a master, and reports only when the test says so."""

    def __init__(self, master: BrokerHarness) -> None:
        self._master = master
        self._received = bytearray()
        self.is_full = False
        """Set to make the socket take no more bytes."""
        self.room_bytes: int | None = None
        """After so many bytes the socket is full, until `frames` takes them. None for no limit."""
        self.is_open = True
        self.has_epochs = False
        self.master_epochs: list[Epoch] = []
        self.master_end = LogPosition(0)
        self.link: ReplicaLink | None = master.broker.open_replica(self, "10.0.0.9:5000")
        if self.link is None:
            self.is_open = False

    # The master's side ---------------------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        self._received += data
        if self.room_bytes is not None and len(self._received) >= self.room_bytes:
            self.is_full = True

    def close(self) -> None:
        self.is_open = False

    # The replica's side --------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes to the master, which then ends a round."""
        assert self.link is not None and self.is_open
        self._master.broker.receive_of_replica(self.link, data)
        self._master.end_round()

    def report(self, position: int) -> None:
        """Report the end of the replica's log."""
        self.send(EPOCH_REPORT.pack(STATE_TRANSFER, position) if self.has_epochs else REPORT.pack(position))

    def shake_hands(self, replica_id: int = 1, *, from_last_file: bool = False) -> None:
        """Send a handshake, and take that of the master."""
        self.has_epochs = True
        self.send(HANDSHAKE.pack(STATE_HANDSHAKE, from_last_file, 0, replica_id))
        head = EPOCHS.unpack(self._received)
        self.master_end = LogPosition(head["end"])
        count = head["bytes"] // EPOCH.size
        fields = (EPOCH.unpack(self._received, EPOCHS.size + i * EPOCH.size) for i in range(count))
        self.master_epochs = [Epoch(one["epoch"], LogPosition(one["start"])) for one in fields]
        del self._received[: EPOCHS.size + head["bytes"]]

    def frames(self) -> list[DataFrame]:
        """Take the frames that have come, heartbeats among them."""
        layout, raw, at, found = EPOCH_DATA if self.has_epochs else DATA, bytes(self._received), 0, []
        while at < len(raw):
            head = layout.unpack(raw, at)
            at += layout.size
            epoch = Epoch(head["epoch"], LogPosition(head["epoch_start"])) if self.has_epochs else None
            confirmed = LogPosition(head["confirmed"]) if self.has_epochs else None
            data = raw[at : at + head["bytes"]]
            assert len(data) == head["bytes"], "the master sends whole frames"
            found.append(DataFrame(LogPosition(head["position"]), data, epoch, confirmed))
            at += head["bytes"]
        self._received.clear()
        if self.room_bytes is not None:
            self.is_full = False
        return found

    def lose(self) -> None:
        """Close the connection from this side."""
        assert self.link is not None
        self.is_open = False
        self._master.broker.lose_replica(self.link)
