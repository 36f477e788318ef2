"""The push consumer against a name server and a broker in the same loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.unit.client.conftest import Servers, Start, until
from wheelmq.client import Consumed, ConsumerSettings, PushConsumer, StartFrom, pulling
from wheelmq.client import group as module
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.producer import Producer
from wheelmq.formats.disk.message import Record
from wheelmq.formats.java import java_hash
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command


class Inbox:
    """A callback that stores the messages it receives."""

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


def committed_messages(running: Servers, group: str = "G") -> int:
    """The sum of the offsets of topic T that the group committed at the broker."""
    assert running.app.broker is not None
    offsets = running.app.broker.parts.consumer_offsets
    return sum(offsets.get(group, "T", i) or 0 for i in range(4))


class Commits:
    """An RPC hook that records the offsets in commits and in pulls."""

    def __init__(self) -> None:
        self.in_pulls: list[int] = []
        self.alone: list[int] = []

    def before_request(self, address: str, request: Command) -> None:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.alone.append(int(request.ext["commitOffset"]))
        elif request.code == RequestCode.PULL_MESSAGE and int(request.ext["sysFlag"]) & headers.PULL_COMMIT_OFFSET:
            self.in_pulls.append(int(request.ext["commitOffset"]))

    def after_response(self, address: str, request: Command, response: Command | None) -> None:
        pass


def test_an_offset_that_a_pull_commits_is_committed_once_more(servers: Start) -> None:
    async def scenario() -> None:
        commits, inbox = Commits(), Inbox()
        async with servers() as running, Producer(running.namesrv) as producer:
            running.app.hooks.rpc.append(commits)
            async with consumer(running, inbox, hold_ms=100):
                await producer.send("T", b"0", queue_id=0, order_key="k")
                await until(lambda: 1 in commits.in_pulls or 1 in commits.alone)
                await until(lambda: (commits.in_pulls + commits.alone).count(1) >= 2)
        assert 1 in commits.alone, "a lost pull would take its offset with it"

    asyncio.run(scenario())


def test_a_group_resumes_at_its_committed_offsets(servers: Start) -> None:
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
            assert committed_messages(running) == 9
            await producer.send("T", b"9")
            async with consumer(running, second):
                await until(lambda: len(second.messages) == 1)
            assert second.bodies == [b"9"]

    asyncio.run(scenario())


def test_a_delayed_message_carries_its_due_time(servers: Start) -> None:
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


def test_a_tag_expression_selects_messages(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 0.05)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for tag in ("Aa", "BB", "C", None):  # Aa and BB have the same hash in Java
                await producer.send("T", (tag or "none").encode(), tags=tag)
            inbox = Inbox()
            async with consumer(running, inbox, tags="Aa || C"):
                await until(lambda: len(inbox.messages) == 2)
                await until(lambda: committed_messages(running) == 4)
            assert java_hash("Aa") == java_hash("BB")
            assert inbox.bodies == [b"Aa", b"C"]

    asyncio.run(scenario())


def test_members_share_the_queues_of_a_topic(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 0.05)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"x")
            inboxes = [Inbox(), Inbox()]
            one, two = (consumer(running, inbox) for inbox in inboxes)

            def queues(member: PushConsumer) -> list[int]:
                return [queue.queue_id for queue in member.queues if queue.topic == "T"]

            async with one:
                await until(lambda: queues(one) == [0, 1, 2, 3] and committed_messages(running) == 1)
                async with two:
                    await until(lambda: sorted(queues(one) + queues(two)) == [0, 1, 2, 3] and len(queues(two)) == 2)
                    for i in range(8):
                        await producer.send("T", b"%d" % i)
                    await until(lambda: sum(len(inbox.messages) for inbox in inboxes) == 9)
                    assert {len(inbox.messages) for inbox in inboxes} <= {4, 5}
                await until(lambda: queues(one) == [0, 1, 2, 3])

    asyncio.run(scenario())


def test_a_failed_message_is_delivered_again(servers: Start) -> None:
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


def test_a_consumer_continues_after_a_broker_restart(servers: Start) -> None:
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


def test_a_stop_does_not_commit_messages_in_hand(servers: Start) -> None:
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
            assert (inbox.bodies, committed_messages(running)) == ([b"0"], 1)
            rest = Inbox()
            async with consumer(running, rest):
                await until(lambda: len(rest.messages) == 2)
            assert rest.bodies == [b"1", b"2"]

    asyncio.run(scenario())


def test_a_consumer_may_start_before_its_topic_exists(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.02)

    async def scenario() -> None:
        async with servers() as running:
            inbox = Inbox()
            async with consumer(running, inbox), Producer(running.namesrv) as producer:
                await producer.send("T", b"x")
                await until(lambda: inbox.bodies == [b"x"])

    asyncio.run(scenario())


@pytest.mark.parametrize(("start_from", "expected"), [(StartFrom.FIRST, [b"new", b"old"]), (StartFrom.LAST, [b"new"])])
def test_start_from_applies_to_a_new_group(servers: Start, start_from: StartFrom, expected: list[bytes]) -> None:
    """The client chooses only if the first messages of a queue are removed. The test imitates such a queue."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"gone", queue_id=0)
            await producer.send("T", b"old", queue_id=0)
            assert running.app.broker is not None
            queue = running.app.broker.parts.store.queues.find("T", 0)
            assert queue is not None
            queue.start = type(queue.start)(1)
            inbox = Inbox()
            async with consumer(running, inbox, start_from=start_from) as member:
                await until(lambda: len([queue for queue in member.queues if queue.topic == "T"]) == 4)
                await producer.send("T", b"new", queue_id=0)
                await until(lambda: b"new" in inbox.bodies)
            assert inbox.bodies == expected
            offsets = [running.app.broker.parts.consumer_offsets.get("G", "T", i) for i in range(4)]
            assert offsets == [3, None, None, None]

    asyncio.run(scenario())


