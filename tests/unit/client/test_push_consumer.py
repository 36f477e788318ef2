"""The push consumer against a name server and a broker in the same loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.conftest import Servers, Start, until
from wheelmq.client import Consumed, ConsumerSettings, PushConsumer, StartFrom
from wheelmq.client import group as module
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.producer import Producer
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire.bodies import QueueName


class Inbox:
    """A callback that keeps what it gets."""

    def __init__(self, outcome: Consumed | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self.outcome = outcome

    async def __call__(self, message: ReceivedMessage) -> Consumed | None:
        self.messages.append(message)
        return self.outcome

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def consumer(running: Servers, inbox: Inbox, group: str = "G", tags: str = "*", **settings: object) -> PushConsumer:
    made = PushConsumer(running.namesrv, group, ConsumerSettings(**settings))  # type: ignore[arg-type]
    made.subscribe("T", inbox, tags)
    return made


def committed(running: Servers, group: str = "G") -> int:
    """How many messages of topic T the group has done with, as the broker knows."""
    assert running.app.broker is not None
    offsets = running.app.broker.consumer_offsets
    return sum(offsets.get(group, "T", i) or 0 for i in range(4))


def test_messages_arrive_once_and_the_group_goes_on_where_it_stopped(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(8):
                await producer.send("T", b"%d" % i)
            first, second = Inbox(), Inbox()
            async with consumer(running, first):
                await until(lambda: len(first.messages) == 8)
                await producer.send("T", b"8")
                await until(lambda: len(first.messages) == 9)
            assert first.bodies == [b"%d" % i for i in range(9)]
            assert committed(running) == 9
            await producer.send("T", b"9")
            async with consumer(running, second):
                await until(lambda: len(second.messages) == 1)
            assert second.bodies == [b"9"]

    asyncio.run(scenario())


def test_a_delayed_message_tells_when_it_was_due(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            inbox = Inbox()
            await producer.send("T", b"now")
            async with consumer(running, inbox):
                await until(lambda: len(inbox.messages) == 1)
                sent = await producer.send("T", b"later", delay_ms=100)
                await until(lambda: len(inbox.messages) == 2)
                message = inbox.messages[1]
                assert (message.body, message.unique_key) == (b"later", sent.unique_key)
                assert message.lateness_ms is not None and message.lateness_ms >= 0
                assert sent.due_ms is not None and message.due_ms is not None
                assert abs(message.due_ms - sent.due_ms) < 1000

    asyncio.run(scenario())


def test_tags_choose(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 0.05)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for tag in ("Aa", "BB", "C", None):  # Aa and BB have the same hash in Java
                await producer.send("T", (tag or "none").encode(), tags=tag)
            inbox = Inbox()
            async with consumer(running, inbox, tags="Aa || C"):
                await until(lambda: len(inbox.messages) == 2)
                await until(lambda: committed(running) == 4)
            assert java_hash("Aa") == java_hash("BB")
            assert inbox.bodies == [b"Aa", b"C"]

    asyncio.run(scenario())


def test_members_share_the_queues_and_take_over(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 0.05)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"x")
            inboxes = [Inbox(), Inbox()]
            one, two = (consumer(running, inbox) for inbox in inboxes)

            def queues(member: PushConsumer) -> list[int]:
                return [queue.queue_id for queue in member.queues if queue.topic == "T"]

            async with one:
                await until(lambda: queues(one) == [0, 1, 2, 3] and committed(running) == 1)
                async with two:
                    await until(lambda: sorted(queues(one) + queues(two)) == [0, 1, 2, 3] and len(queues(two)) == 2)
                    for i in range(8):
                        await producer.send("T", b"%d" % i)
                    await until(lambda: sum(len(inbox.messages) for inbox in inboxes) == 9)
                    assert {len(inbox.messages) for inbox in inboxes} <= {4, 5}
                await until(lambda: queues(one) == [0, 1, 2, 3])

    asyncio.run(scenario())


def test_what_fails_comes_again(servers: Start) -> None:
    async def scenario() -> None:
        async with servers(message_delay_level="1s 1s 1s") as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"raises")
            await producer.send("T", b"later")
            seen: list[tuple[bytes, int, str]] = []

            async def callback(message: ReceivedMessage) -> Consumed | None:
                seen.append((message.body, message.reconsume_times, message.topic))
                if message.reconsume_times:
                    return None
                if message.body == b"raises":
                    raise RuntimeError("not now")
                return Consumed.LATER

            member = PushConsumer(running.namesrv, "G")
            member.subscribe("T", callback)
            async with member:
                await until(lambda: len(seen) == 4)
            assert sorted(seen) == [(b"later", 0, "T"), (b"later", 1, "T"), (b"raises", 0, "T"), (b"raises", 1, "T")]

    asyncio.run(scenario())


def test_a_broker_that_comes_back_is_consumed_from_again(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"before")
            inbox = Inbox()
            async with consumer(running, inbox):
                await until(lambda: len(inbox.messages) == 1)
                await running.restart_broker()
                await producer.send("T", b"after")
                await until(lambda: b"after" in inbox.bodies)

    asyncio.run(scenario())


def test_what_is_in_hand_at_the_end_is_not_committed(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(3):
                await producer.send("T", b"%d" % i, queue_id=0)
            inbox = Inbox()
            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1))

            async def once(message: ReceivedMessage) -> None:
                await inbox(message)
                member.end()

            member.subscribe("T", once)
            async with member:
                await until(lambda: len(inbox.messages) == 1)
            assert (inbox.bodies, committed(running)) == ([b"0"], 1)
            rest = Inbox()
            async with consumer(running, rest):
                await until(lambda: len(rest.messages) == 2)
            assert rest.bodies == [b"1", b"2"]

    asyncio.run(scenario())


def test_a_consumer_may_be_there_before_its_topic(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.02)

    async def scenario() -> None:
        async with servers() as running:
            inbox = Inbox()
            async with consumer(running, inbox), Producer(running.namesrv) as producer:
                await producer.send("T", b"x")
                await until(lambda: inbox.bodies == [b"x"])

    asyncio.run(scenario())


@pytest.mark.parametrize(("start_from", "expected"), [(StartFrom.FIRST, [b"new", b"old"]), (StartFrom.LAST, [b"new"])])
def test_where_a_new_group_begins(servers: Start, start_from: StartFrom, expected: list[bytes]) -> None:
    """Only a queue whose first messages are gone leaves the choice to the client: so it is made to look like one."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"gone", queue_id=0)
            await producer.send("T", b"old", queue_id=0)
            assert running.app.broker is not None
            queue = running.app.broker.store.queues.find("T", 0)
            assert queue is not None
            queue.start = type(queue.start)(1)
            inbox = Inbox()
            async with consumer(running, inbox, start_from=start_from) as member:
                await until(lambda: len([queue for queue in member.queues if queue.topic == "T"]) == 4)
                await producer.send("T", b"new", queue_id=0)
                await until(lambda: b"new" in inbox.bodies)
            assert inbox.bodies == expected
            offsets = [running.app.broker.consumer_offsets.get("G", "T", i) for i in range(4)]
            assert offsets == [3, None, None, None]

    asyncio.run(scenario())


