"""One broker of the query groups: its lease, the plan that waits for a batch, and its failures in a row.

All methods run on the event loop of the groups. A member never waits for another one.

A turn that fails is made again in a later batch. After STRIKES_MAX failures in a row the member is slow, and moves to
the slow group (`groups`), where only slow members wait for each other. There it rests after each failure, for a time
that doubles. One turn moves it back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from wheelmq.delay.timer.turns import TurnPlan
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.spark.broker_turns import RENEW_S, RETRY_S, Say, WaitingReport
from wheelmq.spark.ranges import rows_of
from wheelmq.system.failpoint import reach

log = logging.getLogger(__name__)

PLAN_MS: Final = 1000
"""Time for which the broker holds the request for a plan."""
ANSWER_S: Final = 5.0
"""Time limit for the answer to a request."""
STRIKES_MAX: Final = 2
"""Failed turns in a row after which a member is slow."""
REST_S: Final = 1.0
"""Rest of a slow member after a failed turn. It doubles with each failure."""
REST_DOUBLINGS_MAX: Final = 6
STALE: Final = ResponseCode.INVALID_PARAMETER
"""The code of an answer to a request of a lease that is over."""

INT64_MAX: Final = (1 << 63) - 1

MALFORMED: Final = (msgspec.DecodeError, KeyError, TypeError, ValueError)
"""The errors for an answer of a broker of another version. They affect no other broker."""

_numbers: Final = itertools.count(1)
"""The numbers of leases. No two leases of this process share one, so no row of a task belongs to another lease."""


class BrokerCaller(Protocol):
    """A connection to the broker."""

    async def call(self, command: Command, timeout_s: float = ...) -> Command:
        """Return the answer, with any code. Raises CallError."""
        ...

    async def close(self) -> None: ...


class Lease(NamedTuple):
    number: int
    epoch: int
    token: str
    terms: dict[str, Any]
    """The broker's answer, without the token."""


class Turning(NamedTuple):
    """The part of a batch that is the turn of one member."""

    member: BrokerMember
    lease: Lease
    plan: dict[str, Any]


