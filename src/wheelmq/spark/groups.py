"""Query groups: many brokers share a few queries.

    member       a broker: its lease, its plan, its failures (`member`)
    group        the batches of its members (`query_group`)
    query        one for each group, kept running by a thread (`group_query`)
    slow group   one group more, for members whose turns failed repeatedly. Its batches have one turn each

One event loop in a thread of its own serves all members and groups, so the brokers cost neither threads nor processes.

A cold JVM needs less processor time for one query than for eight at once. So the first query starts alone, and serves
all brokers. After its first turn, the others start one after the other, and each takes its members over. If the query
of a group ends, its members turn with another group until it is up again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from wheelmq.formats.wire.frame import Command
from wheelmq.net.rpc_client import RpcClient
from wheelmq.spark.broker_turns import Say
from wheelmq.spark.group_channel import ChannelServer
from wheelmq.spark.group_query import GroupQueries, GroupTurns
from wheelmq.spark.group_ranges import parts_of
from wheelmq.spark.group_source import group_source
from wheelmq.spark.member import BrokerMember, keep_lease
from wheelmq.spark.query_group import QueryGroup
from wheelmq.spark.ranges import parallelism_of
from wheelmq.spark.staged_turn import StageTrial
from wheelmq.system.tls_client import TlsOptions, client_tls

log = logging.getLogger(__name__)

WAIT_S: Final = 3.0
"""Time that a task, and a commit, wait for a broker. It is also the longest time for which a broker holds its group."""
SLOW_WAIT_S: Final = 30.0
"""The same in the slow group."""
CLOSE_S: Final = 5.0

R = TypeVar("R")


class GroupBroker:
    """A broker that is served by a group."""

    def __init__(self, member: BrokerMember, groups: QueryGroups) -> None:
        self._member = member
        self._groups = groups

    @property
    def has_turned(self) -> bool:
        return self._member.has_turned

    @property
    def failure(self) -> BaseException | None:
        return self._groups.failure

    @property
    def answered_s(self) -> float:
        return self._member.answered_s

    def stop(self) -> None:
        self._groups.remove(self._member.broker)

    def join(self, deadline_s: float) -> None:
        """Return at once: the groups end together (`QueryGroups.stop`)."""


class QueryGroups:
    """The groups of one application. `number` returns the next number of a source."""

    def __init__(
        self,
        session: SparkSession,
        say: Say,
        count: int,
        *,
        name: str,
        holder_id: str,
        over_the_wire: bool,
        tls: TlsOptions | None,
        sign: Callable[[Command], None] | None,
        trial_of: Callable[[str], StageTrial] | None,
        number: Callable[[], int],
    ) -> None:
        self._session = session
        self._say = say
        self._name = name
        self._holder_id = holder_id
        self._over_the_wire = over_the_wire
        self._tls = tls
        self._sign = sign
        self._trial_of = trial_of
        self._error: BaseException | None = None
        self._members: dict[str, tuple[BrokerMember, QueryGroup, asyncio.Task[None]]] = {}
        """For each broker: its member, its group unless it is slow, and the task that maintains its lease."""
        self._closing: set[asyncio.Future[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="query groups", daemon=True)
        self._thread.start()
        self._parallelism = parallelism_of(session.sparkContext.defaultParallelism, count)
        self._slow = QueryGroup(wait_s=SLOW_WAIT_S, members_max=1)
        self._groups = [QueryGroup(wait_s=WAIT_S) for _ in range(count)]
        self._channels: list[ChannelServer] = []
        titles = [*(f"timers of group {i + 1}" for i in range(count)), "timers of slow brokers"]
        self._turns = [
            self._begin(title, group, number())
            for title, group in zip(titles, [*self._groups, self._slow], strict=True)
        ]

    def _begin(self, title: str, group: QueryGroup, number: int) -> GroupTurns:
        channel = ChannelServer(lambda request: self._answer(group, request))
        self.on_loop(channel.start())
        self._channels.append(channel)
        source = group_source(number)
        self._session.dataSource.register(source)
        queries = GroupQueries(
            self._session,
            title,
            source.name(),
            str(channel.path),
            group,
            self.on_loop,
            tls=self._tls,
            trial_of=self._trial_of,
        )
        group.came_up = self._settle_all
        turns = GroupTurns(
            title,
            group,
            queries.start,
            self._call,
            is_wanted=lambda: self._is_wanted(group),
            has_turned=self._has_turned,
        )
        turns.start()
        return turns

    @property
    def failure(self) -> BaseException | None:
        """The error after which the whole driver must end."""
        if self._error is None:
            self._error = next((turns.failure for turns in self._turns if turns.failure is not None), None)
        return self._error

    def add(self, brokers: Sequence[str]) -> dict[str, GroupBroker]:
        """Begin to serve brokers. Each one joins the group with the fewest members."""
        return {broker: self._call(self._add, broker) for broker in brokers}

    def remove(self, broker: str) -> None:
        """Stop serving a broker. The groups and their queries continue."""
        self._call(self._remove, broker)

    def stop(self, deadline_s: float) -> None:
        """Stop all queries, then all connections. Returns after `deadline_s` at the latest, and CLOSE_S."""
        for turns in self._turns:
            turns.stop()
        ends_s = self._loop.time() + deadline_s
        for turns in self._turns:
            turns.join(max(0.0, ends_s - self._loop.time()))
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        try:
            closing.result(CLOSE_S)
        except concurrent.futures.TimeoutError:
            log.warning("the connections to the brokers did not close in time")
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def on_loop(self, work: Coroutine[Any, Any, R]) -> R:
        """Run work on the event loop, and return its result. No thread of the loop may call."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async def called() -> Any:
            return function(*arguments)

        return self.on_loop(called())

    # On the event loop ---------------------------------------------------------------------------------------------

    def _add(self, broker: str) -> GroupBroker:
        caller = RpcClient(broker, sign=self._sign, tls=client_tls(self._tls))
        member = BrokerMember(broker, caller, self._say, name=self._name, holder_id=self._holder_id)
        sizes = dict.fromkeys(self._groups, 0)
        for _, group, _ in self._members.values():
            sizes[group] += 1
        home = min(self._groups, key=lambda group: sizes[group])
        keeping = asyncio.ensure_future(keep_lease(member))
        keeping.add_done_callback(self._kept)
        self._members[broker] = (member, home, keeping)
        member.changed = lambda: self._settle(member, home)
        self._settle(member, home)
        return GroupBroker(member, self)

    def _is_wanted(self, group: QueryGroup) -> bool:
        """Return whether the query of a group may start now. A group without brokers of its own needs no query.

        A group waits for the first turn, and for the nearest group before it that has brokers of its own. The first one
        and the slow one wait for nothing.
        """
        if group is self._slow:
            return bool(group.members)
        homes = {id(home) for _, home, _ in self._members.values()}
        if id(group) not in homes:
            return False
        before = [one for one in self._groups[: self._groups.index(group)] if id(one) in homes]
        return not before or (self._has_turned() and before[-1].is_up)

    def _group_of(self, member: BrokerMember, home: QueryGroup) -> QueryGroup:
        """Return the group with which a member turns now: its own if that is up, and else another one."""
        if member.is_slow:
            return self._slow
        return home if home.is_up else next((group for group in self._groups if group.is_up), self._groups[0])

    def _settle(self, member: BrokerMember, home: QueryGroup) -> None:
        """Move a member to the group with which it turns now, and wake that group."""
        now = self._group_of(member, home)
        if member.broker not in now.members:
            self._leave(member.broker)
            now.add(member)
        now.wake()

    def _settle_all(self) -> None:
        for member, home, _ in list(self._members.values()):
            self._settle(member, home)

    def _leave(self, broker: str) -> None:
        for group in (*self._groups, self._slow):
            group.remove(broker)

    def _remove(self, broker: str) -> None:
        found = self._members.pop(broker, None)
        if found is None:
            return
        member, _, keeping = found
        member.changed = lambda: None
        self._leave(broker)
        keeping.cancel()
        closing = asyncio.ensure_future(member.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled():
            self._error = keeping.exception()

    def _has_turned(self) -> bool:
        return any(member.has_turned for member, _, _ in list(self._members.values()))

    async def _answer(self, group: QueryGroup, request: dict[str, Any]) -> Any:
        """Return the answer to a request of the planner of a group."""
        if request["ask"] == "batch":
            batch = await group.next_batch()
            return None if batch is None else batch.offset()
        if group.batch is None or group.batch.sequence != request["sequence"]:
            return []
        return parts_of(
            group.batch,
            parallelism=self._parallelism,
            wait_s=group.wait_s,
            over_the_wire=self._over_the_wire,
            tls=self._tls,
        )

    async def _close(self) -> None:
        for broker in list(self._members):
            self._remove(broker)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(channel.stop() for channel in self._channels), return_exceptions=True)
