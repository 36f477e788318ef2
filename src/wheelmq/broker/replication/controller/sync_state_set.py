"""The replicas in sync: the brokers of a name of which a controller may elect one as the master.

A master acknowledges a message once each of them has it. So an elected master never lacks an acknowledged message. A
change of the set is requested from the controller. Until its answer comes, the replicas of both sets count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NO_IDS: Final[frozenset[int]] = frozenset()
UNKNOWN: Final = -1


class SyncStateSet:
    """The set as the controller has stored it, and the changes of it that are in progress."""

    def __init__(self) -> None:
        self.own_id = 0
        """The id that the controller assigned to this broker; 0 before that."""
        self.members = NO_IDS
        """The replicas in sync, this broker among them."""
        self.epoch = UNKNOWN
        """The number of the set at the controller. It grows with each change and each election."""
        self.others = NO_IDS
        """The replicas that must have a message before it is acknowledged."""
        self._requested = NO_IDS
        self._joining = NO_IDS

    @property
    def requested(self) -> frozenset[int] | None:
        """The set that was requested and has no answer; None without one."""
        return self._requested or None

    def take_id(self, own_id: int) -> None:
        """Take the id that the controller assigned."""
        self.own_id = own_id
        self._count()

    def join(self, joining: Iterable[int]) -> None:
        """Let later messages wait for these replicas too, which will be in sync once they have the earlier ones."""
        self._joining = frozenset(joining)
        self._count()

    def request(self, members: frozenset[int]) -> None:
        """Note that the controller is asked for `members`."""
        assert self._requested in (NO_IDS, members), "one request at a time"
        self._requested = members
        self._count()

    def reject(self) -> None:
        """Note that the controller has rejected the request. No replica joins now."""
        self._requested = self._joining = NO_IDS
        self._count()

    def take(self, members: Iterable[int], epoch: int) -> bool:
        """Take the set of the controller. Returns False for one that is older than the known one."""
        if epoch <= self.epoch:
            return False
        self.members, self.epoch = frozenset(members), epoch
        self._requested = NO_IDS
        self._count()
        return True

    def end(self) -> None:
        """Forget the changes in progress, because an election has begun another set."""
        self._requested = self._joining = NO_IDS
        self._count()

    def _count(self) -> None:
        self.others = (self.members | self._requested | self._joining) - {self.own_id}
