"""The master's side of the connection of one replica, without its socket.

A replica of Apache RocketMQ in classic mode sends its end as 8 bytes. A replica with epochs sends a handshake of 16
bytes, whose first word is 1. A classic replica whose log ends at 4 GiB sends the same first bytes, and nothing after
them. So after CLASSIC_AFTER_MS these 8 bytes count as a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.replication.tickets import TICKET_BYTES_MAX
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.replication import (
    DATA,
    EPOCH_DATA,
    EPOCH_REPORT,
    HANDSHAKE,
    REPORT,
    STATE_HANDSHAKE,
    STATE_TICKET,
    STATE_TRANSFER,
    TICKET,
    encode_handshake,
)
from wheelmq.store.commit_log import CommitLog

CLASSIC_AFTER_MS: Final = 1000
START: Final = LogPosition(0)
UNKNOWN_REPLICA: Final = -1
"""The id of a classic replica, which does not name itself."""


class Protocol(Enum):
    """How the replica talks."""

    UNKNOWN = "unknown"
    CLASSIC = "classic"
    EPOCHS = "epochs"


class ReplicaRejected(Exception):
    """The replica cannot be served. The connection must be closed."""


@dataclass
class ReplicaProgress:
    """The progress of one replica, as its master knows it."""

    replica_id: int = UNKNOWN_REPLICA
    acked: LogPosition | None = None
    """End of the replica's log, as its last report says. None before the first report."""
    sent: LogPosition = START
    """End of the bytes that were sent to it."""


