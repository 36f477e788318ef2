"""The pull consumer: the caller polls for messages (RocketMQ: DefaultLitePullConsumer).

It prefetches from its queues. The messages of a poll count as consumed when the next poll begins, or at `commit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from wheelmq.client import inquiries, offsets, subscriptions
from wheelmq.client.consumer_settings import Model, PullSettings
from wheelmq.client.delays import TimeMs, whole
from wheelmq.client.group import GroupMember
from wheelmq.client.inquiries import Inquiries
from wheelmq.client.membership import heartbeat, member_session, offset_store
from wheelmq.client.message import MessageError, ReceivedMessage, received
from wheelmq.client.outgoing import check_group, check_topic
from wheelmq.client.pulling import Puller
from wheelmq.client.share import HeldQueue, PolledQueue, Taken
from wheelmq.formats.wire.bodies import Heartbeat, QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_LITE
from wheelmq.system.backports import timeout
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self

ACTIVELY: Final = "CONSUME_ACTIVELY"


class PullConsumer:
    """A member of a group, or a reader of explicitly assigned queues.

    `async with PullConsumer("127.0.0.1:9876", "group") as consumer: consumer.subscribe("T")`, and then `messages =
    await consumer.poll()`. Raises ValueError for an invalid group name or name server address.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        settings: PullSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self.settings = settings or PullSettings()
        self._clock = clock or SystemClock()
        is_broadcast = self.settings.model is Model.BROADCASTING
        self._session = member_session(
            namesrv, self.settings, self._clock, tls=tls, beat=self._heartbeat, on_request=self._asked
        )
        self._group = GroupMember(
            group,
            self._session,
            self.settings,
            offset_store(self._session, group, self.settings),
            gained=self._gained,
            lost=self._lost,
            make=PolledQueue,
        )
        self._puller = Puller(
            self._group,
            self._deliver,
            code=RequestCode.LITE_PULL_MESSAGE,
            flags=PULL_LITE,
            commits=not is_broadcast,
        )
        self._inquiries = Inquiries(self._group, ACTIVELY)
        self._arrived = asyncio.Event()
        self._turn = 0
        self._is_running = False

    @property
    def group(self) -> str:
        return self._group.name

    @property
    def queues(self) -> list[QueueName]:
        """The queues that this member holds now."""
        return self._group.queues

    # Life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._inquiries.started_ms = self._clock.now_ms()
        await self._session.start()
        self._group.start()
        self._is_running = True

    async def stop(self, *, confirm: bool = True) -> None:
        """Commit and leave the group. With `confirm` and `auto_commit` the last poll's messages count as consumed."""
        self._is_running = False
        await self._group.quiet()
        if confirm and self.settings.auto_commit:
            self._confirm()
        await self._group.leave()
        await self._session.stop(consumer_group=self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. The messages of the last poll count as consumed if there was no exception."""
        await self.stop(confirm=kind is None)

    # Subscriptions -------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic` with the group. `tags` and `sql` are as in PushConsumer. Raises ValueError.

        A broker that rejects the expression rejects the pulls. The error is logged.
        """
        if self._group.assigned is not None:
            raise RuntimeError("the consumer has assigned queues: it cannot subscribe as well")
        self._group.subscriptions[topic] = subscriptions.subscription(topic, tags, sql, self._clock.now_ms())
        self._group.request_rebalance()

    def unsubscribe(self, topic: str) -> None:
        """Release the queues of `topic` to the group."""
        self._group.subscriptions.pop(topic, None)
        self._group.request_rebalance()

    def assign(self, queues: Iterable[QueueName]) -> None:
        """Read these queues, and only these, independently of the group's other members."""
        if self._group.subscriptions and self._group.assigned is None:
            raise RuntimeError("the consumer has subscriptions: it cannot have assigned queues as well")
        by_topic: dict[str, list[QueueName]] = {}
        for queue in queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        for topic in by_topic:
            if topic not in self._group.subscriptions:
                wanted = subscriptions.subscription(topic, "*", None, self._clock.now_ms())
                self._group.subscriptions[topic] = wanted
        self._group.assigned = by_topic
        self._group.request_rebalance()

    async def queues_of(self, topic: str) -> list[QueueName]:
        """Return the readable queues of `topic`. Raises TopicUnknown, CallError, Refused."""
        check_topic(topic)
        return list((await self._session.routes.get(topic)).readable)

    # Reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 5000, *, count: int = 32) -> list[ReceivedMessage]:
        """Return at most `count` messages, in order within each queue; an empty list after the timeout.

        Raises MessageError for a message that cannot be decoded; the next poll continues after it. Raises RuntimeError
        before `start` and after `stop`.
        """
        if not self._is_running:
            raise RuntimeError("the consumer is not started, or is stopped: it receives no messages")
        if self.settings.auto_commit:
            self._confirm()
        try:
            async with timeout(timeout_ms / 1000):
                while not (found := self._take(count)):
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return []
        return found

    async def commit(self) -> None:
        """Commit the messages polled so far. Raises the error of a failed commit: CallError, Refused, OSError."""
        self._confirm()
        for error in (await self._group.commit()).values():
            raise error

    async def seek(self, queue: QueueName, offset: int) -> None:
        """Continue at a queue offset. Raises KeyError if this member does not hold `queue`."""
        if queue not in self._group.held:
            raise KeyError(f"this member does not hold {queue}: see `queues`")
        await self._group.move_now(queue, offset)

    async def seek_to_begin(self, queue: QueueName) -> None:
        """Continue at the first message of the queue. Raises KeyError, CallError, Refused."""
        await self.seek(queue, await offsets.end_offset(self._session, queue, is_last=False))

    async def seek_to_end(self, queue: QueueName) -> None:
        """Continue after the last message of the queue. Raises KeyError, CallError, Refused."""
        await self.seek(queue, await offsets.end_offset(self._session, queue, is_last=True))

    async def offset_at(self, queue: QueueName, time_ms: TimeMs) -> int:
        """Return the queue offset of the first message stored at `time_ms` or later. Raises CallError, Refused."""
        return await offsets.offset_at(self._session, queue, whole("time_ms", time_ms))

    async def committed(self, queue: QueueName) -> int | None:
        """Return the committed offset of the group, or None without one. Raises CallError, Refused."""
        return await self._group.offsets.read(queue)

    def position(self, queue: QueueName) -> int:
        """Return the queue offset of the next message to poll. Raises KeyError if this member does not hold it."""
        held = self._group.held[queue]
        assert isinstance(held, PolledQueue)
        return held.position

    def pause(self, *queues: QueueName) -> None:
        """Exclude these queues from polls until `resume`. Raises KeyError for a queue that is not held."""
        for queue in queues:
            self._group.held[queue].pause(True)

    def resume(self, *queues: QueueName) -> None:
        """Include these queues in polls again. Raises KeyError for a queue that is not held."""
        for queue in queues:
            self._group.held[queue].pause(False)
        self._arrived.set()

    # How -----------------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> list[ReceivedMessage]:
        """Take messages from the queues in turn, so that no queue starves."""
        found: list[ReceivedMessage] = []
        held_queues = list(self._group.held.values())
        self._turn += 1
        for i in range(len(held_queues)):
            held = held_queues[(self._turn + i) % len(held_queues)]
            while held.waiting and not held.is_paused and not held.ending.is_set() and len(found) < count:
                taken = held.waiting[0]
                try:
                    message = received(taken.record, held.queue.broker_name, taken.received_ms)
                except MessageError:
                    if found:
                        return found  # the next poll raises the error
                    self._hand_out(held)
                    raise
                self._hand_out(held)
                found.append(message)
        return found

    def _hand_out(self, held: HeldQueue) -> None:
        held.done(held.waiting.popleft().record.queue_offset)

    def _confirm(self) -> None:
        for held in self._group.held.values():
            assert isinstance(held, PolledQueue)
            held.confirm()

    def _heartbeat(self) -> Heartbeat:
        return heartbeat(self._group, ACTIVELY)

    def _asked(self, address: str, request: Command) -> inquiries.Answer:
        return self._inquiries.answer(address, request)

    def _deliver(self, held: HeldQueue, messages: list[Taken]) -> None:
        held.waiting.extend(messages)
        self._arrived.set()

    def _gained(self, held: HeldQueue) -> None:
        held.pulling = asyncio.create_task(self._puller.run(held))

    async def _lost(self, held: HeldQueue) -> bool:
        return True
