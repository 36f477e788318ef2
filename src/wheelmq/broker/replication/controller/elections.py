"""The decisions of the controller about this broker, and the changes of its role that follow from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from wheelmq.broker.replication.controller.sync_state_changes import SyncStateChanges
from wheelmq.broker.replication.controller.sync_state_set import SyncStateSet
from wheelmq.broker.replication.replication import MasterAddress, Replication
from wheelmq.broker.replication.role import Role

log = logging.getLogger(__name__)


class ControllerDecision(NamedTuple):
    """The state of a broker name at the controller."""

    master_id: int | None
    """None while there is no master."""
    address: str
    epoch: int
    """The number of the last election."""
    members: frozenset[int]
    """The replicas in sync."""
    set_epoch: int


class Effect(Enum):
    """The effect of a decision on this broker."""

    NOTHING = "nothing"
    FOLLOWS = "the broker follows the master"
    LEADS = "the broker is the master"
    STEPS_DOWN = "the broker must start again as a slave"
    NEEDS_ELECTION = "the broker needs another election"
    """There is no master, or this broker is one by an election before its start. Its log may have lost bytes since
    that election, so it must not continue the same epoch."""


class Elections:
    """The role of this broker as the controller decides it."""

    def __init__(
        self, role: Role, replication: Replication, in_sync: SyncStateSet, membership: SyncStateChanges
    ) -> None:
        self._role = role
        self._replication = replication
        self._in_sync = in_sync
        self.membership = membership
        self.epoch = -1
        """The last election that the broker knows; -1 before the first one."""
        self.term = -1
        """The election in which this broker became the master; -1 if it is none."""
        self._master: MasterAddress | None = None
        self._on_notice: Callable[[], None] | None = None

    @property
    def own_id(self) -> int:
        """The id that the controller assigned; 0 before that."""
        return self._in_sync.own_id

    @property
    def set_epoch(self) -> int:
        return self._in_sync.epoch

    def masters(self) -> list[MasterAddress]:
        """Return the address of the master that this broker follows, if there is one.

        Its HA port is known only to itself.
        """
        return [] if self._master is None else [self._master]

    def listen(self, on_notice: Callable[[], None]) -> None:
        """Call `on_notice` for each notice of the controller from now on."""
        self._on_notice = on_notice

    def note_notice(self) -> None:
        """Take a notice of a role change. The shell then asks the controller, because anyone can send a notice."""
        if self._on_notice is not None:
            self._on_notice()

    def take_id(self, own_id: int) -> None:
        """Take the id that the controller assigned."""
        self._in_sync.take_id(own_id)
        self._role.take_id(own_id)

    def take(self, decision: ControllerDecision) -> Effect:
        """Follow a decision. Raises OSError."""
        if decision.master_id is None:
            return Effect.NEEDS_ELECTION
        if decision.epoch < self.epoch:
            return Effect.NOTHING
        self.epoch = decision.epoch
        if decision.master_id != self.own_id:
            return self._follow(decision)
        if self._role.is_master and decision.epoch == self.term:
            self.membership.take(decision.members, decision.set_epoch)
            return Effect.NOTHING
        if not self._replication.may_begin(decision.epoch):
            return Effect.NEEDS_ELECTION
        self._lead(decision)
        return Effect.LEADS

    def _follow(self, decision: ControllerDecision) -> Effect:
        if self._role.is_master:
            self.term = -1
            log.warning("the controller elected the broker %s at %s", decision.master_id, decision.address)
            self._replication.step_down(decision.address)
            return Effect.STEPS_DOWN
        address = MasterAddress(decision.address, "")
        if address == self._master:
            return Effect.NOTHING
        self._master = address
        log.warning("the master is the broker %s at %s since election %d", *decision[:3])
        return Effect.FOLLOWS

    def _lead(self, decision: ControllerDecision) -> None:
        self._master = None
        self.membership.begin(decision.members, decision.set_epoch)
        if self._role.is_master:
            self._replication.begin_epoch(decision.epoch)
        else:
            self._replication.promote(f"election {decision.epoch} of the controller", decision.epoch)
        self.term = decision.epoch