class ReplicaSource:
    """Parses the reports of a replica, and makes the frames for it. Times are monotonic milliseconds."""

    def __init__(
        self,
        log: CommitLog,
        epochs: Epochs,
        now_ms: int,
        batch_bytes: int,
        redeem: Callable[[str], bool] | None = None,
    ) -> None:
        """Begin a connection. With `redeem`, the replica must first send a ticket for which it returns true."""
        self._log = log
        self._epochs = epochs
        self._batch_bytes = batch_bytes
        self._opened_ms = now_ms
        self._redeem = redeem
        self._unread = bytearray()
        self.protocol = Protocol.UNKNOWN
        self.progress = ReplicaProgress()
        self._greeting = b""

    @property
    def is_transferring(self) -> bool:
        """Whether the replica has said from which position it needs the log."""
        return self.progress.acked is not None

    def receive(self, data: bytes, now_ms: int) -> bool:
        """Take received bytes. Returns whether they held a report. Raises ReplicaRejected."""
        self._unread += data
        if self._redeem is not None and self._unread and not self._take_ticket(self._redeem):
            return False
        if self.protocol is Protocol.UNKNOWN:
            self._recognise(now_ms)
        reported = False
        for position in self._reports():
            self._take_report(position)
            reported = True
        return reported

    def poll(self, now_ms: int) -> None:
        """Decide for the classic protocol when nothing followed the first bytes. Raises ReplicaRejected."""
        if self.protocol is Protocol.UNKNOWN and self._unread:
            self.receive(b"", now_ms)

    def greeting(self) -> bytes:
        """Return the answer to a handshake once, and nothing later."""
        greeting, self._greeting = self._greeting, b""
        return greeting

    def frames(self, bytes_max: int, confirmed: LogPosition) -> Iterator[tuple[bytes, memoryview]]:
        """Yield heads and bytes of frames with the next bytes of the log, about `bytes_max` of them.

        A frame is within one log file and one epoch.
        """
        progress, log = self.progress, self._log
        while self.is_transferring and bytes_max > 0 and progress.sent < log.end:
            at = progress.sent
            if at < log.start:
                raise ReplicaRejected(
                    f"the replica needs the log from {at} on, but the files before {log.start} are deleted. Start "
                    "the replica with an empty store"
                )
            stop = min(log.end, at + self._batch_bytes, at - at % log.files.file_bytes + log.files.file_bytes)
            if self.protocol is Protocol.EPOCHS:
                epoch, ends = self._epochs.at(at)
                stop = stop if ends is None else min(stop, ends)
                head = EPOCH_DATA.pack(STATE_TRANSFER, stop - at, at, epoch.number, epoch.start, confirmed)
            else:
                head = DATA.pack(at, stop - at)
            progress.sent = LogPosition(stop)  # the caller may end the iteration at any frame
            bytes_max -= stop - at
            yield head, log.read(at, stop - at)

    def heartbeat(self, confirmed: LogPosition) -> bytes:
        """Return a frame without bytes, or nothing before the first report."""
        at = self.progress.sent
        if not self.is_transferring:
            return b""
        if self.protocol is Protocol.CLASSIC:
            return DATA.pack(at, 0)
        last = self._epochs.at(at)[0]
        return EPOCH_DATA.pack(STATE_TRANSFER, 0, at, last.number, last.start, confirmed)

    # Received bytes ------------------------------------------------------------------------------------------------

    def _take_ticket(self, redeem: Callable[[str], bool]) -> bool:
        """Take the ticket of the replica. Returns whether it is complete. Raises ReplicaRejected."""
        raw = self._unread
        if len(raw) < TICKET.size:
            return False
        fields = TICKET.unpack(raw)
        if fields["state"] != STATE_TICKET or not 1 <= fields["bytes"] <= TICKET_BYTES_MAX:
            raise ReplicaRejected(
                "it has no ticket, which authentication requires. Only a WheelMQ slave can send one: set its "
                "inner_client_authentication_credentials to a user that this master knows"
            )
        end = TICKET.size + int(fields["bytes"])
        if len(raw) < end:
            return False
        if not redeem(raw[TICKET.size : end].decode("latin-1")):
            raise ReplicaRejected("its ticket is not valid: it is older than 30 s, was used before, or is forged")
        del raw[:end]
        self._redeem = None
        return True

    def _recognise(self, now_ms: int) -> None:
        raw = self._unread
        if len(raw) < REPORT.size:
            return
        may_be_handshake = raw[:4] == STATE_HANDSHAKE.to_bytes(4, "big") and raw[4] == raw[6] == 0
        if not (may_be_handshake and raw[5] <= 1 and raw[7] <= 1):
            self.protocol = Protocol.CLASSIC
        elif len(raw) >= HANDSHAKE.size:
            fields = HANDSHAKE.unpack(raw)
            del raw[: HANDSHAKE.size]
            self.protocol = Protocol.EPOCHS
            self.progress.replica_id = int(fields["replica_id"])
            self._starts_late = bool(fields["from_last_file"])
            self._greeting = encode_handshake(self._log.end, self._epochs.all)
        elif now_ms - self._opened_ms >= CLASSIC_AFTER_MS:
            self.protocol = Protocol.CLASSIC

    def _reports(self) -> Iterator[LogPosition]:
        raw = self._unread
        if self.protocol is Protocol.CLASSIC:
            while len(raw) >= REPORT.size:
                yield LogPosition(int(REPORT.unpack(raw)["position"]))
                del raw[: REPORT.size]
        elif self.protocol is Protocol.EPOCHS:
            while len(raw) >= EPOCH_REPORT.size:
                fields = EPOCH_REPORT.unpack(raw)
                if fields["state"] != STATE_TRANSFER:
                    raise ReplicaRejected(f"it sent a frame in state {fields['state']}, where a report was expected")
                yield LogPosition(int(fields["position"]))
                del raw[: EPOCH_REPORT.size]

    def _take_report(self, position: LogPosition) -> None:
        """Take the end of the replica's log. The first one says where to begin."""
        progress, log = self.progress, self._log
        if position < 0:
            raise ReplicaRejected(f"it reported the log position {position}")
        if position > log.end:
            raise ReplicaRejected(
                f"its log ends at {position}, after the end {log.end} of this master's log. The logs differ: start "
                "the replica with an empty store, or promote it if this broker lost its disk"
            )
        if progress.acked is not None:
            progress.acked = max(progress.acked, min(position, progress.sent))
            return
        start = log.start if position == 0 else position
        if position == 0 and self.protocol is Protocol.EPOCHS and self._starts_late:
            start = LogPosition(max(log.start, log.end - log.end % log.files.file_bytes))
        progress.sent, progress.acked = start, position
