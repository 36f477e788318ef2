"""Streams while servers, topics or queues are away."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pyspark_rocketmq import pulls, stream_reader
from pyspark_rocketmq.batch_reader import RocketBatchReader
from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.errors import BrokerError, DataLossError, OptionError, SilentBroker
from pyspark_rocketmq.group_offsets import GroupOffsets
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import batch_options, stream_options
from pyspark_rocketmq.ranges import Survey
from pyspark_rocketmq.stream_reader import RocketStreamReader
from pyspark_rocketmq.survey import survey
from tests.live import Live
from tests.unit.connector.test_source import Stream, at_broker
from wheelmq.cli.ports import free_port
from wheelmq.client import SyncAdmin
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.net.sync_connection import SyncConnection


def no_queues(cluster: Cluster, topic: str) -> list[Queue]:
    """Return the queues of a topic, as if its brokers were about to register again."""
    return []


def no_topic(cluster: Cluster, topic: str) -> list[Queue]:
    """Fail as a name server does that has just started."""
    raise TopicGone(topic)


class TestQueues:
    @pytest.mark.parametrize("fails_on_loss", ["true", "false"])
    @pytest.mark.parametrize("route", [no_queues, no_topic])
    def test_a_queue_without_a_route_waits(
        self,
        servers: Live,
        route: Callable[[Cluster, str], list[Queue]],
        fails_on_loss: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        servers.create_topic("T", queues=1)
        servers.send("T", [b"0"])
        stream = Stream(servers, failOnDataLoss=fails_on_loss)
        before = json.dumps(stream.offset)
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "queues", route)
            assert stream.batch() is None and json.dumps(stream.offset) == before
        assert "queue T/broker-a/0 is not in the route of its topic" in caplog.text
        servers.send("T", [b"1"])
        assert stream.batch() == [b"1"]

    def test_a_queue_that_comes_back_continues_at_its_offset(self, servers: Live) -> None:
        servers.create_topic("T", queues=2)
        servers.send("T", [b"0"], queue_id=1)
        strict = Stream(servers, startingOffsets="earliest")
        loose = Stream(servers, startingOffsets="earliest", failOnDataLoss="false")
        assert strict.batch() == loose.batch() == [b"0"]
        servers.create_topic("T", queues=1)
        with pytest.raises(DataLossError, match="queue T/broker-a/1 no longer exists"):
            strict.batch()
        assert loose.batch() == [] and loose.batch() is None
        assert loose.offset["left"] == {"T": {"broker-a": {"1": 1}}}
        again = Stream(servers, failOnDataLoss="false")  # as after a restart
        again.offset = loose.offset
        servers.create_topic("T", queues=2)
        servers.send("T", [b"1"], queue_id=1)
        assert again.batch() == [b"1"] and "left" not in again.offset

    def test_a_queue_that_left_is_asked_for_once_a_minute(
        self, servers: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        stream.offset["left"] = {"T": {"broker-z": {"0": 5}}}  # its broker was decommissioned later
        asked, registered = [], Cluster.registered

        def noted(cluster: Cluster) -> set[str]:
            asked.append(cluster)
            return registered(cluster)

        monkeypatch.setattr(Cluster, "registered", noted)
        assert [stream.batch() for _ in range(3)] == [None] * 3 and len(asked) == 1
        stream.clock.advance(60_000)
        assert stream.batch() is None and len(asked) == 2
        assert stream.offset["left"] == {"T": {"broker-z": {"0": 5}}} and "broker-z" not in caplog.text

    def test_a_topic_that_is_created_again_begins_with_its_first_message(self, servers: Live) -> None:
        servers.create_topic("T", queues=1)
        servers.send("T", [b"0"])
        stream = Stream(servers, failOnDataLoss="false")
        with SyncAdmin(servers.namesrv) as admin:
            admin.delete_topic("T")
        assert stream.batch() == [] and stream.batch() is None
        servers.create_topic("T", queues=1)
        servers.send("T", [b"1"])
        assert stream.batch() == [b"1"]


class TestNameServers:
    def test_a_stream_continues_without_name_servers(self, servers: Live, caplog: pytest.LogCaptureFixture) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        lose_name_servers(stream)
        servers.send("T", [b"1"])
        assert stream.batch() == [b"1"] and stream.batch() is None
        assert caplog.text.count("The stream continues with the brokers that it knows") == 1

    def test_a_stream_that_knows_no_broker_waits(self, servers: Live, caplog: pytest.LogCaptureFixture) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        before = json.dumps(stream.offset)
        lose_name_servers(stream)
        stream.reader.cluster._masters.clear()
        servers.send("T", [b"1"])
        assert stream.batch() is None and json.dumps(stream.offset) == before
        assert "The stream continues with the brokers that it knows" in caplog.text
        assert "broker broker-a is not registered" in caplog.text

    @pytest.mark.parametrize(
        "answer",
        [
            Command(code=ResponseCode.SYSTEM_ERROR, remark="name server not ready"),
            Command(code=ResponseCode.SYSTEM_BUSY, remark="busy"),
        ],
    )
    def test_the_next_name_server_is_asked_if_one_is_not_ready(
        self, servers: Live, answer: Command, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        address, call = f"127.0.0.1:{free_port()}", SyncConnection.call
        unready = {address}
        monkeypatch.setattr(
            SyncConnection,
            "call",
            lambda connection, command: answer if connection.address in unready else call(connection, command),
        )
        connection = stream_options({"namesrvAddr": f"{address};{servers.namesrv}", "topic": "T"}).connection
        with Cluster(connection) as cluster:
            assert cluster.queues("T") == [Queue("T", "broker-a", 0)]
        unready.add(servers.namesrv)
        stream.reader.cluster._retry_delays_s = (0.0,)
        servers.send("T", [b"1"])
        assert stream.batch() == [b"1"] and str(answer.remark) in caplog.text


def lose_name_servers(stream: Stream) -> None:
    """Give the stream a name server that does not answer. Its tasks have the same one."""
    reader, options = stream.reader, stream.reader._options
    connection = msgspec.structs.replace(options.connection, namesrv=(f"127.0.0.1:{free_port()}",))
    reader.cluster._options, reader.cluster._retry_delays_s = connection, (0.0,)
    reader._options = msgspec.structs.replace(options, connection=connection)


class TestBrokers:
    def test_a_rejection_is_an_error(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        answer = Command(code=ResponseCode.NO_PERMISSION, remark="no right")
        monkeypatch.setattr(Cluster, "call", lambda cluster, broker, command: answer)
        with pytest.raises(BrokerError, match="Give the rights to the key of options accessKey"):
            stream.batch()

    def test_a_pull_of_a_busy_broker_does_not_end_a_stream(
        self, servers: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = stream_after_its_end(servers, monkeypatch, ResponseCode.SYSTEM_BUSY)
        assert stream.batch() is None and stream.offset["queues"] == {"T": {"broker-a": {"0": 3}}}
        assert "The queues of the broker wait" in caplog.text

    def test_a_topic_that_is_deleted_before_a_pull_does_not_end_a_stream(
        self, servers: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = stream_after_its_end(servers, monkeypatch, ResponseCode.TOPIC_NOT_EXIST)
        assert stream.batch() == [] and stream.offset["queues"] == {}

    def test_commits_ask_a_busy_broker_once(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        for topic in ("T", "U"):
            servers.create_topic(topic, queues=1)
        asked = []

        def commit(cluster: Cluster, group: str, queue: Queue, offset: int) -> None:
            asked.append(queue)
            raise BrokerError("busy", Command(code=ResponseCode.SYSTEM_BUSY))

        monkeypatch.setattr(Cluster, "commit", commit)
        reader = Stream(servers).reader
        GroupOffsets("g", {}).commit(reader.cluster, {Queue(topic, "broker-a", 0): 1 for topic in ("T", "U")})
        assert asked == [Queue("T", "broker-a", 0)]

    def test_a_warning_comes_once_a_minute(self, servers: Live, caplog: pytest.LogCaptureFixture) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        servers.stop_broker("broker-a")
        assert [stream.batch() for _ in range(3)] == [None] * 3
        assert caplog.text.count("The queues of the broker wait") == 1
        stream.clock.advance(60_000)
        assert stream.batch() is None and caplog.text.count("The queues of the broker wait") == 2

    def test_a_survey_asks_a_busy_broker_again(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        servers.send("T", [b"1"])
        busy = [Command(code=ResponseCode.SYSTEM_BUSY, remark="busy")]
        call = SyncConnection.call

        def call_later(connection: SyncConnection, command: Command) -> Command:
            is_of_broker = connection.address == servers.broker_address("broker-a")
            return busy.pop() if busy and is_of_broker else call(connection, command)

        monkeypatch.setattr(SyncConnection, "call", call_later)
        assert stream.batch() == [b"1"] and not busy

    def test_a_task_finds_a_broker_at_its_new_address(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pulls, "RETRY_DELAYS_S", (0.0,))
        servers.create_topic("T", queues=1)
        servers.send("T", [b"1", b"2"])
        options = {"namesrvAddr": servers.namesrv, "topic": "T", "startingOffsets": "earliest"}
        reader = RocketBatchReader(batch_options(options), ("body",))
        (task,) = reader.partitions()
        servers.stop_broker("broker-a")
        servers.add_broker("broker-a")  # it chooses another port
        assert [row["body"] for batch in reader.read(task) for row in batch.to_pylist()] == [b"1", b"2"]

    def test_a_busy_task_pulls_again(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        servers.create_topic("T", queues=1)
        servers.send("T", [b"1"])
        reader = RocketBatchReader(batch_options({"namesrvAddr": servers.namesrv, "topic": "T"}), ("body",))
        (task,) = reader.partitions()
        busy = [Command(code=ResponseCode.SYSTEM_BUSY, remark="busy")]
        finish = SyncConnection.finish
        monkeypatch.setattr(SyncConnection, "finish", lambda *args: busy.pop() if busy else finish(*args))
        assert [row["body"] for batch in reader.read(task) for row in batch.to_pylist()] == [b"1"] and not busy


def stream_after_its_end(servers: Live, monkeypatch: pytest.MonkeyPatch, code: int) -> Stream:
    """Return a stream whose offset lies after the end of its queue. The broker answers each pull with `code`."""
    servers.create_topic("T", queues=1)
    stream = Stream(servers, failOnDataLoss="false")
    stream.offset = {"lost": 0, "queues": {"T": {"broker-a": {"0": 3}}}}
    call = Cluster.call

    def answer(cluster: Cluster, broker: str, command: Command) -> Command:
        return Command(code=code) if command.code == RequestCode.PULL_MESSAGE else call(cluster, broker, command)

    monkeypatch.setattr(Cluster, "call", answer)
    return stream


class TestAvailableNow:
    @pytest.fixture
    def stream(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> Stream:
        """Return a stream of two brokers with a message each. broker-b is away at the start of the query."""
        monkeypatch.setattr(stream_reader, "AWAY_MS", 0)
        servers.add_broker("broker-b")
        servers.create_topic("T", queues=1)
        stream = Stream(servers, startingOffsets="earliest")
        for broker in ("broker-a", "broker-b"):
            servers.send("T", [broker.encode()], select=at_broker(broker))
        servers.stop_broker("broker-b")
        stream.reader.prepareForTriggerAvailableNow()
        return stream

    def test_a_broker_that_comes_back_is_read(self, servers: Live, stream: Stream) -> None:
        assert stream.batch() == [b"broker-a"]
        with pytest.raises(SilentBroker, match=r"without the messages of queue T/broker-b/0.*Start the broker"):
            stream.batch()
        servers.add_broker("broker-b")
        servers.send("T", [b"late"], select=at_broker("broker-a"))
        assert stream.batch() == [b"broker-b"] and stream.batch() is None

    def test_the_query_ends_without_them_if_losses_are_no_errors(
        self, stream: Stream, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream.reader._options = msgspec.structs.replace(stream.reader._options, fails_on_loss=False)
        assert stream.batch() == [b"broker-a"] and stream.batch() is None
        assert "The next query with this checkpoint reads them" in caplog.text

    def test_the_query_asks_for_30_s(self, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_reader, "AWAY_MS", 30_000)
        monkeypatch.setattr(stream_reader, "AWAY_DELAY_S", 0)
        assert stream.batch() == [b"broker-a"]
        surveys = []

        def slow_survey(*args: Any, **options: Any) -> Survey:
            surveys.append(args)
            stream.clock.advance(12_000)
            return survey(*args, **options)

        monkeypatch.setattr(stream_reader, "survey", slow_survey)
        with pytest.raises(SilentBroker, match="Start the broker"):
            stream.batch()
        assert len(surveys) == 3

    def test_the_only_broker_may_restart_at_the_start(self, servers: Live) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        servers.send("T", [b"1"])
        servers.stop_broker("broker-a")
        stream.reader.prepareForTriggerAvailableNow()
        servers.add_broker("broker-a")
        assert stream.batch() == [b"1"] and stream.batch() is None

    def test_a_registered_broker_may_be_silent_at_the_start(
        self, servers: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        servers.create_topic("T", queues=1)
        stream = Stream(servers)
        servers.send("T", [b"1"])
        address, begin = servers.broker_address("broker-a"), SyncConnection.begin

        def time_out(connection: SyncConnection, command: Command) -> int:
            if connection.address == address:
                raise CallError("timed out")
            return begin(connection, command)

        with monkeypatch.context() as patch:
            patch.setattr(SyncConnection, "begin", time_out)
            patch.setattr(stream.reader.cluster, "_retry_delays_s", (0.0,))
            stream.reader.prepareForTriggerAvailableNow()
        assert "broker broker-a does not answer" in caplog.text
        assert stream.batch() == [b"1"] and stream.batch() is None

    def test_a_misspelt_topic_is_an_error_at_the_first_start(self, servers: Live) -> None:
        reader = RocketStreamReader(stream_options({"namesrvAddr": servers.namesrv, "topic": "None"}), ("body",))
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(OptionError, match="does not know topic None"):
            reader.initialOffset()
