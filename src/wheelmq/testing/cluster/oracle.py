"""The expected state of a cluster: the history that survives, apart from the brokers.

The history is the log of one master after another. A promotion, or a start of the present master, may take records
back. The oracle checks that it takes none that a client relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from wheelmq.broker.broker import Broker
from wheelmq.formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.simulation.oracle import Entry, Oracle, SendAnswer, Sent

OF_TRANSACTIONS: Final = frozenset((HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC))


class Change(Enum):
    """The reason why the history continues with another end."""

    KILL = auto()
    """The master starts again after a kill or a clean stop."""
    POWER_CUT = auto()
    """The master starts again after a power cut."""
    SWITCH = auto()
    """The master has handed over to a slave."""
    FAILOVER = auto()
    """A slave was promoted without its master."""


class TransactionEnd(Enum):
    """The end of a transaction, as its producer knows it."""

    OPEN = auto()
    COMMIT = auto()
    ROLLBACK = auto()


@dataclass
class Half:
    """A half message that was sent."""

    sent: Sent
    decision: TransactionEnd = TransactionEnd.OPEN


class ClusterOracle(Oracle):
    """Checks the history, the answers of all brokers, and the records that consumers have seen."""

    def __init__(self, disk: SimulatedDisk, *, is_sync: bool, flushes: bool, skew_ms_max: int = 0) -> None:
        """Create the oracle. `is_sync` is for SYNC_MASTER, and `flushes` for SYNC_FLUSH.

        `skew_ms_max` is the greatest difference of a machine's clock from the true time.
        """
        super().__init__(disk)
        self._skew_ms_max = skew_ms_max
        self.is_sync = is_sync
        self._flushes = flushes
        self._change = Change.KILL
        self._slaves_kept_all = False
        """Whether the slaves have lost nothing that they had, at the last change."""
        self.broker: Broker | None = None
        """The broker whose log is the history; None while it does not run."""
        self.halves: dict[bytes, Half] = {}
        self._taken_back: set[Entry] = set()
        """Records that a power cut took from a master. A slave that has them may be promoted."""
        self._seen: set[int] = set()
        """Positions of the records that consumers have seen."""

    # Changes of the master -----------------------------------------------------------------------------------------

    def continue_with(
        self, broker: Broker, disk: SimulatedDisk, now_ms: int, change: Change, *, keeps_all: bool
    ) -> int:
        """Continue the history with the log of `broker`. Returns the number of records that are taken back.

        With `keeps_all`, the slaves have all that they acknowledged.
        """
        self._change, self._disk, self.broker, self._slaves_kept_all = change, disk, broker, keeps_all
        self._now_ms -= 2 * self._skew_ms_max  # the last look was by the clock of another machine
        return self.recovered(broker, now_ms, power_was_cut=change in (Change.POWER_CUT, Change.FAILOVER))

    def _returns(self, entry: Entry) -> bool:
        return entry in self._taken_back

    def _check_loss(self, entry: Entry) -> None:
        self._taken_back.add(entry)
        keeps = self.is_sync
        if self._change is Change.POWER_CUT:
            keeps = self._flushes or (self.is_sync and self._slaves_kept_all)
        if not keeps:
            return
        if self._change is Change.FAILOVER and not self._is_in_block(entry):
            assert entry.position not in self._seen, f"taken back: a consumer has seen {entry.name!r}"
        if entry.topic in OF_TRANSACTIONS:
            half = self.halves.get(entry.name) if entry.topic == HALF_TOPIC else None
            is_first = half is not None and entry == self._half_of(entry.name)
            assert not is_first or half is None or half.sent.answer is not SendAnswer.DURABLE, (
                f"lost: the half message {entry.name!r} was acknowledged"
            )
        elif entry.name not in self.halves:
            super()._check_loss(entry)

    @staticmethod
    def _is_in_block(entry: Entry) -> bool:
        return bool(entry.parks) and entry.is_in_block

    def _half_of(self, name: bytes) -> Entry | None:
        """Return the first record of a half message in the history."""
        return next((entry for entry in self.queue(HALF_TOPIC, 0) if entry.name == name), None)

    def _is_of_client(self, entry: Entry) -> bool:
        return entry.topic not in OF_TRANSACTIONS

    # Answers -------------------------------------------------------------------------------------------------------

    def is_firm(self, broker: Broker) -> bool:
        return True

    def stored(self, sent: Sent, position: int, broker: Broker, *, durable: bool) -> None:
        """Note that `sent` was acknowledged. A master that another one has replaced acknowledges nothing of its own."""
        entry = self._state.by_position.get(position) or self._state.in_blocks.get(position)
        promises = self.is_sync and durable
        if not promises and broker is not self.broker and (entry is None or entry.name != sent.name):
            return  # a master that is cut off answers if nobody waits for a slave, and its messages are removed later
        assert entry is not None and entry.name == sent.name, f"{sent.name!r} is acknowledged and not at {position}" + (
            "" if broker is self.broker else ": its master has been replaced"
        )
        sent.answer = SendAnswer.DURABLE if durable else SendAnswer.STORED
        if durable:
            self._must_be_on_disk(entry, broker)

    def _must_be_on_disk(self, entry: Entry, broker: Broker) -> None:
        if self._flushes and broker is self.broker:
            super()._must_be_on_disk(entry, broker)

    def seen(self, topic: str, queue_id: int, queue_offset: int, name: bytes) -> None:
        """Note that a consumer has seen a record."""
        queue = self.queue(topic, queue_id)
        found = queue[queue_offset] if queue_offset < len(queue) else None
        assert found is not None and found.name == name, (
            f"a consumer has seen {name!r} at {topic}/{queue_id}/{queue_offset}, where the history has {found}"
        )
        self._seen.add(found.position)

    # Records -------------------------------------------------------------------------------------------------------

    def _deliver(self, entry: Entry) -> None:
        if entry.topic == HALF_TOPIC:
            assert entry.name in self.halves, f"the half message {entry.name!r} was sent by nobody"
            return
        if entry.topic in OF_TRANSACTIONS:
            assert entry.topic != CHECK_MAX_TIME_TOPIC, f"{entry.name!r} was checked too often"
            return
        committed = self.halves.get(entry.name)
        if committed is not None:
            assert committed.decision is TransactionEnd.COMMIT, f"{entry.name!r} is delivered: {committed.decision}"
            assert self._half_of(entry.name), f"{entry.name!r} is delivered, and its half message is not stored"
        super()._deliver(entry)

    def check_transactions(self) -> None:
        """Check after a calm that each stored half message has ended as its producer decided."""
        for name, half in self.halves.items():
            is_committed = half.decision is TransactionEnd.COMMIT and self._half_of(name) is not None
            assert not is_committed or name in self.delivered, f"{name!r} is committed and not delivered"