def test_a_consumer_without_a_topic_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="subscribe"):
            await PushConsumer("127.0.0.1:9", "G").start()

    asyncio.run(scenario())


def test_a_callback_whose_own_work_was_cancelled_has_failed(servers: Start) -> None:
    """And whoever called it goes on."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            seen: list[tuple[bytes, int]] = []

            async def callback(message: ReceivedMessage) -> None:
                seen.append((message.body, message.reconsume_times))
                if message.body == b"cancelled" and not message.reconsume_times:
                    work = asyncio.get_running_loop().create_future()
                    work.cancel()
                    await work

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1))
            member.subscribe("T", callback)
            await producer.send("T", b"cancelled", queue_id=0)
            await producer.send("T", b"next", queue_id=0)
            async with member:
                await until(lambda: len(seen) == 2)
            assert seen == [(b"cancelled", 0), (b"next", 0)]

    asyncio.run(scenario())


def test_a_callback_that_takes_too_long_has_failed(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            seen: list[bytes] = []

            async def callback(message: ReceivedMessage) -> None:
                seen.append(message.body)
                if message.body == b"stuck":
                    await asyncio.Event().wait()

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1, consume_timeout_ms=20))
            member.subscribe("T", callback)
            await producer.send("T", b"stuck", queue_id=0)
            await producer.send("T", b"next", queue_id=0)
            async with member:
                await until(lambda: b"next" in seen)
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                await until(lambda: member._group.held[queue].committable == 2)

    asyncio.run(scenario())
