"""The operator of a cluster: promotes slaves, as `wheelmq promote` does, and keeps the rules of docs/testing.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.replication_state import ReplicationState
from wheelmq.testing.cluster.member import Member

CATCH_UP_MS: Final = 10_000
POLL_MS: Final = 20


class Rejected(Exception):
    """A broker rejected a request of the operator. The text is its answer."""


def ask(member: Member, code: RequestCode, **fields: object) -> Command:
    """Send a request of the operator to a broker that serves, and return its answer. Raises Rejected."""
    member.note_action()
    answer = member.harness.submit(Command(code=code, ext=headers.texts(**fields)))
    member.harness.tick()
    found = answer.answer
    if found is None or found.code != ResponseCode.SUCCESS:
        raise Rejected("no answer" if found is None else f"{found.code} {found.remark}")
    return found


def state_of(member: Member) -> ReplicationState:
    """Return the state of a broker's replication. Raises Rejected."""
    return msgspec.json.decode(ask(member, RequestCode.WMQ_REPLICATION_STATE).body, type=ReplicationState)


class Operator:
    """Knows the master that clients should use, and which slaves have all that it has acknowledged."""

    def __init__(self, members: Sequence[Member], in_sync: int, advance: Callable[[int], None]) -> None:
        """Create the operator. `advance` lets a number of milliseconds pass."""
        self._members = members
        self._in_sync = in_sync
        self._advance = advance
        self.master = members[0]
        """The broker whose log is the history."""
        self._complete: dict[int, None] = {}
        """Numbers of the slaves that have had all of the master since their last loss."""

    # Slaves --------------------------------------------------------------------------------------------------------

    def note_loss(self, member: Member) -> None:
        """Note that a machine has lost written bytes. It must follow its master before it is promoted."""
        self._complete.pop(member.number, None)

    def note_complete(self) -> None:
        """Note the slaves that have all records and blocks of the master now."""
        master = self.master
        if not master.is_master:
            return
        lacking: dict[int, int] | None = None
        for member in self._slaves():
            if member.number in self._complete or member.parts.store.log.end != master.parts.store.log.end:
                continue
            link = member.parts.replication.link
            if link is None or link.agreed_epoch != master.parts.replication.epoch:
                continue
            lacking = master.parts.replication.block_source.lacks() if lacking is None else lacking
            if lacking.get(member.parts.role.broker_id) == 0:
                self._complete[member.number] = None

    def _slaves(self) -> list[Member]:
        return [one for one in self._members if one is not self.master and one.is_open and not one.parts.role.is_master]

    def recheck(self) -> None:
        """Forget which slaves were complete before."""
        self._complete = {}

    def others_are_complete(self, member: Member) -> bool:
        """Return whether the cluster loses nothing if it loses the disk of `member`."""
        others = [one for one in self._members if one is not member and one is not self.master]
        return all(self.is_complete(one) for one in others) and (member is not self.master or bool(others))

    def is_complete(self, member: Member) -> bool:
        return member.number in self._complete

    def all_are_complete(self) -> bool:
        return len(self._complete) == len(self._members) - 1

    def candidate(self) -> Member | None:
        """Return the slave to promote: the one with the longest log. None if one that has more may come back.

        It has all acknowledged messages. If fewer brokers than all must have a message, each slave must be asked.
        """
        slaves = [one for one in self._slaves() if self.is_complete(one)]
        if not slaves or (self._in_sync < len(self._members) and len(slaves) < len(self._members) - 1):
            return None
        return max(slaves, key=_length)

    def longest(self) -> Member | None:
        """Return the slave with the longest log, also if it may have lost messages."""
        return max(self._slaves(), key=_length, default=None)

    # Promotions ----------------------------------------------------------------------------------------------------

    def fail_over(self, slave: Member) -> None:
        """Promote a slave without the master, as with --force. Raises Rejected."""
        ask(slave, RequestCode.WMQ_PROMOTE, leastLogEnd=0)
        self.replaced_by(slave)

    def switch(self, slave: Member) -> bool:
        """Let the master hand over, and promote a slave. Returns False if it does not catch up. Raises Rejected."""
        master = self.master
        end = int(ask(master, RequestCode.WMQ_HAND_OVER, successor=slave.address).ext["logEnd"])
        for _ in range(CATCH_UP_MS // POLL_MS):
            if not (slave.is_open and master.is_open):
                return False
            if self._has_all(slave, end):
                ask(slave, RequestCode.WMQ_PROMOTE, leastLogEnd=end)
                self.replaced_by(slave)
                return True
            self._advance(POLL_MS)
        return False

    def _has_all(self, slave: Member, end: int) -> bool:
        own, theirs = state_of(slave), state_of(self.master)
        lacking = theirs.lacking.get(str(own.broker_id))
        return own.log_end >= end and (lacking == 0 or (lacking is None and not theirs.has_blocks))

    def replaced_by(self, slave: Member) -> None:
        """Take a promoted slave for the master."""
        self.master = slave
        self._complete = {}

    def free_id(self, member: Member) -> int:
        """Return an id that no other member has, for a machine with an empty disk."""
        taken = {one.broker_id for one in self._members if one is not member}
        return next(number for number in range(1, len(self._members) + 1) if number not in taken)


def _length(member: Member) -> tuple[int, int]:
    """Return epoch and end of a log, by which logs are compared."""
    return member.parts.replication.epoch, member.parts.store.log.end
