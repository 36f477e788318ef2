"""A member of a consumer group: the queues assigned to it, and its progress in each (RocketMQ: RebalanceImpl).

One task makes all changes to queues. `gained` starts pulling and consuming a queue. `lost` stops it, or returns False
while a callback that must not overlap with another member's still runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from wheelmq.client.consumer_settings import GroupSettings, Model
from wheelmq.client.locks import LOCK_LASTS_S, LOCK_RENEW_S, MemberLocks
from wheelmq.client.offsets import OffsetStore, first_offset
from wheelmq.client.routes import TopicUnknown, order
from wheelmq.client.session import Session
from wheelmq.client.share import HeldQueue
from wheelmq.formats import names
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import BodyError, QueueName, Subscription
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.backports import timeout

log = logging.getLogger(__name__)

REBALANCE_S: Final = 20.0
SETTLE_S: Final = 1.0
"""Delay before the next attempt if a topic or a member list was missing."""
MISSING_LOOKS: Final = 30
"""Attempts after which a missing topic is looked up only every REBALANCE_S."""
COMMIT_S: Final = 1.0

_FAILURES = (TopicUnknown, CallError, Refused, BodyError, KeyError)
"""Errors of servers that are unreachable or send invalid answers. The operation is retried."""


class GroupMember:
    def __init__(
        self,
        name: str,
        session: Session,
        settings: GroupSettings,
        offsets: OffsetStore,
        *,
        gained: Callable[[HeldQueue], None],
        lost: Callable[[HeldQueue], Awaitable[bool]],
        locks: MemberLocks | None = None,
        make: type[HeldQueue] = HeldQueue,
    ) -> None:
        self.name = name
        self.session = session
        self.settings = settings
        self.offsets = offsets
        self.subscriptions: dict[str, Subscription] = {}
        self.assigned: dict[str, list[QueueName]] | None = None
        """The queues that the user assigned, by topic. None if the group assigns them."""
        self.held: dict[QueueName, HeldQueue] = {}
        self._gained = gained
        self._lost = lost
        self._locks = locks
        self._make = make
        self._changed = asyncio.Event()
        self._routes_are_old = False
        self._missing: dict[str, int] = {}
        """Topics without a route, with the number of attempts to get one."""
        self._moves: dict[QueueName, int] = {}
        self._changing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    # Life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_share()), asyncio.create_task(self._keep_committing())]
        if self._locks is not None:
            self._tasks.append(asyncio.create_task(self._keep_locks(self._locks)))

    def request_rebalance(self, *, routes_are_old: bool = False) -> None:
        self._routes_are_old |= routes_are_old
        self._changed.set()

    async def quiet(self) -> None:
        await cancel([*self._tasks, *(held.pulling for held in self.held.values() if held.pulling is not None)])
        self._tasks = []

    async def leave(self) -> None:
        """Commit the offsets of all queues and release the queues to the group."""
        await self._commit_for_good(self.held)
        if self._locks is not None:
            await self._locks.unlock(self._locks.ours)
        for held in self.held.values():
            held.is_lost = True
        self.held.clear()

    # Positions -----------------------------------------------------------------------------------------------------

    def move(self, queue: QueueName, offset: int) -> None:
        """Restart `queue` at `offset` at the next rebalance, if it is held. Its messages in hand are discarded."""
        self._moves[queue] = offset
        self._changed.set()

    async def move_now(self, queue: QueueName, offset: int) -> None:
        """Restart `queue` at `offset` at once, for a seek. Raises KeyError for a queue that is not held.

        The new offset is committed once a message from `offset` on is consumed.
        """
        async with self._changing:
            held = self.held[queue]
            await self._let_go(held, commit=False)
            self._begin(queue, offset, held.committed, like=held)

    async def commit(self, only: Iterable[QueueName] | None = None) -> dict[QueueName, Exception]:
        """Commit the offsets that the store may lack, of the held queues or of those in `only`.

        Returns the errors by queue.
        """
        wanted = {queue: self.held[queue] for queue in (self.held if only is None else only)}
        wanted = {queue: held for queue, held in wanted.items() if held.needs_commit and not held.is_lost}
        if not wanted:
            return {}
        news = {queue: held.committable for queue, held in wanted.items()}
        known = {queue for queue, held in wanted.items() if held.committed == news[queue]}
        problems = await self.offsets.commit(news)
        for queue, offset in news.items():
            if queue in problems:
                log.warning(
                    "group %s: the commit of %s at offset %d failed: %s",
                    self.name,
                    text(queue),
                    offset,
                    problems[queue],
                )
            else:
                wanted[queue].note_commit(offset, is_kept=self.offsets.keeps_at_once or queue in known)
        return problems

    async def _commit_for_good(self, queues: Iterable[QueueName]) -> None:
        """Commit the offsets of queues that are about to be released. No later round repeats these commits."""
        queues = list(queues)
        problems = await self.commit(queues)
        await self.commit(queue for queue in queues if queue not in problems)

    # Sharing out ---------------------------------------------------------------------------------------------------

    async def _keep_share(self) -> None:
        """Rebalance at the start, when the group changes, after a broker was lost, and every 20 s."""
        while True:
            self._changed.clear()
            settled = False
            try:
                async with self._changing:
                    settled = await self._rebalance()
            except Exception:
                log.exception("group %s: the rebalance of the queues failed", self.name)
            try:
                async with timeout(REBALANCE_S if settled else SETTLE_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _rebalance(self) -> bool:
        """Take the queues assigned to this member and release the others. Returns False if a retry is needed soon."""
        settled = await self._make_moves()
        routes = self.session.routes
        topics = list(self.subscriptions) if self.assigned is None else list(self.assigned)
        if self._routes_are_old:
            self._routes_are_old = False
            await asyncio.gather(*map(routes.refresh, topics))
        for topic in topics:
            try:
                await routes.get(topic)
                self._missing.pop(topic, None)
            except _FAILURES as error:
                settled &= self._is_missing_for_long(topic, error)
        await self.session.beat()
        for topic in topics:
            try:
                mine, is_known = await self._share_of(topic)
            except _FAILURES as error:
                log.info("group %s: no rebalance of the queues of %s: %s", self.name, topic, error)
                settled &= isinstance(error, TopicUnknown)  # the loop over the routes has counted it
                continue
            settled &= is_known
            settled &= await self._take_share(topic, mine)
        for queue in [queue for queue in self.held if queue.topic not in topics]:
            settled &= await self._let_go(self.held[queue])
        return settled

    def _is_missing_for_long(self, topic: str, error: Exception) -> bool:
        """Log that a topic has no route: as WARNING at the first attempt, later and for retry topics as INFO.

        Returns True after MISSING_LOOKS attempts, so that the next one can wait for REBALANCE_S.
        """
        self._missing[topic] = looks = self._missing.get(topic, 0) + 1
        is_told = looks > 1 or topic.startswith(names.RETRY_PREFIX)  # brokers create retry topics
        log.log(logging.INFO if is_told else logging.WARNING, "group %s waits for %s: %s", self.name, topic, error)
        return looks > MISSING_LOOKS and isinstance(error, TopicUnknown)

    async def _share_of(self, topic: str) -> tuple[Sequence[QueueName], bool]:
        """Return the queues of a topic that are assigned to this member, and whether the group knows this member."""
        if self.assigned is not None:
            return self.assigned.get(topic, []), True
        route = await self.session.routes.get(topic)
        if self.settings.model is Model.BROADCASTING:
            return route.readable, True
        members = await self._members(list(route.masters.values()))
        client_id = self.session.client_id
        return self.settings.allocate(client_id, route.readable, members), client_id in members

    async def _members(self, addresses: list[str]) -> list[str]:
        """Return the sorted client ids of the group's members. Raises CallError or Refused if no broker does."""
        problem: Exception | None = None
        ext = headers.write(headers.ConsumerGroupHeader(consumer_group=self.name))
        for address in addresses:
            request = Command(code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=ext)
            try:
                answer = await self.session.connections.to(address).ask(request, self.session.timeout_s)
                return sorted(bodies.read(answer.body, dict[str, list[str]]).get("consumerIdList", []))
            except (CallError, Refused) as error:
                problem = error
        raise problem or CallError("no broker has the topic")

    async def _take_share(self, topic: str, mine: Sequence[QueueName]) -> bool:
        """Hold exactly the queues `mine` of `topic`. Returns False if one could not be started or released."""
        settled = True
        for queue in [queue for queue in self.held if queue.topic == topic]:
            if queue not in mine or self.held[queue].ending.is_set():
                settled &= await self._let_go(self.held[queue])
        new = [queue for queue in mine if queue not in self.held]
        if self._locks is not None and new:
            locked = await self._locks.lock(new)
            settled &= all(locked.get(queue) for queue in new)
            new = [queue for queue in new if locked.get(queue)]
        starts = await asyncio.gather(*map(self._start_of, new))
        for queue, start in zip(new, starts, strict=True):
            if start is not None:
                self._begin(queue, *start)
        return settled and None not in starts

    async def _start_of(self, queue: QueueName) -> tuple[int, int] | None:
        """Return the start offset and the committed offset (or -1) of `queue`; None if they are not available now."""
        try:
            stored = await self.offsets.read(queue)
            if stored is not None:
                return stored, stored
            return await first_offset(self.session, self.settings, queue), -1
        except _FAILURES as error:
            log.info("group %s: the consumer cannot start on %s: %s", self.name, text(queue), error)
            return None

    def _begin(self, queue: QueueName, start: int, committed: int, *, like: HeldQueue | None = None) -> None:
        """Hold `queue` from `start` on. `like` is the state that it replaces: its lock and its pause are kept."""
        settings = self.settings
        held = self._make(queue, start, settings.in_hand_max, settings.in_hand_bytes_max, settings.span_max)
        held.committed = committed
        if like is None:
            self._note_lock(held)
        else:
            held.is_kept = like.is_kept or committed != like.committed
            held.locked_s, held.locked_ms = like.locked_s, like.locked_ms
            held.pause(like.is_paused)
        self.held[queue] = held
        self._gained(held)

    async def _let_go(self, held: HeldQueue, *, commit: bool = True) -> bool:
        """Stop pulling and consuming a queue. Returns False while a callback holds the queue."""
        held.ending.set()
        if held.pulling is not None:
            await cancel([held.pulling])
        if not await self._lost(held):
            return False
        is_ours = commit and not held.is_lost
        if is_ours:
            await self._commit_for_good([held.queue])
        held.is_lost = True
        del self.held[held.queue]
        if self._locks is not None and is_ours:
            await self._locks.unlock([held.queue])
        return True

    async def _make_moves(self) -> bool:
        moves, self._moves = self._moves, {}
        for queue, offset in moves.items():
            if queue not in self.held:
                continue
            held = self.held[queue]
            if await self._let_go(held, commit=False):
                log.warning("group %s: %s continues at offset %d", self.name, text(queue), offset)
                self._begin(queue, offset, -1, like=held)
            else:
                self._moves.setdefault(queue, offset)
        return not self._moves

    # Keeping -------------------------------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                await self.commit()
            except Exception:
                log.exception("group %s: the commit of offsets failed", self.name)

    async def _keep_locks(self, locks: MemberLocks) -> None:
        """Renew the locks. A queue that another member locked meanwhile restarts once this member has it again."""
        while True:
            await asyncio.sleep(LOCK_RENEW_S)
            try:
                for queue, is_ours in (await locks.lock(list(self.held))).items():
                    held = self.held.get(queue)
                    if held is not None and is_ours:
                        self._note_lock(held)
                    elif held is not None:
                        log.warning("group %s: another member has the lock of %s", self.name, text(queue))
                        self.lock_lost(held)
            except Exception:
                log.exception("group %s: the renewal of locks failed", self.name)

    def _note_lock(self, held: HeldQueue) -> None:
        held.locked_s, held.locked_ms = self.session.clock.monotonic(), self.session.clock.now_ms()

    def lock_lost(self, held: HeldQueue) -> None:
        """Stop callbacks and commits of a queue that another member may have. Request a rebalance to find out."""
        held.is_lost = True
        held.ending.set()
        held.arrived.set()
        self._changed.set()

    def is_locked(self, held: HeldQueue) -> bool:
        return self._locks is None or self.session.clock.monotonic() - held.locked_s < LOCK_LASTS_S

    @property
    def queues(self) -> list[QueueName]:
        return sorted(self.held, key=order)

    def offsets_of(self, topic: str) -> Mapping[QueueName, int]:
        return {queue: held.committable for queue, held in self.held.items() if queue.topic == topic}


def text(queue: QueueName) -> str:
    return f"{queue.topic}/{queue.queue_id} of {queue.broker_name}"


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