def test_a_consumer_without_a_topic_cannot_start() -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="subscribe"):
            await PushConsumer("127.0.0.1:9", "G").start()

    asyncio.run(scenario())


def test_a_callback_that_raises_cancelled_error_has_failed(servers: Start) -> None:
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


def test_messages_in_hand_are_consumed_after_an_offset_correction(servers: Start) -> None:
    """The broker removed the next messages. The messages in hand could not be pulled a second time."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(5):
                await producer.send("T", b"%d" % i, queue_id=0)
            going_on = asyncio.Event()
            inbox = Inbox()

            async def callback(message: ReceivedMessage) -> None:
                await inbox(message)
                await going_on.wait()

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1, pull_count=2, in_hand_max=2))
            member.subscribe("T", callback)
            async with member:
                await until(lambda: inbox.bodies == [b"0"])
                assert running.app.broker is not None
                stored = running.app.broker.parts.store.queues.find("T", 0)
                assert stored is not None
                stored.start = type(stored.start)(4)
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                held = member._group.held[queue]
                held._in_hand_max = 3
                held._settle_room()  # a pull starts at a removed offset, with two messages in hand
                await until(lambda: queue in member._group.held and member._group.held[queue].next_offset >= 4)
                going_on.set()
                await until(lambda: b"4" in inbox.bodies)
            assert inbox.bodies == [b"0", b"1", b"4"]
            assert committed_messages(running) == 5

    asyncio.run(scenario())


def test_an_invalid_result_of_a_callback_is_a_failure(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            times: list[int] = []

            def callback(message: ReceivedMessage) -> None:
                times.append(message.reconsume_times)
                return False if message.reconsume_times == 0 else None  # type: ignore[return-value]

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(orderly=True, suspend_ms=10))
            member.subscribe("T", callback)
            await producer.send("T", b"x")
            async with member:
                await until(lambda: times == [0, 1])

    asyncio.run(scenario())


def test_an_internal_error_in_a_pull_does_not_stop_pulling(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "AGAIN_S", 0.01)
    mistakes = [AttributeError("ours"), TypeError("ours")]
    read = pulling.read_records

    def fail_once(buffer: bytes) -> list[Record]:
        if mistakes:
            raise mistakes.pop()
        return read(buffer)

    monkeypatch.setattr(pulling, "read_records", fail_once)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            inbox = Inbox()
            await producer.send("T", b"x")
            async with consumer(running, inbox):
                await until(lambda: inbox.bodies == [b"x"])

    asyncio.run(scenario())
    assert mistakes == []


def test_pulling_pauses_at_a_limited_distance_from_a_stuck_message(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            going_on = asyncio.Event()
            inbox = Inbox()

            async def callback(message: ReceivedMessage) -> None:
                if message.body == b"0":
                    await going_on.wait()
                await inbox(message)

            for i in range(9):
                await producer.send("T", b"%d" % i, queue_id=0)
            member = PushConsumer(running.namesrv, "G", ConsumerSettings(pull_count=1, span_max=3))
            member.subscribe("T", callback)
            async with member:
                await until(lambda: len(inbox.bodies) == 3)
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                assert member._group.held[queue].next_offset == 4
                going_on.set()
                await until(lambda: len(inbox.bodies) == 9)

    asyncio.run(scenario())


def test_a_missing_topic_is_logged_once(
    servers: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.005)
    monkeypatch.setattr(module, "MISSING_LOOKS", 5)

    async def scenario() -> None:
        async with servers() as running, consumer(running, Inbox()) as member:
            await until(lambda: member._group._missing.get("T", 0) > 5)
            assert await member._group._rebalance()  # the slow retry interval applies now

    asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if "waits for T" in record.getMessage()]
    assert len(told) == 1 and "does not know topic T" in told[0]


def test_a_released_queue_leaves_no_messages_in_the_inbox(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(4):
                await producer.send("T", b"%d" % i, queue_id=i % 2)
            started = asyncio.Event()

            async def callback(message: ReceivedMessage) -> None:
                started.set()
                await asyncio.Event().wait()

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1, stop_grace_ms=10))
            member.subscribe("T", callback)
            async with member:
                await started.wait()
                inbox = member._consumption._inbox  # type: ignore[union-attr]
                await until(lambda: inbox.qsize() == 3)
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                for _ in range(3):
                    old = member._group.held[queue]
                    member._group.move(queue, 0)
                    await until(lambda old=old: member._group.held.get(queue, old) is not old)  # type: ignore[misc]
                    await until(lambda: member._group.held[queue].in_hand[0] == 2)
                assert inbox.qsize() <= 4

    asyncio.run(scenario())


def test_a_message_that_waits_for_a_thread_does_not_time_out(servers: Start) -> None:
    """Otherwise a blocked thread could move messages to the dead letters that no callback saw."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            going_on = threading.Event()
            seen: list[tuple[bytes, int]] = []

            def callback(message: ReceivedMessage) -> None:
                if message.body == b"stuck" and not message.reconsume_times:
                    going_on.wait(20)
                seen.append((message.body, message.reconsume_times))

            member = PushConsumer(running.namesrv, "G", ConsumerSettings(concurrency=1, consume_timeout_ms=20))
            member.subscribe("T", callback)
            await producer.send("T", b"stuck", queue_id=0)
            await producer.send("T", b"next", queue_id=0)
            async with member:
                queue = QueueName(topic="T", broker_name="broker-a", queue_id=0)
                await until(lambda: queue in member._group.held and member._group.held[queue].in_hand[:2] == (1, 1))
                await asyncio.sleep(0.1)  # a wrong timeout would occur after 0.02 s
                going_on.set()
                await until(lambda: len(seen) >= 2)
            assert seen[:2] == [(b"stuck", 0), (b"next", 0)]

    asyncio.run(scenario())
