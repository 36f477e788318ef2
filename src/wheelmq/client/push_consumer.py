"""The push consumer: group members share a topic's queues and call back (RocketMQ: DefaultMQPushConsumer).

A message counts as consumed when its callback returns. Messages in hand when a consumer ends, for any reason, are
delivered again. So a message may be delivered twice and is never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wheelmq.client import inquiries, subscriptions
from wheelmq.client.concurrent import Concurrently
from wheelmq.client.consumer_settings import Callback, ConsumerSettings, Model
from wheelmq.client.ending import wait_for_end
from wheelmq.client.group import GroupMember
from wheelmq.client.handling import Handling
from wheelmq.client.inquiries import Inquiries
from wheelmq.client.locks import MemberLocks
from wheelmq.client.membership import heartbeat, member_session, offset_store
from wheelmq.client.orderly import Orderly
from wheelmq.client.outgoing import check_group
from wheelmq.client.pulling import Puller
from wheelmq.client.share import HeldQueue
from wheelmq.client.unstopped import UNSTOPPED
from wheelmq.formats import names
from wheelmq.formats.wire.bodies import Heartbeat, QueueName
from wheelmq.formats.wire.frame import Command
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self

PASSIVELY = "CONSUME_PASSIVELY"


class PushConsumer:
    """`consumer = PushConsumer("127.0.0.1:9876", "group")`, `consumer.subscribe("T", callback)`, `async with consumer:`

    Raises ValueError for an invalid group name or name server address.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        settings: ConsumerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self.settings = settings or ConsumerSettings()
        self._clock = clock or SystemClock()
        is_broadcast = self.settings.model is Model.BROADCASTING
        self._session = member_session(
            namesrv, self.settings, self._clock, tls=tls, beat=self._heartbeat, on_request=self._asked
        )
        self._callbacks: dict[str, Callback] = {}
        self._handling = Handling(group, self._session, self.settings, self._callbacks)
        needs_locks = self.settings.orderly and not is_broadcast
        self._group = GroupMember(
            group,
            self._session,
            self.settings,
            offset_store(self._session, group, self.settings),
            gained=self._gained,
            lost=self._lost,
            locks=MemberLocks(self._session, group) if needs_locks else None,
        )
        self._consumption: Concurrently | Orderly = Concurrently(self._handling, self.settings, self._clock)
        if self.settings.orderly:
            self._consumption = Orderly(
                self._handling, self.settings, self._clock, self._group.is_locked, self._group.lock_lost
            )
        self._puller = Puller(self._group, self._consumption.deliver, commits=not is_broadcast)
        self._inquiries = Inquiries(self._group, PASSIVELY, self._handling)
        self._is_started = False

    @property
    def group(self) -> str:
        return self._group.name

    @property
    def queues(self) -> list[QueueName]:
        """The queues that this member holds now."""
        return self._group.queues

    # Life ----------------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, callback: Callback, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`. Call it before `start`. Raises ValueError, and RuntimeError after `start`.

        `tags` selects messages with one of the tags, separated by `||`; `*` selects all. `sql` selects messages for
        which an SQL92 expression over their properties is true.
        """
        wanted = subscriptions.subscription(topic, tags, sql, self._clock.now_ms())
        if self._is_started:
            raise RuntimeError("subscribe before the consumer is started")
        self._callbacks[topic] = callback
        self._group.subscriptions[topic] = wanted

    async def start(self) -> None:
        """Join the group and start consuming. Topics may be created later.

        Raises RuntimeError without a subscription, and Refused if a broker rejects an expression.
        """
        if not self._callbacks:
            raise RuntimeError("subscribe to a topic before the consumer is started")
        if self.settings.model is Model.CLUSTERING:
            retries = names.retry_topic(self.group)
            self._group.subscriptions[retries] = subscriptions.subscription(retries, "*", None, self._clock.now_ms())
        self._is_started = True
        self._inquiries.started_ms = self._clock.now_ms()
        await self._session.start()
        try:
            for wanted in self._group.subscriptions.values():
                await subscriptions.check(self._session, self.group, wanted)
        except BaseException:
            await self._session.stop()
            raise
        self._consumption.start()
        self._group.start()
        UNSTOPPED.add(self, self.group, self._clock)

    async def run_forever(self) -> None:
        """Consume until SIGTERM, Ctrl-C or a cancellation, then stop as `stop` does. Starts the consumer if needed.

        Raises the same as `start`.
        """
        if not self._is_started:
            await self.start()
        try:
            await wait_for_end()
        finally:
            await self.stop()

    def end(self) -> None:
        """Start no more callbacks. A callback may call it; it may not call `stop`."""
        self._consumption.end()

    async def stop(self) -> None:
        """Wait for the running callbacks, commit, and leave the group."""
        UNSTOPPED.remove(self)
        self.end()
        await self._group.quiet()
        await self._consumption.stop()
        await self._group.leave()
        self._handling.close()
        await self._session.stop(consumer_group=self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # The group -----------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        return heartbeat(self._group, PASSIVELY)

    def _asked(self, address: str, request: Command) -> inquiries.Answer:
        return self._inquiries.answer(address, request)

    def _gained(self, held: HeldQueue) -> None:
        self._consumption.gained(held)
        held.pulling = asyncio.create_task(self._puller.run(held))

    async def _lost(self, held: HeldQueue) -> bool:
        return await self._consumption.lost(held)
