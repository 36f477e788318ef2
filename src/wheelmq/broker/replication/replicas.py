"""The replicas of a master: the bytes for each of them, and the part of the log that they have.

Times are monotonic milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from wheelmq.broker.replication.controller.sync_state_set import SyncStateSet
from wheelmq.broker.replication.epochs import Epochs
from wheelmq.broker.replication.lag import ReplicationLag
from wheelmq.broker.replication.rate import ByteRate
from wheelmq.broker.replication.role import Role
from wheelmq.broker.replication.settings import ReplicationSettings
from wheelmq.broker.replication.source import UNKNOWN_REPLICA, ReplicaRejected, ReplicaSource
from wheelmq.broker.replication.tickets import ReplicaTickets
from wheelmq.formats.disk.paths import file_name
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.system.clock import Clock
from wheelmq.system.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

PUSH_BYTES_MAX: Final = 4 << 20
"""Bytes for one replica between two rounds. A replica that catches up must not delay the clients."""
PATIENCE_MS: Final = 200
"""With asynchronous replication, consumers see a record once one replica has it, or after this time."""
CHECK_MS: Final = 1000
"""Time between two checks of an unfinished handshake, and of silent peers."""


class ReplicaTransport(Protocol):
    """The socket of a replica."""

    @property
    def is_full(self) -> bool:
        """Whether enough bytes wait for the replica."""

    def write(self, data: bytes | memoryview, /) -> None: ...

    def close(self) -> None: ...


class ReplicaLink:
    """One connected replica."""

    def __init__(
        self, source: ReplicaSource, transport: ReplicaTransport, peer: str, settings: ReplicationSettings, now_ms: int
    ) -> None:
        self.source = source
        self.peer = peer
        self._transport = transport
        self._settings = settings
        self.read_ms = self.written_ms = now_ms
        self._allowance_ms = now_ms
        """Time up to which the rate is used up."""
        self.rate = ByteRate(now_ms)

    def push(self, confirmed: LogPosition, now_ms: int) -> None:
        """Send the next bytes of the log, as far as the rate and the socket take them. Raises ReplicaRejected."""
        transport = self._transport
        if transport.is_full or now_ms < self._allowance_ms:
            return
        sent = 0
        for head, data in self.source.frames(PUSH_BYTES_MAX, confirmed):
            transport.write(head)
            transport.write(data)
            sent += len(data)
            if transport.is_full or (self._settings.limits_rate and sent >= self._slice_bytes()):
                break
        if sent:
            self.written_ms = now_ms
            self.rate.add(sent, now_ms)
            if self._settings.limits_rate:
                self._allowance_ms = now_ms + sent * 1000 // self._settings.bytes_per_second_max

    def next_ms(self, now_ms: int) -> int:
        """Return when the link needs a tick: for the next bytes that the rate allows, or for its checks."""
        return self._allowance_ms if self._allowance_ms > now_ms else now_ms + CHECK_MS

    def _slice_bytes(self) -> int:
        """Return the bytes of 20 ms at the maximum rate."""
        return max(1, self._settings.bytes_per_second_max // 50)

    def tick(self, confirmed: LogPosition, now_ms: int) -> None:
        """Send a heartbeat if it is time, and end an unfinished handshake. Raises ReplicaRejected."""
        if now_ms - self.read_ms >= self._settings.silence_ms_max:
            raise ReplicaRejected(f"it said nothing for {self._settings.silence_ms_max} ms")
        self.source.poll(now_ms)
        if now_ms - self.written_ms >= self._settings.heartbeat_ms:
            self.written_ms = now_ms
            heartbeat = self.source.heartbeat(confirmed)
            if heartbeat:
                self._transport.write(heartbeat)

    def receive(self, data: bytes, now_ms: int) -> bool:
        """Take received bytes. Returns whether they held a report. Raises ReplicaRejected."""
        self.read_ms = now_ms
        reported = self.source.receive(data, now_ms)
        greeting = self.source.greeting()
        if greeting:
            self._transport.write(greeting)
        return reported

    def close(self) -> None:
        self._transport.close()


class Replicas:
    """The connected replicas, and the position up to which enough of them have the log."""

    def __init__(
        self,
        commit_log: CommitLog,
        epochs: Epochs,
        role: Role,
        settings: ReplicationSettings,
        clock: Clock,
        tickets: ReplicaTickets | None,
        in_sync: SyncStateSet | None = None,
        *,
        replicated_to: LogPosition,
        note_replicated: Callable[[], None],
    ) -> None:
        """Create the object. Without `tickets`, every replica gets the log.

        With `in_sync`, a message is acknowledged once all replicas of this set have it. Enough replicas had the log up
        to `replicated_to` before the start, as far as this broker knows. Before a record counts as replicated,
        `note_replicated` stores that replicas have records. It raises OSError.
        """
        self._commit_log = commit_log
        self._epochs = epochs
        self._role = role
        self._settings = settings
        self._clock = clock
        self.tickets = tickets
        self._in_sync = in_sync
        self._log = RateLimitedLog(log, clock.monotonic)
        self.links: dict[ReplicaLink, None] = {}
        self.lag = ReplicationLag()
        self._confirmed = replicated_to
        self._note_replicated = note_replicated
        self._best = commit_log.end
        """Greatest position that a replica of this master has reported, or the end of the log at the start."""
        self._knows_tail = in_sync is None
        """Whether the end of the log is part of the history. At a start, only the controller's master knows that."""
        self._reported: LogPosition | None = None
        """Greatest position that a replica of this master has reported. None before the first report."""

    def open(self, transport: ReplicaTransport, peer: str) -> ReplicaLink | None:
        """Take a new connection. Returns None if the broker is no master now."""
        if not self._role.is_master:
            return None
        now_ms = self._clock.monotonic_ms()
        redeem = None if self.tickets is None else self.tickets.redeem
        source = ReplicaSource(self._commit_log, self._epochs, now_ms, self._settings.batch_bytes, redeem)
        link = ReplicaLink(source, transport, peer, self._settings, now_ms)
        self.links[link] = None
        log.info("a replica connected from %s", peer)
        return link

    def receive(self, link: ReplicaLink, data: bytes) -> None:
        """Take bytes that a replica sent."""
        try:
            if link.receive(data, self._clock.monotonic_ms()):
                self.note_acks()
            link.push(self.confirmed, self._clock.monotonic_ms())
        except ReplicaRejected as error:
            self._reject(link, error)

    def lost(self, link: ReplicaLink) -> None:
        """Forget a closed connection."""
        if self.links.pop(link, True) is None:
            self.lag.note_end(self._commit_log.end, self._clock.monotonic_ms())  # later bytes wait from now on
            log.warning("the replica at %s is gone; it has the log up to %s", link.peer, link.source.progress.acked)
            self._say_damage(link)

    def _say_damage(self, link: ReplicaLink) -> None:
        """Log a damaged record at the end of the replica's log. A replica does not take it, and connects again."""
        end = link.source.progress.acked
        if end is not None and self._commit_log.has_damaged_body(end):
            self._log.log(
                logging.ERROR,
                "damaged",
                "the replica at %s cannot take the record at log position %d, whose body has changed on this disk. "
                "Stop this broker and put a good copy of the file commitlog/%s in place, or promote a slave that has "
                "the record",
                link.peer,
                end,
                file_name(self._commit_log.files.base_of(end)),
            )

    def push(self) -> None:
        """Send the new bytes of the log to all replicas."""
        now_ms = self._clock.monotonic_ms()
        if self._commit_log.end > self._best:
            self.lag.note_end(self._commit_log.end, now_ms)
        for link in list(self.links):
            try:
                link.push(self.confirmed, now_ms)
            except ReplicaRejected as error:
                self._reject(link, error)

    def tick(self, now_ms: int) -> None:
        """Send the new bytes and heartbeats, and close silent connections."""
        self.push()
        for link in list(self.links):
            try:
                link.tick(self.confirmed, now_ms)
            except ReplicaRejected as error:
                self._reject(link, error)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when `tick` has work; None without a replica."""
        return min((link.next_ms(now_ms) for link in self.links), default=None)

    def close_all(self) -> None:
        """Close all connections, because the broker is a master no more."""
        for link in list(self.links):
            del self.links[link]
            link.close()

    # Progress ------------------------------------------------------------------------------------------------------

    @property
    def needed_acks(self) -> int:
        """Replicas that must have a message before it counts as replicated."""
        return self._role.needed_acks if self.required is None else len(self.required)

    @property
    def required(self) -> frozenset[int] | None:
        """The replicas that must all have a message; None if any `needed_acks` of them are enough."""
        return self._in_sync.others if self._in_sync is not None and self._role.leads else None

    @property
    def confirmed(self) -> LogPosition:
        """The log is on enough brokers up to this position."""
        return self._confirmed if self.needed_acks else self._commit_log.end

    @property
    def are_available(self) -> bool:
        """Whether enough replicas are connected and not too far behind (RocketMQ: isSlaveOK).

        A lost replica leaves the replicas in sync soon, so with them a message waits for that.
        """
        if self.required is not None:
            return True
        needed, reach = self.needed_acks, self._commit_log.end - self._settings.gap_bytes_max
        return not needed or sum(end >= reach for end in self.acked()) >= needed

    def acked(self) -> list[LogPosition]:
        """Return the ends of the replicas' logs, the greatest first. Two connections of one replica count once."""
        ends: dict[object, LogPosition] = {}
        for link in self.links:
            progress = link.source.progress
            if progress.acked is not None:
                key = progress.replica_id if progress.replica_id != UNKNOWN_REPLICA else link
                ends[key] = max(ends.get(key, progress.acked), progress.acked)
        return sorted(ends.values(), reverse=True)

    def ends_by_id(self) -> dict[int, LogPosition]:
        """Return the end of each replica's log by its id, as its last connection has reported it."""
        ends: dict[int, LogPosition] = {}
        for link in self.links:
            progress = link.source.progress
            if progress.replica_id != UNKNOWN_REPLICA:
                ends.pop(progress.replica_id, None)
                if progress.acked is not None:
                    ends[progress.replica_id] = progress.acked
        return ends

    def lag_bytes(self) -> int:
        """Return the bytes of the log that no replica has: the most that a failover loses. 0 before the first one."""
        return 0 if self._reported is None else self._commit_log.end - self._reported

    def lag_ms(self) -> int:
        """Return how long the oldest of these bytes have waited, or 0."""
        began_ms = self.lag.began_ms()
        return 0 if began_ms is None or not self.lag_bytes() else self._clock.monotonic_ms() - began_ms

    @property
    def shows_all(self) -> bool:
        """Whether consumers see each record without a wait for a replica."""
        return (self._reported is None or self.required is not None) and not self.needed_acks

    def visible_to(self) -> LogPosition:
        """Return the log position up to which consumers may see records.

        A record that a consumer has seen must not be gone after a failover. Above all, a released timer would be
        released again. With SYNC_MASTER, enough replicas must have the record. Otherwise one replica must have it, if
        one follows without a lag, or did so PATIENCE_MS ago.
        """
        if not self._knows_tail:
            return self._confirmed
        if self.needed_acks or self.required is not None:
            return self.confirmed
        end, began_ms = self._commit_log.end, self.lag.began_ms()
        if end <= self._best or self._reported is None:
            return end
        if began_ms is None:
            return self._best if self.links else end
        return end if self._clock.monotonic_ms() - began_ms >= PATIENCE_MS else self._best

    def next_visible_ms(self) -> int | None:
        """Return when consumers may see records that no replica has; None if they wait for replicas alone."""
        waits = self._reported is not None and not self.needed_acks and self.required is None
        began_ms = self.lag.began_ms() if waits else None
        return None if began_ms is None else began_ms + PATIENCE_MS

    def note_agreed(self) -> None:
        """Note that the log of this slave is a part of its master's log."""
        self._knows_tail = True

    def take_over(self) -> None:
        """Count the whole log as replicated: this broker is the master now, and its log is the only true one."""
        self._confirmed, self._knows_tail = self._commit_log.end, True
        self.lag.forget()

    def note_confirmed(self) -> None:
        """Keep the confirmed position, because the replicas in sync change now."""
        self._confirmed = max(self._confirmed, self.confirmed)

    def note_acks(self) -> None:
        """Note which part of the log enough replicas have."""
        acked, needed = self.acked(), self.needed_acks
        if acked:
            self._reported = max(acked[0], self._reported or acked[0])
        if acked and acked[0] > self._best:
            self._best = acked[0]
            self.lag.note_acked(self._best)
        required = self.required
        if required:
            ends = self.ends_by_id()
            if ends.keys() >= required and self.may_acknowledge():
                self._confirmed = max(self._confirmed, min(ends[one] for one in required))
        elif needed and len(acked) >= needed and self.may_acknowledge() and acked[needed - 1] > self._confirmed:
            self._confirmed = acked[needed - 1]

    def may_acknowledge(self) -> bool:
        """Return whether messages of replicas may be acknowledged. The store first notes that replicas have some."""
        try:
            self._note_replicated()
        except OSError as error:
            self._log.warn("note", "no message is acknowledged, because the abort file cannot be written: %s", error)
            return False
        return True

    def _reject(self, link: ReplicaLink, error: ReplicaRejected) -> None:
        self.links.pop(link, None)
        self.lag.note_end(self._commit_log.end, self._clock.monotonic_ms())
        self._log.warn(link.peer, "the connection of the replica at %s is closed: %s", link.peer, error)
        link.close()
