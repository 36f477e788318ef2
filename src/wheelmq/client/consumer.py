"""The push consumer: the members of a group share the queues of a topic, pull, and hand each message to a callback
(RocketMQ: DefaultMQPushConsumer in clustering mode, concurrently).

A message counts as consumed when its callback returns; what is in hand when a consumer ends, however it ends, comes
again to whoever has the queue next. So a message may come twice, and never not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

import msgspec

from wheelmq.client.allocation import allocate
from wheelmq.client.message import MessageError, ReceivedMessage, read_records, received
from wheelmq.client.outgoing import check_group, check_topic
from wheelmq.client.routes import TopicUnknown, order
from wheelmq.client.session import Session
from wheelmq.client.share import HeldQueue
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record, RecordError
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import ConsumerData, Heartbeat, QueueName, Subscription
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.caller import Caller
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import Clock, SystemClock

log = logging.getLogger(__name__)

REBALANCE_S: Final = 20.0
SETTLE_S: Final = 1.0
"""Until the next look when a topic or a member list was not there yet."""
COMMIT_S: Final = 1.0
AGAIN_S: Final = 1.0
"""Until the next pull of a queue whose last one failed."""
SEND_BACK_AGAIN_S: Final = 5.0
RECONSUME_TIMES_MAX: Final = 16
PULL_MARGIN_S: Final = 15.0
"""How much longer than the broker holds a pull its answer is waited for."""


class Consumed(Enum):
    """What a callback says of its message."""

    DONE = "done"
    LATER = "later"
    """It could not be handled now: the broker delivers it again later, up to 16 times, longer apart each time."""


class StartFrom(Enum):
    """Where a group begins in a queue that it has never consumed from."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"


