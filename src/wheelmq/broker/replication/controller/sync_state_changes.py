"""A master decides which of its replicas are in sync. Times are monotonic milliseconds.

A replica joins in two steps. First, later messages wait for it. Once it also has all messages that were acknowledged
without it, the controller is asked to add it. A replica leaves when its connection ends, or when it does not catch up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from wheelmq.broker.replication.block_source import BlockSource
from wheelmq.broker.replication.controller.settings import ControllerSettings
from wheelmq.broker.replication.controller.sync_state_set import SyncStateSet
from wheelmq.broker.replication.replicas import Replicas
from wheelmq.formats.units import LogPosition
from wheelmq.store.commit_log import CommitLog
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

JOIN_BYTES_MAX: Final = 4 << 20
"""A replica that lacks more bytes does not join yet: the messages of clients would wait for it too long."""
JOIN_MS_MAX: Final = 2000
"""Time for a replica to get the messages that were acknowledged without it. Then it must try again."""
RETRY_MS: Final = 1000


class _Joining(NamedTuple):
    position: LogPosition
    blocks: dict[int, int]
    """Units that the replica must have, by block number."""
    began_ms: int


class _Mark(NamedTuple):
    """A past end of the log. A replica that reaches it was caught up at that time."""

    end: LogPosition
    at_ms: int
    caught_up_ms: int


class SyncStateChanges:
    """The changes of the replicas in sync of one master."""

    def __init__(
        self,
        in_sync: SyncStateSet,
        replicas: Replicas,
        block_source: BlockSource,
        commit_log: CommitLog,
        settings: ControllerSettings,
        clock: Clock,
    ) -> None:
        self._in_sync = in_sync
        self._replicas = replicas
        self._block_source = block_source
        self._commit_log = commit_log
        self._settings = settings
        self._clock = clock
        self._joining: dict[int, _Joining] = {}
        self._marks: dict[int, _Mark] = {}
        self._retry_ms: dict[int, int] = {}

    def wanted(self) -> frozenset[int] | None:
        """Return the set to request from the controller, or None if the present one is right.

        A request without an answer is made again. Its set may be in force.
        """
        in_sync, now_ms = self._in_sync, self._clock.monotonic_ms()
        if in_sync.requested is not None:
            return in_sync.requested
        ends = self._replicas.ends_by_id()
        self._start_joins(ends, now_ms)
        joined = {one for one, target in self._joining.items() if self._has_reached(one, target, ends)}
        left = {one for one in in_sync.members - {in_sync.own_id} if not self._keeps_up(one, ends, now_ms)}
        members = frozenset(in_sync.members - left | joined)
        return None if members == in_sync.members else members

    def request(self, members: frozenset[int]) -> None:
        """Note a request for `members`. Their acknowledgements count from now on."""
        self._change(lambda: self._in_sync.request(members))

    def reject(self) -> None:
        """Note that the controller has rejected the request. The replicas try again later."""
        now_ms = self._clock.monotonic_ms()
        self._retry_ms.update(dict.fromkeys(self._joining, now_ms + RETRY_MS))
        self._joining.clear()
        self._change(self._in_sync.reject)

    def take(self, members: frozenset[int], epoch: int) -> bool:
        """Take the set of the controller, if it is a later one. Returns whether it is."""
        if epoch <= self._in_sync.epoch:
            return False
        for one in members:
            self._joining.pop(one, None)
        self._change(lambda: self._in_sync.take(members, epoch))
        log.info("the replicas in sync are %s", sorted(members))
        return True

    def begin(self, members: frozenset[int], epoch: int) -> None:
        """Begin with the set of an election."""
        self._joining.clear()
        self._marks.clear()
        self._in_sync.end()
        self.take(members, epoch)

    # Checks --------------------------------------------------------------------------------------------------------

    def _start_joins(self, ends: dict[int, LogPosition], now_ms: int) -> None:
        """Let replicas join that have nearly the whole log, and give up on those that take too long."""
        for one, target in list(self._joining.items()):
            if one not in ends or now_ms - target.began_ms > JOIN_MS_MAX:
                del self._joining[one]
                self._retry_ms[one] = now_ms + RETRY_MS
        for one, end in ends.items():
            is_known = one in self._in_sync.members or one in self._joining
            is_near = self._commit_log.end - end <= JOIN_BYTES_MAX
            if not is_known and is_near and now_ms >= self._retry_ms.get(one, now_ms):
                self._joining[one] = _Joining(self._replicas.confirmed, self._block_source.ends(), now_ms)
        self._change(lambda: self._in_sync.join(self._joining))

    def _has_reached(self, one: int, target: _Joining, ends: dict[int, LogPosition]) -> bool:
        return ends.get(one, -1) >= target.position and self._block_source.has_reached(one, target.blocks)

    def _keeps_up(self, one: int, ends: dict[int, LogPosition], now_ms: int) -> bool:
        """Return whether a replica in sync stays in it."""
        end = ends.get(one)
        if end is None or end < self._replicas.confirmed:
            self._marks.pop(one, None)
            return False
        mark = self._marks.get(one) or _Mark(end, now_ms, now_ms)
        if end >= mark.end and self._block_source.is_copied_by(one):
            mark = _Mark(self._commit_log.end, now_ms, mark.at_ms)
        self._marks[one] = mark
        return now_ms - mark.caught_up_ms <= self._settings.catch_up_ms_max

    def _change(self, change: Callable[[], object]) -> None:
        """Change the set. Messages that are acknowledged by the old one stay acknowledged."""
        before = self._in_sync.others
        self._replicas.note_confirmed()
        change()
        if self._in_sync.others != before:
            self._replicas.note_acks()