class BrokerMember:
    def __init__(
        self,
        broker: str,
        caller: BrokerCaller,
        say: Say,
        *,
        name: str,
        holder_id: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker = broker
        self.lease: Lease | None = None
        self.plan: dict[str, Any] | None = None
        """The plan that waits for a batch."""
        self.turning: Turning | None = None
        """The turn that a batch makes now. Another group makes no turn of this member meanwhile."""
        self.is_slow = False
        self.has_turned = False
        self.answered_s = now_s()
        """Time of the broker's last answer."""
        self.progressed_s = 0.0
        """Time of the last request for the lease's turns, as the broker last reported it."""
        self._caller = caller
        self._say = say
        self._name = name
        self._holder_id = holder_id
        """Secret: a holder with this id may open the lease again before it lapses."""
        self._now_s = now_s
        self._strikes = 0
        self._rests_until_s = 0.0
        self._renewed_s = 0.0
        self._next_try_s = 0.0
        self._next_ask_s = 0.0
        self._is_asking = False
        self._waiting = WaitingReport(broker, say)
        self.changed: Callable[[], None] = lambda: None
        """Called when the member has a lease, becomes slow, or stops being slow."""

    # The lease -----------------------------------------------------------------------------------------------------

    async def maintain(self) -> float:
        """Open the lease if there is none, or renew it if no request has renewed it. Returns the seconds to wait."""
        now_s = self._now_s()
        if self.lease is None:
            if now_s >= self._next_try_s:
                await self._open(now_s)
            return RETRY_S
        left_s = self._renewed_s + RENEW_S - now_s
        if left_s > 0:
            return left_s
        lease = self.lease
        try:
            answer = await self._ask(RequestCode.WMQ_PIPELINE_RENEW, lease)
        except Refused as problem:
            self._end(lease, f"stopped: {problem}")
            return 0.0
        except CallError as problem:
            log.info("the renewal of the lease failed: %s", problem)
            return RETRY_S
        try:
            self.progressed_s = self._now_s() - int(answer.ext.get("quietMs", "0")) / 1000.0
        except ValueError as problem:
            log.info("the answer to the renewal is malformed: %s", problem)
        return RENEW_S

    async def _open(self, now_s: float) -> None:
        ext = headers.texts(name=self._name, holderId=self._holder_id)
        try:
            answer = await self._call(Command(code=RequestCode.WMQ_PIPELINE_OPEN, ext=ext), ANSWER_S)
            terms: dict[str, Any] = msgspec.json.decode(answer.body)
            lease = Lease(next(_numbers), int(terms["epoch"]), str(terms.pop("token")), _checked(terms))
        except (CallError, Refused, *MALFORMED) as problem:
            self._next_try_s = self._now_s() + RETRY_S
            self._waiting.report(problem)
            return
        self._waiting.end()
        self._renewed_s = self.progressed_s = now_s
        reach("driver.opened")
        self.plan, self._next_ask_s = None, 0.0
        self.lease = lease
        self._say("turning", broker=self.broker, epoch=lease.epoch)
        self.changed()

    def end_lease(self, why: str) -> None:
        """Forget the lease, so that `maintain` opens another one, under which late tasks are rejected."""
        if self.lease is not None:
            self._end(self.lease, f"stopped: {why}")

    def _end(self, lease: Lease, why: str) -> None:
        if lease is self.lease:
            self.lease = self.plan = self.turning = None
            self._say("query ended", broker=self.broker, epoch=lease.epoch, why=why)

    # Plans ---------------------------------------------------------------------------------------------------------

    def can_turn(self) -> bool:
        return self.plan is not None and self.lease is not None and not self._rests()

    def wants_plan(self) -> bool:
        """Return whether a request for a plan makes sense now."""
        is_free = self.lease is not None and self.plan is None and self.turning is None and not self._is_asking
        return is_free and not self._rests() and self._now_s() >= self._next_ask_s

    def _rests(self) -> bool:
        return self._now_s() < self._rests_until_s

    async def ask_plan(self) -> None:
        """Request a plan, and keep it for a batch. The broker answers within a second."""
        lease = self.lease
        if lease is None or self._is_asking:
            return
        self._is_asking = True
        try:
            answer = await self._ask(RequestCode.WMQ_PIPELINE_PLAN, lease, timeoutMs=PLAN_MS)
        except Refused as problem:
            if problem.code != ResponseCode.PULL_NOT_FOUND:
                self._end(lease, f"stopped: {problem}")
        except CallError as problem:
            self._next_ask_s = self._now_s() + RETRY_S
            log.info("no plan: %s", problem)
        else:
            if lease is self.lease:
                self._take_answer(lease, answer)
        finally:
            self._is_asking = False

    def _take_answer(self, lease: Lease, answer: Command) -> None:
        try:
            plan = _checked_plan(msgspec.json.decode(answer.body))
        except MALFORMED as problem:
            self._next_try_s = self._now_s() + RETRY_S
            self._end(lease, f"the plan is malformed: {type(problem).__name__}: {problem}")
        else:
            self.plan = plan

    def take_plan(self) -> Turning:
        """Return the turn for the plan that waits."""
        assert self.lease is not None and self.plan is not None
        self.turning = Turning(self, self.lease, self.plan)
        self.plan = None
        return self.turning

    def end_turn(self, turning: Turning) -> None:
        """Note that a batch does not make this turn any more."""
        if self.turning is turning:
            self.turning = None

    # Turns ---------------------------------------------------------------------------------------------------------

    async def commit(self, turning: Turning, winners: Sequence[dict[str, Any]], timeout_s: float) -> None:
        """Request the commit of a turn. Notes its success, and raises CallError, Refused."""
        turn = turning.plan["turn"]
        await self._ask(
            RequestCode.WMQ_PIPELINE_COMMIT,
            turning.lease,
            body=msgspec.json.encode(winners),
            timeout_s=timeout_s,
            turn=turn,
        )
        reach("driver.committed")
        self.end_turn(turning)
        self.has_turned, self._strikes, self._rests_until_s = True, 0, 0.0
        if self.is_slow:
            self.is_slow = False
            self.changed()
        log.info(
            "%s: turn %d: %d rows in %d parts", self.broker, turn, sum(one["rows"] for one in winners), len(winners)
        )

    def note_failure(self, turning: Turning, problem: Exception | str) -> None:
        """Note that a turn failed. A lease that is over ends, and is no failure of the broker."""
        self.end_turn(turning)
        if (isinstance(problem, Refused) and problem.code == STALE) or _is_stale(problem):
            self._end(turning.lease, f"stopped: {problem}")
            return
        self._strikes += 1
        log.warning("%s: turn %d failed (%d in a row): %s", self.broker, turning.plan["turn"], self._strikes, problem)
        if self._strikes < STRIKES_MAX:
            return
        self._end(turning.lease, f"stopped: {problem}")
        doublings = min(self._strikes - STRIKES_MAX, REST_DOUBLINGS_MAX)
        self._rests_until_s = self._now_s() + REST_S * (1 << doublings)
        if not self.is_slow:
            self.is_slow = True
            self.changed()

    async def is_under_way(self, turning: Turning, timeout_s: float) -> bool:
        """Return whether the broker answers in time, and still waits for this turn."""
        try:
            answer = await self._ask(RequestCode.WMQ_PIPELINE_PLAN, turning.lease, timeout_s=timeout_s, timeoutMs=0)
        except (CallError, Refused) as problem:
            log.info("no answer about the turn that failed: %s", problem)
            return False
        try:
            return bool(msgspec.json.decode(answer.body) == turning.plan)
        except MALFORMED as problem:
            log.info("a malformed answer about the turn that failed: %s", problem)
            return False

    async def close(self) -> None:
        await self._caller.close()

    async def _ask(
        self, code: RequestCode, lease: Lease, *, body: bytes = b"", timeout_s: float = ANSWER_S, **fields: object
    ) -> Command:
        """Send a request of a lease. Raises CallError, and Refused for any code but SUCCESS."""
        ext = headers.texts(epoch=lease.epoch, token=lease.token, **fields)
        try:
            answer = await self._call(Command(code=code, ext=ext, body=body), timeout_s)
        except Refused as refused:
            if refused.code == ResponseCode.PULL_NOT_FOUND:
                self._renewed_s = self._now_s()
            raise
        self._renewed_s = self._now_s()
        return answer

    async def _call(self, command: Command, timeout_s: float) -> Command:
        answer = await self._caller.call(command, timeout_s)
        self.answered_s = self._now_s()
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return answer


def _checked(terms: dict[str, Any]) -> dict[str, Any]:
    """Return the terms of a lease. Raises one of MALFORMED if the driver cannot use them."""
    precision_ms, window_ms = int(terms["precision_ms"]), int(terms["roll_window_slots"]) * int(terms["precision_ms"])
    if precision_ms <= 0 or not 0 <= window_ms <= INT64_MAX:
        raise ValueError(f"a precision of {precision_ms} ms, and a roll window of {window_ms} ms")
    return terms


def _checked_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan. Raises one of MALFORMED if it lacks a field, or has a wrong one."""
    found = msgspec.convert(plan, TurnPlan)
    if not 0 <= found.turn <= INT64_MAX:
        raise ValueError(f"the turn {found.turn}")
    rows_of(plan)
    return plan


def _is_stale(problem: Exception | str) -> bool:
    """Return whether a task reports that its lease is over."""
    return "STALE: " in str(problem)


async def keep_lease(member: BrokerMember) -> None:
    """Maintain the lease of a member until the task is cancelled."""
    while True:
        await asyncio.sleep(await member.maintain())
