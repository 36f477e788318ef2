"""The producer against a name server and a broker in the same loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses

import pytest

from tests.unit.client.conftest import Start, until
from wheelmq.client.delays import TooFarAhead
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.client.producer import Producer, ProducerSettings
from wheelmq.client.results import CancelResult, SendStatus, TransactionState, due_ms
from wheelmq.client.routes import NoBroker
from wheelmq.client.transactions import TransactionProducer
from wheelmq.delay.cancel import Cancelled
from wheelmq.formats.disk.message import Message
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import bodies, frame
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError, Refused, Unreachable
from wheelmq.store.store import Appended, Store
from wheelmq.system.clock import SystemClock


class LateClock(SystemClock):
    def now_ms(self) -> Millis:
        return Millis(super().now_ms() - 5000)


def now_ms() -> int:
    return SystemClock().now_ms()


def test_sends_go_to_the_queues_in_turn(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            results = [await producer.send("T", b"x") for _ in range(8)]
            assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]
            assert sorted(result.queue_offset for result in results) == [0, 0, 0, 0, 1, 1, 1, 1]
            assert {result.status for result in results} == {SendStatus.OK}
            assert len({result.unique_key for result in results} | {result.message_id for result in results}) == 16
            assert all(result.due_ms is None and result.recall_handle is None for result in results)
            assert (await producer.send("T", b"x", queue_id=2)).queue.queue_id == 2
            with pytest.raises(ValueError, match="has no queue 9: its queues are 0 to 3"):
                await producer.send("T", b"x", queue_id=9)

    asyncio.run(scenario())


def test_a_broker_knows_a_producer_until_it_stops(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            assert running.app.broker is not None
            producers = running.app.broker.parts.clients.producers
            async with Producer(running.namesrv, ProducerSettings(group="P")) as producer:
                await producer.send("T", b"x")
                assert list(producers) == ["P"]
            assert list(producers) == []

    asyncio.run(scenario())


def test_a_send_returns_the_due_time(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            at_ms = now_ms() + 60_000
            assert (await producer.send("T", b"x", deliver_at_ms=at_ms)).due_ms == at_ms
            before_ms = now_ms()
            result = await producer.send("T", b"x", delay_ms=60_000)
            assert result.due_ms is not None and before_ms <= result.due_ms - 60_000 <= now_ms()
            assert result.recall_handle
            with pytest.raises(TooFarAhead, match=r"at most 259200 s \(3.0 days\): start the broker"):
                await producer.send("T", b"x", delay_ms=400 * 24 * 3_600_000)
            with pytest.raises(TooFarAhead, match="--set timer_max_delay_seconds=34560000"):
                await producer.send("T", b"x", deliver_at_ms=now_ms() + 400 * 24 * 3_600_000)
            with pytest.raises(ValueError, match="it looks like seconds"):
                await producer.send("T", b"x", deliver_at_ms=now_ms() // 1000 + 60)
            with pytest.raises(TypeError, match=r"deliver_at_ms is 1\.5, a float"):
                await producer.cancel("T", "key", 1.5)  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_a_delay_in_seconds_parks_the_message_in_a_block(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            before_ms = now_ms()
            result = await producer.send("T", b"x", delay_in_seconds=60)
            assert result.due_ms is not None and before_ms <= result.due_ms - 60_000 <= now_ms()
            await producer.send_oneway("T", b"x", delay_in_seconds=60)
            await producer.send("T", b"x")  # this send arrives one tick later, on the same connection or on another
            assert running.app.broker is not None
            assert sum(block.queue.end for block in running.app.broker.parts.blocks) >= 1
            with pytest.raises(Refused, match="should not be specified at the same time"):
                await producer.send("T", b"x", delay_in_seconds=60, properties={"DELAY": "3"})
            with pytest.raises(TooFarAhead, match="--set block_max_delay_seconds=34560000"):
                await producer.send("T", b"x", delay_in_seconds=400 * 24 * 3600)

    asyncio.run(scenario())


def test_a_computed_due_time_stays_in_the_second_of_the_recall_handle() -> None:
    handle = base64.urlsafe_b64encode(b"v1 T broker 5001 KEY").decode()  # the slot of 5000 holds 5001 to 6000
    assert [due_ms(reckoned, handle) for reckoned in (4000, 5001, 5500, 6000, 6001)] == [5001, 5001, 5500, 6000, 6000]
    for unknown in (None, "", "no base64 \x00", base64.urlsafe_b64encode(b"v2 a b c").decode()):
        assert due_ms(1234, unknown) == Millis(1234)


def test_a_cancel_returns_the_true_outcome(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            sent = await producer.send("T", b"x", delay_ms=60_000)
            assert sent.due_ms is not None
            assert await producer.cancel("T", sent.unique_key, sent.due_ms) is CancelResult.CANCELLED
            again = await producer.cancel("T", sent.unique_key, sent.due_ms, broker_name="broker-a")
            assert again is CancelResult.ALREADY_SETTLED
            assert await producer.cancel("T", "nobody", sent.due_ms) is CancelResult.NOT_FOUND
            out = await producer.send("T", b"x", delay_ms=10, properties={"UNIQ_KEY": "order-42"})
            assert running.app.broker is not None and out.due_ms is not None
            released = running.app.broker.parts.releaser.counts
            await until(lambda: released["released"] == 1)
            assert await producer.cancel("T", "order-42", out.due_ms) is CancelResult.ALREADY_SETTLED
            with pytest.raises(ValueError, match="the brokers of the topic are broker-a"):
                await producer.cancel("T", "nobody", sent.due_ms, broker_name="other")

    asyncio.run(scenario())


def test_a_cancel_that_arrives_late_is_accepted(servers: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker reads the time later than the producer. Its clock may also be ahead."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            sent = await producer.send("T", b"x", delay_ms=60_000)
            monkeypatch.setattr(producer, "_clock", LateClock())
            assert await producer.cancel("T", sent.unique_key, 0) is CancelResult.CANCELLED

    asyncio.run(scenario())


def test_a_broker_that_reports_no_outcome_gets_both_cancel_forms(
    servers: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache RocketMQ 5.3.3 obeys the first form and 5.5.0 the second."""
    stored: list[str] = []

    def append_cancel(store: Store, timer: object, blocks: object, message: Message) -> tuple[Appended, None]:
        stored.append(message.properties["TIMER_DEL_UNIQKEY"])
        return store.append(message), None

    monkeypatch.setattr("wheelmq.broker.puts.append_cancel", append_cancel)

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            sent = await producer.send("T", b"x", delay_ms=60_000)
            assert sent.due_ms is not None
            assert await producer.cancel("T", sent.unique_key, sent.due_ms) is CancelResult.ACCEPTED
            assert stored == [f"T+{sent.unique_key}", sent.unique_key]

    asyncio.run(scenario())


