"""The batches of one query group: collect the plans of its members, and commit their turns.

A batch has the turns of all members whose plan came in time. It waits for no other member. All methods run on the
event loop of the groups.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wheelmq.net.errors import CallError, Refused
from wheelmq.spark.member import BrokerMember, Turning
from wheelmq.spark.ranges import rows_of
from wheelmq.system.backports import timeout

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0
"""Time for which the planner's request for a batch waits."""
GATHER_S: Final = 0.2
"""Time for which a batch waits for more plans, after the first one."""
PERIOD_S: Final = 1.0
"""Least time between the starts of two batches. It is the pace of turns, so brokers soon share their batches."""
BATCH_ROWS_MAX: Final = 300_000
"""Rows of a batch after which it takes no other plan. A plan may have more rows."""

_sequences: Final = itertools.count(1)


class TurnBatch(NamedTuple):
    sequence: int
    turns: Mapping[int, Turning]
    """By the number of the lease."""

    def offset(self) -> dict[str, Any]:
        """Return the end offset of the micro-batch. It has no secret, because Spark shows it."""
        plans = {turning.member.broker: turning.plan for turning in self.turns.values()}
        return {"sequence": self.sequence, "plans": dict(sorted(plans.items()))}


class QueryGroup:
    def __init__(
        self, *, wait_s: float, members_max: int | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`wait_s` limits the wait of a task, and of a commit, for its broker. `members_max` limits a batch."""
        self.wait_s = wait_s
        self.members: dict[str, BrokerMember] = {}
        self.batch: TurnBatch | None = None
        """The last batch. Its turns are made until it is committed."""
        self.has_turned = False
        """Whether the present query has committed a turn."""
        self.is_up = False
        """Whether the planner of the present query has requested a batch."""
        self.came_up: Callable[[], None] = lambda: None
        """Called when `is_up` becomes true or false."""
        self._members_max = members_max
        self._now_s = now_s
        self._progressed_s = now_s()
        self._began_s = -PERIOD_S
        self._ended = 0
        """Number of queries that ended. Their planners may still wait for a batch."""
        self._news = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()

    def add(self, member: BrokerMember) -> None:
        self.members[member.broker] = member
        self._news.set()

    def remove(self, broker: str) -> None:
        self.members.pop(broker, None)

    def wake(self) -> None:
        self._news.set()

    def note_progress(self) -> None:
        """Note that the query works, or that it starts."""
        self._progressed_s = self._now_s()

    def quiet_s(self) -> float:
        """Return the time without a request of the planner, a commit, or a request of a task of the batch."""
        times_s = [self._progressed_s]
        if self.batch is not None:
            times_s += [turning.member.progressed_s for turning in self.batch.turns.values()]
        return self._now_s() - max(times_s)

    # The planner ---------------------------------------------------------------------------------------------------

    async def next_batch(self) -> TurnBatch | None:
        """Return the next batch, or None if no plan came within ASKED_S."""
        self.note_progress()
        self._end_turns()  # a planner that asks again has dropped its last batch
        self._set_up(True)
        deadline_s = self._now_s() + ASKED_S
        first_s: float | None = None
        ended = self._ended
        while ended == self._ended:
            self._news.clear()
            self._ask_for_plans()
            ready = [member for member in self.members.values() if member.can_turn()]
            now_s = self._now_s()
            if ready and first_s is None:
                first_s = now_s
            begin_s = max(now_s if first_s is None else first_s + GATHER_S, self._began_s + PERIOD_S)
            is_whole = len(ready) == len(self.members) or len(ready) == self._members_max
            if ready and (now_s >= begin_s or (is_whole and now_s >= self._began_s + PERIOD_S)):
                return self._begin(ready)
            if not ready and now_s >= deadline_s:
                return None
            until_s = begin_s if ready else deadline_s
            with contextlib.suppress(TimeoutError):
                async with timeout(max(0.0, until_s - now_s)):
                    await self._news.wait()
        return None

    def _begin(self, ready: Sequence[BrokerMember]) -> TurnBatch:
        """Return a batch of the members that are ready, with those first that turned least recently."""
        turns: dict[int, Turning] = {}
        rows = 0
        for member in ready[: self._members_max]:
            assert member.plan is not None
            rows += rows_of(member.plan)
            if turns and rows > BATCH_ROWS_MAX:
                break
            turning = member.take_plan()
            turns[turning.lease.number] = turning
            self.members[member.broker] = self.members.pop(member.broker)  # it is the last one of the next batch
        is_rest = len(turns) < len(ready)
        self._began_s = self._now_s() - (PERIOD_S if is_rest else 0.0)
        self.batch = TurnBatch(next(_sequences), turns)
        self.note_progress()
        return self.batch

    def _ask_for_plans(self) -> None:
        for member in self.members.values():
            if member.wants_plan():
                task = asyncio.ensure_future(member.ask_plan())
                self._asking.add(task)
                task.add_done_callback(self._asked)

    def _asked(self, asking: asyncio.Task[None]) -> None:
        self._asking.discard(asking)
        self._news.set()

    # The driver ----------------------------------------------------------------------------------------------------

    async def commit(self, sequence: int, summaries: Sequence[Mapping[str, Any]]) -> None:
        """Commit the turns of the batch, each by itself. The failure of one is noted, and affects no other."""
        batch = self.batch
        if batch is None or not self._makes(sequence):
            return
        self.note_progress()
        of_lease: dict[int, list[Mapping[str, Any]]] = {number: [] for number in batch.turns}
        for one in summaries:
            if one["member"] in of_lease:
                of_lease[one["member"]].append(one)
        await asyncio.gather(*(self._try(sequence, batch.turns[number], found) for number, found in of_lease.items()))
        self.finish(sequence)

    async def _try(self, sequence: int, turning: Turning, summaries: Sequence[Mapping[str, Any]]) -> None:
        try:
            await self.commit_turn(sequence, turning, summaries)
        except (CallError, Refused) as error:
            self.note_failure(sequence, turning, error)

    async def commit_turn(self, sequence: int, turning: Turning, summaries: Sequence[Mapping[str, Any]]) -> None:
        """Commit one turn of a batch. Raises Refused, CallError, also if a task has a problem or the batch is over."""
        if not self._makes(sequence):
            raise CallError(f"batch {sequence} belongs to a query that was stopped")
        problem = next((str(one["problem"]) for one in summaries if one["problem"] is not None), None)
        if problem is not None:
            raise CallError(problem)
        winners = [{name: one[name] for name in _WINNER} for one in summaries]
        try:
            async with timeout(self.wait_s):
                await turning.member.commit(turning, winners, self.wait_s)
        except TimeoutError:
            raise CallError(f"no answer to the commit within {self.wait_s:g} s") from None
        self.has_turned = self.has_turned or self._makes(sequence)

    def note_failure(self, sequence: int, turning: Turning, problem: Exception) -> None:
        """Note that a turn of the batch failed. The end of a query has noted that for all its turns."""
        if self._makes(sequence):
            turning.member.note_failure(turning, problem)

    def finish(self, sequence: int) -> None:
        """Note that all turns of the batch were made, or have failed."""
        if self._makes(sequence):
            self._end_turns()
            self.batch = None
            self.note_progress()

    def _makes(self, sequence: int) -> bool:
        """Return whether the batch is the present one. Otherwise its query was stopped."""
        if self.batch is not None and self.batch.sequence == sequence:
            return True
        log.warning("batch %d belongs to a query that was stopped", sequence)
        return False

    def _end_turns(self) -> None:
        for turning in () if self.batch is None else self.batch.turns.values():
            turning.member.end_turn(turning)

    def fail(self, why: str) -> None:
        """Note that the query ended during the batch. Each turn of it counts as failed, because one may be the cause.

        End the leases of all members, so that no late task of the query has an effect.
        """
        members = list(self.members.values())
        for turning in () if self.batch is None else self.batch.turns.values():
            turning.member.note_failure(turning, why)
            members.append(turning.member)
        for member in members:
            member.end_lease(why)
        self.batch, self.has_turned = None, False
        self._ended += 1
        self._set_up(False)
        self._news.set()

    def _set_up(self, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up = is_up
            self.came_up()


_WINNER: Final = ("turn", "kind", "part", "attempt", "chunks", "rows", "crc")
