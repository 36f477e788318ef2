"""The replication of one broker: its role, its epochs, its replicas, and the master that it follows."""

from __future__ import annotations

import logging
from random import Random
from typing import Final, NamedTuple

from wheelmq.broker.engine import Engine
from wheelmq.broker.replication.acks import ReplicaAcks
from wheelmq.broker.replication.block_acks import BlockAcks
from wheelmq.broker.replication.block_link import BlockLink
from wheelmq.broker.replication.block_source import BlockSource
from wheelmq.broker.replication.epochs import FIRST_WITHOUT_CONTROLLER, START_BITS, Epochs
from wheelmq.broker.replication.master_link import MasterLink
from wheelmq.broker.replication.promotion import Promotion, queues_with_messages
from wheelmq.broker.replication.replica_log import ReplicaLog
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.broker.replication.role import Role
from wheelmq.broker.state.topics import Topics

log = logging.getLogger(__name__)

HAND_OVER_MS: Final = 15_000
"""Time for a successor to become the master. Then the former master resumes, if the successor says it is no master."""


class MasterAddress(NamedTuple):
    """The addresses of a master: for requests, and for replicas."""

    broker: str
    ha: str


class Replication:
    """The parts that handlers, the HA port and the shell of a slave use."""

    def __init__(
        self,
        engine: Engine,
        role: Role,
        epochs: Epochs,
        replicas: Replicas,
        acks: ReplicaAcks,
        block_source: BlockSource,
        block_acks: BlockAcks,
        replica_log: ReplicaLog,
        promotion: Promotion,
        topics: Topics,
        randomness: Random,
    ) -> None:
        """Compose the parts. If `engine` does not know its pending messages, only a start as the master finds them."""
        self._engine = engine
        self._store = engine.store
        self._block_role = engine.block_parts.role
        self._knows_pending = engine.knows_pending
        self.role = role
        self.epochs = epochs
        self.replicas = replicas
        self.acks = acks
        self.block_source = block_source
        self.block_acks = block_acks
        self.replica_log = replica_log
        self._promotion = promotion
        self._topics = topics
        self._randomness = randomness
        self.ha_port = 0
        """The port on which replicas connect; 0 while the broker does not listen there."""
        self.link: MasterLink | None = None
        """The connection to the master; None on a master, and between two connections."""
        self.block_link: BlockLink | None = None
        """The copy of the master's blocks; None on a master, and between two connections."""
        self.master_address = ""
        self.successor: str | None = None
        """The slave to which this broker hands over now."""
        self._handed_over_ms = 0
        self.must_start_again = False
        """Whether the broker must start again, as the master that its store remembers."""
        if role.is_master:
            self._begin_as_master(topics)
        else:
            self._block_role.follow()

    def _begin_as_master(self, topics: Topics) -> None:
        """Begin an epoch unless the last stop was clean. Then no other log can differ within the last epoch."""
        epochs, log_ = self.epochs, self._store.log
        promoted_in = None if epochs.last is None else epochs.last.number >> START_BITS
        if epochs.last is None:
            epochs.begin(epochs.next_for_start(self._randomness), log_.start)
        elif epochs.last.number < FIRST_WITHOUT_CONTROLLER:
            epochs.begin(epochs.next_for_start(self._randomness), log_.end)  # a controller may give the next number
        elif not self._store.last_stop_was_clean or self._engine.blocks.last_stop_was_clean is False:
            epochs.begin(epochs.next_for_start(self._randomness), log_.end)
        last = epochs.last
        assert last is not None
        self._block_role.take_over(last.number)
        if topics.version.state_version != last.number:
            # a kill right after the promotion may have lost the topics that it found in the log
            has_saved = promoted_in in (None, topics.version.state_version >> START_BITS)
            topics.begin_epoch(last.number, () if has_saved else queues_with_messages(self._engine))

    @property
    def epoch(self) -> int:
        """The last epoch; -1 without one."""
        return -1 if self.epochs.last is None else self.epochs.last.number

    def promote(self, why: str, epoch: int | None = None) -> None:
        """Become the master, under a new epoch. The shell closes the connections to the former master.

        Raises OSError: then the shell connects to the master again.

        A controller gives the number of the epoch. Otherwise this broker chooses it.

        A slave of Apache RocketMQ becomes the master at its next start, which the shell begins at once.
        """
        self.link = self.block_link = None
        if not self._knows_pending:
            self.role.store_master()
            self.must_start_again = True
            log.warning(
                "this broker starts again as the master, after %s; its log ends at %d", why, self._store.log.end
            )
            return
        number = self.epochs.next_for_promotion(self._randomness) if epoch is None else epoch
        self._promotion.promote(number)
        log.warning("this broker is the master now, after %s; its log ends at %d", why, self._store.log.end)

    def may_begin(self, epoch: int) -> bool:
        """Return whether an election of a controller begins an epoch after all epochs of this store.

        Epochs of the time before the controller do not count. They have greater numbers.
        """
        last = self.epochs.last
        return last is None or last.number < epoch or last.number >= FIRST_WITHOUT_CONTROLLER

    def step_down(self, successor: str) -> None:
        """Stop being the master at once, because the controller elected the broker at `successor`."""
        self.role.pause(successor)
        self.acks.end_all()
        self.block_acks.end_all()
        self.replicas.close_all()

    def begin_epoch(self, epoch: int) -> None:
        """Begin another epoch of this master, which was elected again. Its replicas connect again. Raises OSError."""
        self.replicas.close_all()
        self.epochs.begin(epoch, self._store.log.end)
        self._block_role.take_over(epoch)
        self._topics.begin_epoch(epoch, ())
        log.warning("this broker was elected again, under the epoch %d", epoch)

    @property
    def copies_blocks(self) -> bool:
        """Whether `copy_blocks` can do something now."""
        return self.block_link is not None and self.block_link.has_work

    def copy_blocks(self) -> None:
        """Append the received parts of the master's blocks."""
        if self.block_link is not None:
            self.block_link.poll()

    def hand_over(self, successor: str) -> None:
        """Stop being the master, so that the slave at `successor` can get the last records and be promoted.

        Connected replicas still get the log. `resume` takes it back.
        """
        self.successor, self._handed_over_ms = successor, self._store.clock.monotonic_ms()
        self.role.pause(successor)
        self.acks.end_all()
        self.block_acks.end_all()
        log.warning("this broker hands over to the slave at %s; its log ends at %d", successor, self._store.log.end)

    @property
    def may_resume(self) -> bool:
        """Whether the successor had enough time to become the master."""
        return self._store.clock.monotonic_ms() - self._handed_over_ms >= HAND_OVER_MS

    def resume(self) -> None:
        """Be the master again, because the successor did not take over."""
        log.warning("the slave at %s did not take over: this broker is the master again", self.successor)
        self.successor = None
        self.role.resume()

    def replica_ids(self) -> set[int]:
        """Return the ids of the connected replicas."""
        ids = {link.source.progress.replica_id for link in self.replicas.links}
        return ids | {session.replica_id for session in self.block_source.sessions}

    def following_info(self) -> dict[str, object]:
        """Return the state of the connection to the master, as GET_BROKER_HA_STATUS has it."""
        link = self.link
        if link is None:
            return {}
        return {
            "masterAddr": self.master_address,
            "maxOffset": self._store.log.end,
            "masterFlushOffset": link.master_end,
            "lastReadTimestamp": self._wall_ms(link.read_ms),
            "isActivated": True,
        }

    def _wall_ms(self, monotonic_ms: int) -> int:
        clock = self._store.clock
        return clock.now_ms() - clock.monotonic_ms() + monotonic_ms