Callback = Callable[[ReceivedMessage], Awaitable[Consumed | None]]
"""None stands for DONE; an exception stands for LATER."""


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be chosen."""

    concurrency: int = 20
    """Callbacks at once; with 1 the messages of a queue come one by one, in order."""
    start_from: StartFrom = StartFrom.FIRST
    pull_count: int = 32
    hold_ms: int = 15_000
    """How long the broker may hold a pull that finds nothing."""
    in_hand_max: int = 1000
    """Messages of one queue that are pulled and not consumed; past it no more are pulled."""
    timeout_ms: int = 3000
    stop_grace_ms: int = 10_000
    """How long `stop` waits for callbacks that run."""


class _Pulled(NamedTuple):
    """A message on its way to its callback."""

    held: HeldQueue
    record: Record
    received_ms: Millis


class PushConsumer:
    """A member of a group.

    `consumer = PushConsumer("127.0.0.1:9876", "group")`, `consumer.subscribe("T", callback)`, `async with consumer:`

    Raises ValueError for what is no name of a group, or no address.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        settings: ConsumerSettings | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.settings = settings or ConsumerSettings()
        self._clock = clock or SystemClock()
        self._timeout_s = self.settings.timeout_ms / 1000
        self._session = Session(
            namesrv, clock=self._clock, beat=self._heartbeat, on_request=self._asked, timeout_s=self._timeout_s
        )
        self._retry_topic = names.retry_topic(group)
        self._callbacks: dict[str, Callback] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._held: dict[QueueName, HeldQueue] = {}
        self._inbox: asyncio.Queue[_Pulled | None] = asyncio.Queue()
        self._look = asyncio.Event()
        """Set when the queues should be shared out anew."""
        self._troubles: dict[str, set[str]] = {}
        """What went wrong with a broker and was told; each trouble is told once, not once a queue and second."""
        self._is_ending = False
        self._tasks: list[asyncio.Task[None]] = []
        self._workers: list[asyncio.Task[None]] = []

    # Life ----------------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, callback: Callback, tags: str = "*") -> None:
        """Consume `topic`; `tags` are `*` or tags between `||`. Before `start`. Raises ValueError."""
        check_topic(topic)
        if self._workers:
            raise RuntimeError("subscribe before the consumer is started")
        self._callbacks[topic] = callback
        self._subscriptions[topic] = Subscription.of_tags(topic, tags, self._clock.now_ms())

    @property
    def queues(self) -> list[QueueName]:
        """The queues that are this member's now."""
        return sorted(self._held, key=order)

    async def start(self) -> None:
        """Join the group and begin to consume; the topics may come into being later."""
        if not self._callbacks:
            raise RuntimeError("subscribe to a topic before the consumer is started")
        self._subscriptions[self._retry_topic] = Subscription.of_tags(self._retry_topic, "*", self._clock.now_ms())
        await self._session.start()
        self._workers = [asyncio.create_task(self._work()) for _ in range(self.settings.concurrency)]
        self._tasks = [asyncio.create_task(self._keep_share()), asyncio.create_task(self._keep_committing())]

    def end(self) -> None:
        """Begin no callback any more; may be called in a callback, which may not call `stop`."""
        self._is_ending = True

    async def stop(self) -> None:
        """Let the callbacks that run finish, commit, leave the group."""
        self.end()
        await _cancel([*self._tasks, *(held.task for held in self._held.values() if held.task is not None)])
        for _ in self._workers:
            self._inbox.put_nowait(None)  # whoever waits for a message learns that it is over
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=self.settings.stop_grace_ms / 1000)
            await _cancel(late)
        await asyncio.gather(*map(self._commit, self._held.values()))
        self._held.clear()
        await self._session.stop(consumer_group=self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The group -----------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        data = ConsumerData(
            group_name=self.group,
            consume_from_where=self.settings.start_from.value,
            subscription_data_set=list(self._subscriptions.values()),
        )
        return Heartbeat(client_id=self._session.client_id, consumer_data_set=[data])

    def _asked(self, request: Command) -> Command:
        """What a broker asks of its own accord. It answers requests that want an answer; the rest it drops."""
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._look.set()
            return Command(code=ResponseCode.SUCCESS)
        remark = f" request type {request.code} not supported"
        return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    async def _keep_share(self) -> None:
        """Share out the queues at the start, when the group changes, when a broker was lost, and every 20 s."""
        while not self._is_ending:
            self._look.clear()
            settled = False
            try:
                settled = await self._rebalance()
            except Exception:
                log.exception("group %s: sharing out the queues failed", self.group)
            try:
                async with asyncio.timeout(REBALANCE_S if settled else SETTLE_S):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _rebalance(self) -> bool:
        """Take the queues that are ours and give up those that are not; False when it should be tried again soon."""
        routes = self._session.routes
        settled = True
        for topic in self._subscriptions:
            try:
                await routes.get(topic)
            except (TopicUnknown, CallError, Refused) as error:
                log.info("group %s: %s", self.group, error)
                settled = False
        await self._session.beat()
        for topic in self._subscriptions:
            try:
                route = await routes.get(topic)
                members = await self._members(list(route.masters.values()))
            except (TopicUnknown, CallError, Refused) as error:
                log.info("group %s: the queues of %s stay as they are: %s", self.group, topic, error)
                settled = False
                continue
            mine = allocate(self._session.client_id, route.readable, members)
            settled &= self._session.client_id in members
            settled &= await self._take_share(topic, mine)
        return settled

    async def _members(self, addresses: list[str]) -> list[str]:
        """The ids of the group's members, sorted. Raises CallError, Refused when no broker tells."""
        problem: Exception | None = None
        for address in addresses:
            ext = {"consumerGroup": self.group}
            request = Command(code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=ext)
            try:
                answer = await self._session.connections.to(address).ask(request, self._timeout_s)
                return sorted(bodies.read(answer.body, dict[str, list[str]]).get("consumerIdList", []))
            except (CallError, Refused) as error:
                problem = error
        raise problem or CallError("no broker has the topic")

    async def _take_share(self, topic: str, mine: list[QueueName]) -> bool:
        """Make `mine` the queues of `topic` that are held; False when one of them could not be begun."""
        for queue in [queue for queue in self._held if queue.topic == topic and queue not in mine]:
            await self._give_up(queue)
        settled = True
        for queue in mine:
            if queue in self._held:
                continue
            try:
                start, is_stored = await self._first_offset(queue)
            except (CallError, Refused, KeyError) as error:
                log.info("group %s: %s cannot be begun: %s", self.group, _text(queue), error)
                settled = False
                continue
            held = self._held[queue] = HeldQueue(queue, start, self.settings.in_hand_max, is_stored=is_stored)
            held.task = asyncio.create_task(self._pull(held))
        return settled

    async def _give_up(self, queue: QueueName) -> None:
        held = self._held.pop(queue)
        held.is_lost = True
        if held.task is not None:
            await _cancel([held.task])
        await self._commit(held)

    async def _first_offset(self, queue: QueueName) -> tuple[int, bool]:
        """Where the group goes on, or begins, and whether the broker knows that. Raises CallError, Refused."""
        header = headers.QueryConsumerOffsetHeader(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=None
        )
        caller = self._caller(queue)
        request = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=headers.write(header))
        answer = await caller.call(request, self._timeout_s)
        is_stored = answer.code != ResponseCode.QUERY_NOT_FOUND
        if not is_stored:
            newest = self.settings.start_from is StartFrom.LAST and queue.topic != self._retry_topic
            code = RequestCode.GET_MAX_OFFSET if newest else RequestCode.GET_MIN_OFFSET
            ext = headers.write(headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id))
            answer = await caller.call(Command(code=code, ext=ext), self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)
        return int(answer.ext["offset"]), is_stored

    # Pulling -------------------------------------------------------------------------------------------------------

    async def _pull(self, held: HeldQueue) -> None:
        """Pull one queue until it is given up."""
        broker = held.queue.broker_name
        while not self._is_ending:
            await held.room()
            try:
                await self._pull_once(held)
                if broker in self._troubles:
                    del self._troubles[broker]
                    log.warning("group %s: broker %s is back", self.group, broker)
            except (CallError, Refused, RecordError) as error:
                told = self._troubles.setdefault(broker, set())
                if str(error) not in told:
                    told.add(str(error))
                    log.warning("group %s: pulling from broker %s: %s", self.group, broker, error)
                self._look.set()  # the broker forgets its members with their connections
                await asyncio.sleep(AGAIN_S)

    async def _pull_once(self, held: HeldQueue) -> None:
        queue, subscription = held.queue, self._subscriptions[held.queue.topic]
        commit = held.committable
        flags = headers.PULL_SUSPEND | headers.PULL_SUBSCRIPTION
        if commit != held.committed:
            flags |= headers.PULL_COMMIT_OFFSET
        header = headers.PullHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            max_msg_nums=self.settings.pull_count,
            sys_flag=flags,
            commit_offset=commit,
            suspend_timeout_millis=self.settings.hold_ms,
            subscription=subscription.sub_string,
            sub_version=subscription.sub_version,
            expression_type=subscription.expression_type,
        )
        request = Command(code=RequestCode.PULL_MESSAGE, ext=headers.write(header))
        answer = await self._caller(queue).call(request, self.settings.hold_ms / 1000 + PULL_MARGIN_S)
        if answer.code == ResponseCode.SUCCESS:
            held.committed = commit
            self._take(held, answer, subscription)
        elif answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            held.committed = commit
            held.next_offset = int(answer.ext["nextBeginOffset"])
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            moved = int(answer.ext["nextBeginOffset"])
            log.warning("group %s: %s goes on at %d, not %d", self.group, _text(queue), moved, held.next_offset)
            held.next_offset = moved
        else:
            raise Refused(answer)

    def _take(self, held: HeldQueue, answer: Command, subscription: Subscription) -> None:
        now_ms = self._clock.now_ms()
        records = read_records(answer.body)
        if subscription.tags_set:  # the broker compares hashes alone
            records = [one for one in records if one.message.properties.get(props.TAGS) in subscription.tags_set]
        held.take([record.queue_offset for record in records], int(answer.ext["nextBeginOffset"]))
        for record in records:
            self._inbox.put_nowait(_Pulled(held, record, now_ms))

    def _caller(self, queue: QueueName) -> Caller:
        address = self._session.routes.masters().get(queue.broker_name)
        if address is None:
            raise CallError(f"broker {queue.broker_name} is not known any more")
        return self._session.connections.to(address)

    # Consuming -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (pulled := await self._inbox.get()) is not None and not self._is_ending:
            if not pulled.held.is_lost:
                await self._consume(pulled)

    async def _consume(self, pulled: _Pulled) -> None:
        held, record, received_ms = pulled
        try:
            message = received(record, held.queue.broker_name, received_ms)
            callback = self._callbacks.get(message.topic)
            if callback is None:
                log.warning("group %s: nobody here wants topic %s of a retried message", self.group, message.topic)
            outcome = await callback(message) if callback is not None else Consumed.LATER
        except MessageError as error:
            log.error("group %s: %s@%d: %s", self.group, _text(held.queue), record.queue_offset, error)
            outcome = Consumed.LATER
        except Exception:
            log.exception("group %s: the callback failed on %s@%d", self.group, _text(held.queue), record.queue_offset)
            outcome = Consumed.LATER
        if outcome is not Consumed.LATER or await self._send_back(held, record):
            held.done(record.queue_offset)
        else:
            asyncio.get_running_loop().call_later(SEND_BACK_AGAIN_S, self._inbox.put_nowait, pulled)

    async def _send_back(self, held: HeldQueue, record: Record) -> bool:
        """Have the broker deliver the message again later; False when it does not take it."""
        header = headers.SendBackHeader(
            offset=record.position,
            group=self.group,
            delay_level=0,
            origin_msg_id=offset_message_id(record.store_host, record.position),
            origin_topic=record.message.topic,
            max_reconsume_times=RECONSUME_TIMES_MAX,
        )
        try:
            request = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=headers.write(header))
            await self._caller(held.queue).ask(request, self._timeout_s)
            return True
        except (CallError, Refused) as error:
            log.warning("group %s: %s@%d was not sent back: %s", self.group, _text(held.queue), header.offset, error)
            return False

    # Committing ----------------------------------------------------------------------------------------------------

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await asyncio.gather(*map(self._commit, self._held.values()))

    async def _commit(self, held: HeldQueue) -> None:
        """Tell the broker how far the group has come in a queue, if that is news to it."""
        offset = held.committable
        if offset == held.committed:
            return
        header = headers.UpdateConsumerOffsetHeader(
            consumer_group=self.group, topic=held.queue.topic, queue_id=held.queue.queue_id, commit_offset=offset
        )
        try:
            request = Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=headers.write(header))
            await self._caller(held.queue).ask(request, self._timeout_s)
            held.committed = offset
        except (CallError, Refused) as error:
            log.warning("group %s: %s is not committed at %d: %s", self.group, _text(held.queue), offset, error)


def _text(queue: QueueName) -> str:
    return f"{queue.topic}/{queue.queue_id} of {queue.broker_name}"


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
