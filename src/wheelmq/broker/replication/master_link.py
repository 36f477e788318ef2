"""The replica's side of the connection to its master, without its socket. Times are monotonic milliseconds."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.replication.epochs import Epochs, consistent_point
from wheelmq.broker.replication.replica_log import ReplicaLog
from wheelmq.broker.replication.settings import ReplicationSettings
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
    STATE_TICKET,
    STATE_TRANSFER,
    TICKET,
)
from wheelmq.store.commit_log import CommitLog

FRAME_BYTES_MAX: Final = 8 << 20
LOG_START: Final = LogPosition(0)
FIRST_ASKED: Final = LogPosition(1)
"""The first report of an empty replica to a classic master. At 0, Apache's master begins at its last file. The byte at
position 0 is always 0, because no record has 16 MiB."""
BEHIND_BYTES_MAX: Final = 64 << 20
"""Received bytes without queue units above which the replica reads no more from its master."""


class MasterWrong(Exception):
    """The bytes of the master cannot be followed. Close the connection, and try again later."""


class MustTruncate(Exception):
    """The log has a tail that the master does not have. Truncate the store to `position` before following."""

    def __init__(self, position: LogPosition) -> None:
        super().__init__(f"the log must be truncated to {position}")
        self.position = position


class MasterLink:
    """Parses the frames of a master, and makes the reports to it."""

    def __init__(
        self,
        commit_log: CommitLog,
        replica_log: ReplicaLog,
        epochs: Epochs,
        settings: ReplicationSettings,
        now_ms: int,
        *,
        replica_id: int | None,
        masters_start: LogPosition = LOG_START,
        ticket: str = "",
    ) -> None:
        """Begin a connection. `replica_id` is None for a classic master, which knows no epochs.

        `masters_start` is the first position of its log. The master sends the log again from its last whole record,
        which the first report names. `ticket` is the one that the master gave this replica, if the master has users.
        """
        replica_log.drop_incomplete()
        self._ticket = ticket.encode()
        self._commit_log = commit_log
        self._masters_start = masters_start
        self._replica_log = replica_log
        self._epochs = epochs
        self._settings = settings
        self._replica_id = replica_id
        self._unread = bytearray()
        self._reported: LogPosition | None = None
        self._is_answered = False
        """Whether a frame has come. Before it, Apache's master would take a second report for the request."""
        self._next = LogPosition(0)
        """The position of the next bytes from a classic master."""
        self._known_to = commit_log.end
        """Bytes before this position are in the log already. A classic master sends the last record again."""
        self.read_ms = self._written_ms = now_ms
        self.master_end = self.confirmed = LogPosition(0)
        """End of the master's log, as far as its frames show it, and the part that its replicas in sync have."""
        self._masters_epochs: list[Epoch] = []

    @property
    def has_epochs(self) -> bool:
        return self._replica_id is not None

    @property
    def agreed_epoch(self) -> int | None:
        """The epoch of the master, once this log is known to be a part of its log; else None."""
        has_agreed = self._reported is not None and self._masters_epochs
        return self._masters_epochs[-1].number if has_agreed else None

    @property
    def is_behind(self) -> bool:
        """Whether too many received bytes wait for their queue units."""
        return self._replica_log.received_to - self._commit_log.end > BEHIND_BYTES_MAX

    def greeting(self) -> bytes:
        """Return the first bytes of the connection."""
        if self._replica_id is None:
            self._next = self._first_asked()
            return self._report(self._next)
        ticket = TICKET.pack(STATE_TICKET, len(self._ticket)) + self._ticket if self._ticket else b""
        return ticket + HANDSHAKE.pack(STATE_HANDSHAKE, 0, 0, self._replica_id)

    def _first_asked(self) -> LogPosition:
        """Return the position from which a classic master must send its log.

        It is the last record of this log. The master may have lost its end in a power cut, and have other records there
        now. Apache's replica then appends the second half of a record to the first half of another.
        """
        log, start = self._commit_log, self._masters_start
        if log.files.start == log.files.end:
            return max(start, FIRST_ASKED)
        last = self._replica_log.last_position
        return max(log.end if last is None or last < start else last, FIRST_ASKED)

    def receive(self, data: bytes, now_ms: int) -> bytes:
        """Take received bytes, and return the bytes to send. Raises MasterWrong, MustTruncate, NotNext, DiskFull."""
        self.read_ms = now_ms
        self._unread += data
        out = b""
        if self.has_epochs and self._reported is None:
            out = self._take_handshake()
        if self._reported is not None:
            self._take_frames()
        return out

    def report(self, now_ms: int) -> bytes:
        """Return a report if the log has grown, or if it is time for a heartbeat; else nothing. Raises OSError."""
        if self._reported is None or not self._is_answered:
            return b""
        end = self._commit_log.end
        if end == self._reported and now_ms - self._written_ms < self._settings.heartbeat_ms:
            return b""
        self._take_reached_epochs(end)
        self._written_ms = now_ms
        return self._report(end)

    def is_silent(self, now_ms: int) -> bool:
        return now_ms - self.read_ms >= self._settings.silence_ms_max

    def _report(self, end: LogPosition) -> bytes:
        self._reported = end
        return EPOCH_REPORT.pack(STATE_TRANSFER, end) if self.has_epochs else REPORT.pack(end)

    # Handshake -----------------------------------------------------------------------------------------------------

    def _take_handshake(self) -> bytes:
        raw = self._unread
        if len(raw) < EPOCHS.size:
            return b""
        head = EPOCHS.unpack(raw)
        count = int(head["bytes"])
        if head["state"] != STATE_HANDSHAKE or count < 0 or count % EPOCH.size or count > FRAME_BYTES_MAX:
            raise MasterWrong("its handshake is not valid: it may be a master without epochs")
        if len(raw) < EPOCHS.size + count:
            return b""
        fields = (EPOCH.unpack(raw, EPOCHS.size + at) for at in range(0, count, EPOCH.size))
        masters = [Epoch(int(one["epoch"]), LogPosition(int(one["start"]))) for one in fields]
        del raw[: EPOCHS.size + count]
        self.master_end = LogPosition(int(head["end"]))
        self._agree(masters)
        return self._report(self._commit_log.end)

    def _agree(self, masters: list[Epoch]) -> None:
        """Check that the log is a part of the master's log. Raises MasterWrong, MustTruncate."""
        own_end = self._commit_log.end
        self._masters_epochs = masters
        if self._commit_log.files.start == self._commit_log.files.end:
            self._take_epochs(own_end)
            return
        point = consistent_point(self._epochs.all, own_end, masters, self.master_end)
        if point is None:
            raise MasterWrong(
                "its log has no epoch in common with this store, so the two logs may differ anywhere. Start this "
                "replica with an empty store"
            )
        if point < own_end:
            raise MustTruncate(point)
        self._take_epochs(own_end)

    def _take_epochs(self, own_end: LogPosition) -> None:
        """Take the epochs of the master up to the end of the log. The last one may have messages in blocks alone."""
        known = [one for one in self._masters_epochs if one.start <= own_end]
        if known:
            self._epochs.follow(known)

    def _take_reached_epochs(self, own_end: LogPosition) -> None:
        """Take later epochs that begin at the end of the log. No frame names an epoch that has no bytes.

        Without the last one, this replica could be promoted under a lower number than its master has.
        """
        last = self._epochs.last
        if last is not None and any(one.start <= own_end and one.number > last.number for one in self._masters_epochs):
            self._take_epochs(own_end)

    # Frames --------------------------------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        raw, at = self._unread, 0
        layout = EPOCH_DATA if self.has_epochs else DATA
        view = memoryview(raw)
        while len(raw) - at >= layout.size:
            head = layout.unpack(raw, at)
            count = int(head["bytes"])
            if not 0 <= count <= FRAME_BYTES_MAX or head.get("state", STATE_TRANSFER) != STATE_TRANSFER:
                raise MasterWrong(f"it sent a frame of {count} bytes in state {head.get('state')}")
            if len(raw) - at < layout.size + count:
                break
            at += layout.size
            self._take_frame(LogPosition(int(head["position"])), view[at : at + count], head)
            at += count
        view.release()
        del raw[:at]

    def _take_frame(self, position: LogPosition, data: memoryview, head: dict[str, int]) -> None:
        self._is_answered = True
        self.master_end = max(self.master_end, LogPosition(position + len(data)))
        if self.has_epochs:
            self.confirmed = LogPosition(int(head["confirmed"]))
        if not len(data):
            return
        if not self.has_epochs:
            self._take_classic(position, data)
            return
        log = self._commit_log
        if log.files.start == log.files.end:
            self._replica_log.begin_at(position)
        self._note_epoch(Epoch(int(head["epoch"]), LogPosition(int(head["epoch_start"]))))
        self._replica_log.write(position, data)

    def _take_classic(self, position: LogPosition, data: memoryview) -> None:
        """Write the bytes of a classic master that are new. Raises MasterWrong if the log has others."""
        if position != self._next:
            raise MasterWrong(f"it sent bytes for log position {position}, where {self._next} was expected")
        self._next = LogPosition(position + len(data))
        log, replica_log = self._commit_log, self._replica_log
        if log.files.start == log.files.end:
            replica_log.begin_at(LogPosition(0) if position == FIRST_ASKED else position)
        if position == FIRST_ASKED and replica_log.received_to == 0:
            replica_log.write(LogPosition(0), bytes(FIRST_ASKED))
        while len(data) and position < self._known_to:
            left = log.files.file_bytes - position % log.files.file_bytes
            count = min(len(data), self._known_to - position, left)
            if log.read(position, count) != data[:count]:
                raise MasterWrong(
                    f"its log has other bytes than this store between {position} and {position + count}: it may have "
                    "lost its last messages in a power cut. Promote this slave, or start it with an empty store"
                )
            position, data = LogPosition(position + count), data[count:]
        if len(data):
            replica_log.write(position, data)

    def _note_epoch(self, epoch: Epoch) -> None:
        """Note the epoch of the next bytes before they are written."""
        if epoch == self._epochs.last:
            return
        known = [one for one in self._masters_epochs if one.number < epoch.number]
        self._epochs.follow([*known, epoch])
