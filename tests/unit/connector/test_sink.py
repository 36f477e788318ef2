"""The sink against live brokers, without Spark. tests/compat runs the same suite against Apache RocketMQ."""

from __future__ import annotations

import asyncio
import datetime
import socket
from typing import Any

import pyarrow as pa
import pytest

from pyspark_rocketmq import sending
from pyspark_rocketmq.errors import BrokerError, OptionError
from pyspark_rocketmq.options import sink_options
from pyspark_rocketmq.rows import Row, RowForm, UniqueKeys
from pyspark_rocketmq.sending import Sender, check_topics, chunks, send_partition
from tests.live import Servers
from tests.unit.connector.test_rows import TYPES
from tests.unit.connector.test_source import bodies, read
from wheelmq.client import OutgoingMessage, Refused, SyncAdmin, SyncPullConsumer
from wheelmq.client.outgoing import batched_bytes
from wheelmq.client.results import SendResult, SendStatus
from wheelmq.formats.units import QueueOffset
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection


def send(servers: Servers, topic: str, job: str = "job", creates: str = "true", **columns: list[Any]) -> int:
    """Send one partition of rows. Returns their number."""
    options = sink_options({"namesrvAddr": servers.namesrv, "topic": topic, "createTopic": creates})
    form = RowForm(columns=tuple(columns), topic=topic, body_bytes_max=4 << 20, delivers_past=False)
    arrays = [pa.array(values, TYPES.get(name, pa.string())) for name, values in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    count = send_partition(options, form, [batch.slice(0, 7), batch.slice(7)], UniqueKeys(job, 0))
    if "deliverTime" not in columns:
        servers.wait_for(topic, lambda ends: sum(ends.values()) >= count)
    return count


class TestSink:
    def test_rows_arrive_with_their_columns(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        sent = [b"%d" % i for i in range(600)]
        count = send(
            servers, servers.topic, body=sent, tags=["a", None] * 300, properties=[[("x", str(i))] for i in range(600)]
        )
        rows = sorted(read(servers, topic=servers.topic), key=lambda row: int(row["body"]))
        assert count == 600 and bodies(rows) == sent
        assert [row["tags"] for row in rows[:2]] == ["a", None] and dict(rows[5]["properties"])["x"] == "5"
        assert [row["msgId"] for row in rows] == [keys.next() for keys in [UniqueKeys("job", 0)] for _ in sent]

    def test_rows_with_a_sharding_key_stay_in_order(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=3)
        sent = [b"%d" % i for i in range(600)]
        send(servers, servers.topic, body=sent, shardingKey=[f"k{i % 5}" for i in range(600)])
        rows = read(servers, topic=servers.topic)
        for i in range(5):
            mine = [row for row in rows if int(row["body"]) % 5 == i]
            assert bodies(mine) == sent[i::5] and len({row["queueId"] for row in mine}) == 1

    def test_large_bodies_arrive(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        sent = [b"%d" % i * 200_000 for i in range(10)]
        send(servers, servers.topic, body=sent)
        assert sorted(bodies(read(servers, topic=servers.topic))) == sent

    def test_large_properties_arrive(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        count = 263  # as one batch they exceed maxMessageSize of 4 MiB
        send(servers, servers.topic, body=[b"x"] * count, properties=[[("x", "y" * 20_000)]] * count)
        rows = read(servers, topic=servers.topic)
        assert [dict(row["properties"])["x"] for row in rows] == ["y" * 20_000] * count

    def test_delayed_rows_arrive_with_their_due_time(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        due = [now + datetime.timedelta(seconds=2, milliseconds=i % 10) for i in range(50)]
        send(servers, servers.topic, body=[b"%d" % i for i in range(50)], deliverTime=due)
        with SyncPullConsumer(servers.namesrv, f"{servers.topic}-group") as consumer:
            consumer.subscribe(servers.topic)
            found: dict[int, int | None] = {}
            while len(found) < 50:
                came = consumer.poll(20_000)
                assert came
                found |= {int(message.body): message.due_ms for message in came}
        assert found == {i: round(due[i].timestamp() * 1000) for i in range(50)}
        assert {row["deliverTime"] for row in read(servers, topic=servers.topic)} == set(due)

    def test_a_due_time_beyond_the_limit_is_an_error(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        with pytest.raises(
            OptionError, match=r"column deliverTime or delayMs, topic .*: choose an earlier time"
        ) as late:
            send(servers, servers.topic, body=[b"x"], delayMs=[90 * 86_400_000])
        assert "delay_in_seconds" not in str(late.value)  # the sink has no such column

    def test_a_topic_that_does_not_exist_is_an_error(self, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sending, "RETRY_DELAYS_S", (0.0,))
        absent = f"{servers.topic}-misspelt"
        with pytest.raises(OptionError, match=f"does not know topic {absent}: .* or remove option createTopic"):
            send(servers, absent, creates="false", body=[b"x"])
        with SyncAdmin(servers.namesrv) as admin:
            assert absent not in admin.topics()

    def test_one_connection_checks_all_topics(self, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
        topics = [f"{servers.topic}-{i}" for i in range(2)]
        for topic in topics:
            servers.create_topic(topic, queues=1)
        dialled, dial = [], SyncConnection._dial

        def noted(connection: SyncConnection) -> socket.socket:
            dialled.append(connection.address)
            return dial(connection)

        monkeypatch.setattr(SyncConnection, "_dial", noted)
        options = sink_options({"namesrvAddr": servers.namesrv, "createTopic": "false"})
        asyncio.run(check_topics(options, topics))
        assert len(dialled) == 1

    def test_the_first_row_creates_its_topic_by_default(self, servers: Servers) -> None:
        assert send(servers, f"{servers.topic}-new", body=[b"x"]) == 1

    def test_a_topic_that_clients_may_not_send_to_is_an_error(self, servers: Servers) -> None:
        with pytest.raises((BrokerError, OptionError), match="topic SCHEDULE_TOPIC_XXXX"):
            send(servers, "SCHEDULE_TOPIC_XXXX", body=[b"x"])

    def test_a_busy_broker_gets_the_rows_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sending, "RETRY_DELAYS_S", (0.0, 0.0))
        producer = SlowProducer(Refused(Command(code=ResponseCode.SYSTEM_BUSY)), SendStatus.OK)
        asyncio.run(Sender(producer).send(ONE_ROW))  # type: ignore[arg-type]
        assert producer.calls == 2

    def test_a_row_that_is_not_safe_is_sent_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker whose fsync has failed answers so, and stops. Its next life does not have the message."""
        monkeypatch.setattr(sending, "RETRY_DELAYS_S", (0.0, 0.0))
        producer = SlowProducer(SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.OK)
        asyncio.run(Sender(producer).send(ONE_ROW))  # type: ignore[arg-type]
        assert producer.calls == 3
        producer = SlowProducer(*[SendStatus.FLUSH_SLAVE_TIMEOUT] * 3)
        with pytest.raises(BrokerError, match="b answers FLUSH_SLAVE_TIMEOUT to a message for topic T"):
            asyncio.run(Sender(producer).send(ONE_ROW))  # type: ignore[arg-type]


def test_a_batch_has_limits() -> None:
    messages = [OutgoingMessage(body=bytes(50), keys="k" * 20, tags="t", properties={"x": "y"})] * 300
    size = batched_bytes(messages[0])
    assert [len(chunk) for chunk in chunks(messages)] == [256, 44]
    assert [len(chunk) for chunk in chunks(messages, 100 * size)] == [100, 100, 100]
    assert [len(chunk) for chunk in chunks(messages[:3], size - 1)] == [1, 1, 1]


ONE_ROW = [Row("T", OutgoingMessage(body=b"x"))]


class SlowProducer:
    """Gives these answers in turn: rejections, and statuses of stored messages."""

    def __init__(self, *answers: Refused | SendStatus) -> None:
        self.calls = 0
        self._answers = answers

    async def send(self, topic: str, body: bytes, **options: Any) -> SendResult:
        answer = self._answers[self.calls]
        self.calls += 1
        if isinstance(answer, Refused):
            raise answer
        queue = QueueName(topic=topic, broker_name="b", queue_id=0)
        return SendResult(status=answer, message_id="", unique_key="", queue=queue, queue_offset=QueueOffset(0))
