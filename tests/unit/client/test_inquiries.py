"""Requests of a broker to a consumer. The broker runs in the event loop of the test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.client.conftest import Servers, Start, until
from wheelmq.client import Consumed, ConsumerSettings, Producer, PullConsumer, PushConsumer, ReceivedMessage
from wheelmq.client import group as group_module
from wheelmq.formats.wire import bodies, client_calls, headers, queue_tables
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command

QUEUE = QueueName(topic="T", broker_name="broker-a", queue_id=0)


def member_connection(running: Servers, group: str = "G") -> Any:
    assert running.app.broker is not None
    [client] = running.app.broker.parts.clients.consumers[group].clients.values()
    return client.connection


async def ask(running: Servers, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Command:
    """Send a request from the broker to its only member. Returns the answer."""
    assert running.app.broker is not None
    future: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
    connection = member_connection(running)
    broker = running.app.broker
    deadline_ms = broker.parts.clock.monotonic_ms() + 10_000
    broker.parts.calls.ask(connection, Command(code=code, ext=ext, body=body), deadline_ms, future.set_result)
    connection.flush()
    async with asyncio.timeout(10):
        answer = await future
    assert answer is not None
    return answer


async def wait_for_queues(consumer: PushConsumer | PullConsumer) -> None:
    await until(lambda: len([queue for queue in consumer.queues if queue.topic == "T"]) == 4)


def consumer(running: Servers, seen: list[bytes], **settings: Any) -> PushConsumer:
    async def callback(message: ReceivedMessage) -> Consumed:
        seen.append(message.body)
        if message.body == b"fails":
            raise RuntimeError("no")
        return Consumed.LATER if message.body == b"later" else Consumed.DONE

    made = PushConsumer(running.namesrv, "G", ConsumerSettings(**settings))
    made.subscribe("T", callback)
    return made


@pytest.mark.parametrize("orderly", [False, True])
def test_a_reset_restarts_queues_at_the_new_offsets(servers: Start, orderly: bool) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for i in range(4):
                await producer.send("T", b"%d" % i, queue_id=0)
            seen: list[bytes] = []
            async with consumer(running, seen, orderly=orderly) as one:
                await until(lambda: len(seen) == 4)
                header = client_calls.ResetOffsetHeader(topic="T", group="G", timestamp=0)
                table = queue_tables.write(offsetTable={QUEUE: 2})
                code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
                assert (await ask(running, code, headers.write(header), table)).code == ResponseCode.SUCCESS
                await until(lambda: len(seen) == 6)
                assert seen == [b"0", b"1", b"2", b"3", b"2", b"3"]
                other = client_calls.ResetOffsetHeader(topic="T", group="other", timestamp=0)
                assert (await ask(running, code, headers.write(other), table)).code == ResponseCode.SYSTEM_ERROR
                pairs = b'{"offsetTable":[[{"topic":"T","brokerName":"broker-a","queueId":0},3]]}'
                await ask(running, code, headers.write(header), pairs)
                await until(lambda: len(seen) == 7)
                await wait_for_queues(one)
            assert running.app.broker is not None
            assert running.app.broker.parts.consumer_offsets.get("G", "T", 0) == 4

    asyncio.run(scenario())


def test_a_member_reports_its_offset_per_queue(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            for _ in range(3):
                await producer.send("T", b"x", queue_id=0)
            seen: list[bytes] = []
            async with consumer(running, seen) as one:
                await until(lambda: len(seen) == 3)
                await wait_for_queues(one)
                header = client_calls.ConsumerStatusHeader(topic="T", group="G")
                code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
                answer = await ask(running, code, headers.write(header))
                table = bodies.read(answer.body, dict[str, dict[str, int]])["messageQueueTable"]
                assert sorted(queue_tables.by_queue(table).items(), key=str) == sorted(
                    [(queue, 3 if queue == QUEUE else 0) for queue in one.queues if queue.topic == "T"], key=str
                )

    asyncio.run(scenario())


def test_a_pull_consumer_reports_its_running_information(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"123456", queue_id=0)
            async with PullConsumer(running.namesrv, "G") as one:
                one.subscribe("T")
                await wait_for_queues(one)
                await until(lambda: one._group.held[QUEUE].in_hand == (1, 0, 0))
                header = client_calls.RunningInfoHeader(consumer_group="G")
                answer = await ask(running, RequestCode.GET_CONSUMER_RUNNING_INFO, headers.write(header))
                info = bodies.read(answer.body, client_calls.RunningInfo)
                assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
                progress = queue_tables.by_queue(info.mq_table)[QUEUE]
                assert (progress.cached_msg_count, progress.commit_offset) == (1, 0)
                consume = client_calls.ConsumeDirectlyHeader(consumer_group="G")
                answer = await ask(running, RequestCode.CONSUME_MESSAGE_DIRECTLY, headers.write(consume))
                assert answer.code == ResponseCode.SYSTEM_ERROR

    asyncio.run(scenario())


def test_a_consumer_consumes_a_message_on_demand(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            assert running.app.broker is not None
            records = []
            for body in (b"fine", b"later", b"fails"):
                sent = await producer.send("U", body)
                position = int(sent.message_id[16:], 16)
                record = running.app.broker.parts.store.log.record_at(position)  # type: ignore[arg-type]
                assert record is not None
                found = running.app.broker.parts.store.log.gather([(position, record.size)])  # type: ignore[list-item]
                records.append(bytes(found).replace(b"\x01U\x00", b"\x01T\x00"))
            await producer.send("T", b"x")
            seen: list[bytes] = []
            async with consumer(running, seen) as one:
                await wait_for_queues(one)
                header = headers.write(client_calls.ConsumeDirectlyHeader(consumer_group="G", broker_name="broker-a"))
                results = []
                for record in records:
                    answer = await ask(running, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, record)
                    results.append(bodies.read(answer.body, client_calls.DirectlyConsumed))
                assert [one.consume_result for one in results] == ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"]
                assert results[2].remark == "RuntimeError: no"
                answer = await ask(running, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, b"no record")
                assert answer.code == ResponseCode.SYSTEM_ERROR and "RecordError" in (answer.remark or "")

    asyncio.run(scenario())


def test_a_consumer_rejects_unknown_and_malformed_requests(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "SETTLE_S", 0.02)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"x")
            async with consumer(running, []) as one:
                await wait_for_queues(one)
                answer = await ask(running, RequestCode.GET_CLIENT_CONFIG, {})
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                answer = await ask(running, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {})
                assert answer.code == ResponseCode.SYSTEM_ERROR and "HeaderError" in (answer.remark or "")

    asyncio.run(scenario())