def test_the_outcomes_of_a_cancel_equal_those_of_the_broker() -> None:
    assert {str(one) for one in CancelResult} - {"accepted"} == {str(one) for one in Cancelled}


def test_a_batch_is_stored_in_order(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"first", queue_id=1)
            messages = [OutgoingMessage(body=b"a", keys="k"), OutgoingMessage(body=b"b"), OutgoingMessage(body=b"c")]
            results = await producer.send_batch("T", messages, queue_id=1)
            assert [result.queue_offset for result in results] == [1, 2, 3]
            assert len({result.message_id for result in results}) == len({r.unique_key for r in results}) == 3
            assert await producer.send_batch("T", []) == []
            with pytest.raises(ValueError, match="cannot be delayed"):
                await producer.send_batch("T", [OutgoingMessage(body=b"", properties={"DELAY": "1"})])

    asyncio.run(scenario())


def test_oneway_sends_arrive(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send_oneway("T", b"x", queue_id=0)
            assert running.app.broker is not None
            queues = running.app.broker.parts.store.queues
            await until(lambda: (queue := queues.find("T", 0)) is not None and queue.end == 1)

    asyncio.run(scenario())


def test_rejected_and_unreachable_sends_raise_different_errors(servers: Start) -> None:
    async def scenario() -> None:
        async with servers(auto_create_topic=False) as running, Producer(running.namesrv) as producer:
            with pytest.raises(NoBroker):
                await producer.send("T", b"x")
            with pytest.raises(ValueError, match="is not a valid topic"):
                await producer.send("a/b", b"x")
        eager = ProducerSettings(body_bytes_max=8 << 20, compress_over_bytes=None)
        async with servers() as running, Producer(running.namesrv, eager) as producer:
            with pytest.raises(ValueError, match="the limit is 8388608"):
                await producer.send("T", bytes(9 << 20))
            with pytest.raises(Refused, match="illegal"):
                await producer.send("T", bytes(5 << 20))
            await producer.send("T", b"x")
            await running.app.stop()
            with pytest.raises(Unreachable):
                await producer.send("T", b"x")
            await running.restart_broker()
            await producer.send("T", b"x")

    asyncio.run(scenario())


@pytest.mark.parametrize(("resend", "sends"), [(False, 1), (True, 3)])
def test_resend_unanswered_retries_a_send_without_an_answer(resend: bool, sends: int) -> None:
    async def scenario() -> None:
        asked: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Serve as a name server, and as a broker that never answers a send."""
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    head = await reader.readexactly(4)
                    raw = head + await reader.readexactly(int.from_bytes(head, "big"))
                    command = frame.decode(raw, 0, len(raw))
                    if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                        answer = Command(code=0, opaque=command.opaque, flag=frame.FLAG_RESPONSE, body=route)
                        writer.write(frame.encode(answer))
                    elif command.code == RequestCode.SEND_MESSAGE_V2:
                        asked.append(command.ext["i"].encode())

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        route = bodies.write(
            bodies.Route(
                broker_datas=[bodies.BrokerData(broker_name="b", cluster="c", broker_addrs={0: address})],
                queue_datas=[bodies.QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)],
            )
        )
        async with Producer(address, ProducerSettings(timeout_ms=100, resend_unanswered=resend)) as producer:
            with pytest.raises(CallError, match="did not answer"):
                await producer.send("T", b"x")
        server.close()
        assert len(asked) == sends
        assert len(set(asked)) == 1  # all sends have the same unique key

    asyncio.run(scenario())


def test_a_message_with_an_order_key_is_not_sent_to_another_queue(servers: Start) -> None:
    """The send fails while the route names a broker that is gone."""

    async def scenario() -> None:
        async with servers() as running, Producer(running.namesrv) as producer:
            await producer.send("T", b"x")
            route = await producer._session.routes.get("T")
            gone = QueueName(topic="T", broker_name="gone", queue_id=0)
            producer._session.routes._known["T"] = dataclasses.replace(
                route, writable=(gone,), masters={"gone": "127.0.0.1:1", **route.masters}
            )
            with pytest.raises(Unreachable):
                await producer.send("T", b"x", order_key="k")
            assert gone not in (await producer._session.routes.get("T")).writable
            assert (await producer.send("T", b"x", order_key="k")).queue.broker_name == "broker-a"

    asyncio.run(scenario())


def test_a_producer_works_only_between_start_and_stop(servers: Start) -> None:
    async def scenario() -> None:
        async with servers() as running:
            with pytest.raises(RuntimeError, match="start the producer"):
                await Producer(running.namesrv).send("T", b"x")
            async with Producer(running.namesrv) as producer:
                await producer.send("T", b"x")
            with pytest.raises(Unreachable, match="the client is stopped"):
                await producer.send("T", b"x")
            with pytest.raises(RuntimeError, match="create another one"):
                await producer.start()

    asyncio.run(scenario())


def test_a_new_producer_is_asked_about_transactions_of_an_earlier_run(servers: Start) -> None:
    """The broker asks it although it has not sent anything yet."""

    async def scenario() -> None:
        checks = {"transaction_time_out": 0, "transaction_check_interval": 50}
        async with servers(**checks) as running:
            settings = ProducerSettings(group="P")
            asked: list[bytes] = []

            async def unknown(message: ReceivedMessage) -> TransactionState:
                return TransactionState.UNKNOWN

            async def check(message: ReceivedMessage) -> TransactionState:
                asked.append(message.body)
                return TransactionState.COMMIT

            async with TransactionProducer(running.namesrv, unknown, settings) as first:
                await first.send_in_transaction("T", b"open", lambda sent: TransactionState.UNKNOWN)
            async with TransactionProducer(running.namesrv, check, settings):
                await until(lambda: asked == [b"open"])

    asyncio.run(scenario())
