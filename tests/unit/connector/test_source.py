"""The source against live brokers, without Spark. tests/compat runs the same suite against Apache RocketMQ."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_rocketmq.batch_reader import RocketBatchReader
from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.columns import COLUMNS
from pyspark_rocketmq.errors import BrokerError, DataLossError, OptionError
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import batch_options, stream_options
from pyspark_rocketmq.stream_reader import RocketStreamReader
from tests.live import Servers, live
from wheelmq.client import AccessKey, SyncAdmin
from wheelmq.client.outgoing import Selector
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.clock import ManualClock

Rows = list[dict[str, Any]]


def read(servers: Servers, **options: str) -> Rows:
    """Return the rows of a batch read, in the order of its tasks."""
    reader = RocketBatchReader(batch_options({"namesrvAddr": servers.namesrv, **options}), tuple(COLUMNS))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def from_offset(servers: Servers, offset: int) -> str:
    """Return offsets in JSON for a topic of one queue."""
    return json.dumps({servers.topic: {"broker-a": {"0": offset}}})


def at_broker(name: str) -> Selector:
    """Return a function that chooses a queue of a broker."""
    return lambda queues: next(queue for queue in queues if queue.broker_name == name)


def bodies(rows: Rows) -> list[bytes]:
    return [row["body"] for row in rows]


class Stream:
    """A stream as Spark drives it."""

    def __init__(self, servers: Servers, **options: str) -> None:
        self.clock = ManualClock()
        chosen = stream_options({"namesrvAddr": servers.namesrv, "topic": servers.topic, **options})
        self.reader = RocketStreamReader(chosen, ("body", "queueId"), self.clock)
        self.offset = self.reader.initialOffset()

    def batch(self, limit: Any = None) -> list[bytes] | None:
        """Run the next batch and return its bodies; None without a batch."""
        start, self.offset = (
            self.offset,
            self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit()),
        )
        if json.dumps(start) == json.dumps(self.offset):
            return None
        found = []
        for task in self.reader.partitions(start, self.offset):
            for batch in self.reader.read(task):
                found += [row["body"] for row in batch.to_pylist()]
        return found


class TestBatch:
    def test_all_messages_of_a_topic(self, servers: Servers) -> None:
        servers.create_topic(servers.topic)
        sent = [b"%d" % i for i in range(150)]
        servers.send(servers.topic, sent[:100], queue_id=0, tags="a", keys=["k1", "k2"], properties={"x": "y"})
        servers.send(servers.topic, sent[100:], queue_id=1)
        rows = read(servers, topic=servers.topic)
        assert bodies(rows) == sent
        assert rows[99]["queueOffset"] == 99 and rows[0]["tags"] == "a" and rows[0]["keys"] == "k1 k2"
        assert dict(rows[0]["properties"])["x"] == "y" and rows[100]["tags"] is None

    def test_starts_and_ends(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0", b"1", b"2"], queue_id=0)
        first_ms = round(read(servers, topic=servers.topic)[2]["storeTimestamp"].timestamp() * 1000)
        assert bodies(
            read(
                servers,
                topic=servers.topic,
                startingOffsets=from_offset(servers, 1),
                endingOffsets=from_offset(servers, 2),
            )
        ) == [b"1"]
        assert bodies(read(servers, topic=servers.topic, startingOffsets=from_offset(servers, -1))) == []
        assert b"2" in bodies(read(servers, topic=servers.topic, startingTimestamp=str(first_ms)))
        assert bodies(read(servers, topic=servers.topic, startingTimestamp=str(first_ms + 60_000))) == []
        assert bodies(read(servers, topic=servers.topic, endingTimestamp="-1 day")) == []

    def test_a_start_after_the_end_is_an_error(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0", b"1", b"2"], queue_id=0)
        text = rf"{servers.topic}/broker-a/0 starts at offset 2, after its end at 1: choose an earlier startingOffsets"
        with pytest.raises(OptionError, match=text):
            starts, ends = from_offset(servers, 2), from_offset(servers, 1)
            read(servers, topic=servers.topic, startingOffsets=starts, endingOffsets=ends)
        with pytest.raises(OptionError, match="starts at offset 3, after its end at 0"):
            read(servers, topic=servers.topic, startingOffsets="latest", endingTimestamp="-1 day")
        with SyncAdmin(servers.namesrv) as admin:
            admin.create_group("h")
        with Cluster(batch_options({"namesrvAddr": servers.namesrv, "topic": servers.topic}).connection) as cluster:
            cluster.locate(servers.topic, "broker-a")
            cluster.commit("h", Queue(servers.topic, "broker-a", 0), 2)
        options = {"startingOffsets": "group", "group": "h", "endingOffsets": from_offset(servers, 1)}
        assert read(servers, topic=servers.topic, **options) == []  # the group has consumed them

    def test_a_group_names_the_start(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0", b"1"], queue_id=0)
        with SyncAdmin(servers.namesrv) as admin:
            admin.create_group("g")
        with Cluster(batch_options({"namesrvAddr": servers.namesrv, "topic": servers.topic}).connection) as cluster:
            cluster.locate(servers.topic, "broker-a")
            cluster.commit("g", Queue(servers.topic, "broker-a", 0), 1)
        assert bodies(read(servers, topic=servers.topic, startingOffsets="group", group="g")) == [b"1"]
        assert bodies(read(servers, topic=servers.topic, startingOffsets="group", group="new")) == [b"0", b"1"]

    def test_lists_and_patterns(self, servers: Servers) -> None:
        first, second, third = (f"{servers.topic}-{kind}" for kind in ("Orders", "OrdersOld", "Bills"))
        for topic in (first, second, third):
            servers.create_topic(topic, queues=1)
            servers.send(topic, [topic.encode()])
        assert bodies(read(servers, topics=f"{first},{third}")) == [third.encode(), first.encode()]
        assert bodies(read(servers, topicsPattern=f"{first}.*")) == [first.encode(), second.encode()]

    def test_no_pattern_matches_a_topic_of_servers(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        options = batch_options({"namesrvAddr": servers.namesrv, "topicsPattern": ".*"})
        with Cluster(options.connection) as cluster:
            found = set(cluster.topics(options.topics))
        assert servers.topic in found and found.isdisjoint({"broker-a", "DefaultCluster", "BenchmarkTest", "TBW102"})

    def test_the_broker_filters(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        for i in range(100):
            servers.send(servers.topic, [b"%d" % i], tags="odd" if i % 2 else "even", properties={"i": str(i)})
        assert bodies(read(servers, topic=servers.topic, tags="odd || none")) == [b"%d" % i for i in range(1, 100, 2)]
        assert bodies(read(servers, topic=servers.topic, sql="i >= 97")) == [b"97", b"98", b"99"]

    def test_ranges_are_split(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"%d" % i for i in range(10)])
        options = batch_options({"namesrvAddr": servers.namesrv, "topic": servers.topic, "minPartitions": "3"})
        reader = RocketBatchReader(options, ("body",))
        found = [
            [row["body"] for batch in reader.read(task) for row in batch.to_pylist()] for task in reader.partitions()
        ]
        assert [len(part) for part in found] == [3, 3, 4] and [body for part in found for body in part] == [
            b"%d" % i for i in range(10)
        ]

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"topic": "None"}, "topic: the name server does not know topic None"),
            ({"topic": "", "topicsPattern": "None"}, "matches no topic"),
            ({"sql": "i >"}, "rejects sql 'i >'"),
            ({"endingOffsets": '{"TOPIC": {"broker-a": {"0": 9}}}'}, "ends at 1: lower it"),
            ({"startingOffsets": '{"TOPIC": {"broker-a": {"1": 9}}}'}, "no offset for .*/broker-a/0"),
        ],
    )
    def test_a_bad_option_is_an_error_with_a_remedy(self, servers: Servers, options: dict[str, str], text: str) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0"])
        chosen = {"topic": servers.topic, **options}
        chosen = {name: value.replace("TOPIC", servers.topic) for name, value in chosen.items() if value}
        with pytest.raises(OptionError, match=text):
            read(servers, **chosen)

    def test_an_offset_beyond_the_end_is_data_loss(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        offsets = from_offset(servers, 9)
        with pytest.raises(DataLossError, match=r"ends at 0, before offset 9.*failOnDataLoss"):
            read(servers, topic=servers.topic, startingOffsets=offsets)
        assert read(servers, topic=servers.topic, startingOffsets=offsets, failOnDataLoss="false") == []

    def test_a_broker_is_no_name_server(self, servers: Servers) -> None:
        options = batch_options({"namesrvAddr": servers.broker_address("broker-a"), "topic": servers.topic})
        with pytest.raises(OptionError, match="is no name server"):
            RocketBatchReader(options, ("body",)).partitions()

    def test_no_name_server_answers(self) -> None:
        connection = batch_options({"namesrvAddr": "127.0.0.1:1", "topic": "T"}).connection
        with pytest.raises(BrokerError, match="no name server of namesrvAddr answers"):
            Cluster(connection, retry_delays_s=(0.0,)).queues("T")


class TestStream:
    def test_batches_follow_each_other(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"old"])
        stream = Stream(servers)
        assert stream.batch() is None
        servers.send(servers.topic, [b"1", b"2"])
        assert stream.batch() == [b"1", b"2"]
        assert stream.batch() is None
        reported = stream.reader.reportLatestOffset()
        assert reported is not None and reported["queues"] == stream.offset["queues"]

    def test_a_batch_has_at_most_the_chosen_number_of_messages(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"%d" % i for i in range(10)])
        stream = Stream(servers, startingOffsets="earliest", maxOffsetsPerTrigger="4")
        assert stream.batch() == [b"0", b"1", b"2", b"3"]
        assert stream.batch(ReadAllAvailable()) == [b"%d" % i for i in range(4, 10)]

    def test_a_limit_in_bytes(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [bytes(1000)] * 10)
        stream = Stream(servers, startingOffsets="earliest", maxBytesPerTrigger="4500")
        assert [len(stream.batch() or []) for _ in range(4)] == [3, 3, 3, 1]

    def test_a_batch_waits_for_enough_messages_but_not_for_ever(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0"])
        stream = Stream(servers, startingOffsets="earliest", minOffsetsPerTrigger="3", maxTriggerDelay="10s")
        assert stream.batch() == [b"0"]
        servers.send(servers.topic, [b"1"])
        assert stream.batch() is None
        stream.clock.advance(10_000)
        assert stream.batch() == [b"1"]
        servers.send(servers.topic, [b"2", b"3", b"4"])
        assert stream.batch() == [b"2", b"3", b"4"]

    def test_available_now_ends_at_the_messages_of_its_start(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0", b"1", b"2"])
        stream = Stream(servers, startingOffsets="earliest", maxOffsetsPerTrigger="2")
        stream.reader.prepareForTriggerAvailableNow()
        servers.send(servers.topic, [b"late"])
        assert [stream.batch(), stream.batch(), stream.batch()] == [[b"0", b"1"], [b"2"], None]

    def test_a_restart_repeats_a_batch(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        servers.send(servers.topic, [b"0", b"1"])
        first = Stream(servers, startingOffsets="earliest")
        start = first.offset
        assert first.batch() == [b"0", b"1"]
        servers.send(servers.topic, [b"2"])
        second = Stream(servers)
        (task,) = second.reader.partitions(start, first.offset)
        (batch,) = second.reader.read(task)
        assert bodies(batch.to_pylist()) == [b"0", b"1"]

    def test_a_restart_in_the_first_batch_repeats_it(self, servers: Servers) -> None:
        """Spark stores no initial offset: it asks again, and the latest offset is another one by then."""
        servers.create_topic(servers.topic, queues=1)
        first = Stream(servers)
        servers.send(servers.topic, [b"0", b"1"])
        assert first.reader.initialOffset() == first.offset
        assert first.batch() == [b"0", b"1"]
        servers.send(servers.topic, [b"2"])
        again = Stream(servers)
        (task,) = again.reader.partitions(again.offset, first.offset)
        (batch,) = again.reader.read(task)
        assert bodies(batch.to_pylist()) == [b"0", b"1"]
        again.offset = first.offset
        assert again.batch() == [b"2"] and "begins" not in again.offset and again.batch() is None

    def test_a_vanished_topic_is_data_loss(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        strict, loose = Stream(servers), Stream(servers, failOnDataLoss="false")
        with SyncAdmin(servers.namesrv) as admin:
            admin.delete_topic(servers.topic)
        with pytest.raises(DataLossError, match="no longer exists"):
            strict.batch()
        assert loose.batch() == [] and loose.offset["queues"] == {}

    def test_group_offsets_follow_processed_batches(self, servers: Servers) -> None:
        servers.create_topic(servers.topic, queues=1)
        stream = Stream(servers, group="g", commitGroupOffsets="true")
        servers.send(servers.topic, [b"0", b"1"])
        assert stream.batch() == [b"0", b"1"]
        queue = Queue(servers.topic, "broker-a", 0)
        assert not stream.reader.cluster.committed("g", queue)
        assert stream.batch() is None
        assert stream.reader.cluster.committed("g", queue) == 2

    def test_group_offsets_of_a_vanished_topic_do_not_stop_the_others(
        self, servers: Servers, caplog: pytest.LogCaptureFixture
    ) -> None:
        gone, kept = f"{servers.topic}-1", f"{servers.topic}-2"
        options = {"topics": f"{gone},{kept}", "group": "g", "commitGroupOffsets": "true", "failOnDataLoss": "false"}
        for topic in (gone, kept):
            servers.create_topic(topic, queues=1)
            servers.send(topic, [b"x"])
        offset = {"lost": 0, "queues": {topic: {"broker-a": {"0": 1}} for topic in (gone, kept)}}
        with SyncAdmin(servers.namesrv) as admin:
            admin.create_group("g")
            admin.delete_topic(gone)
        chosen = stream_options({"namesrvAddr": servers.namesrv, **options})
        reader = RocketStreamReader(chosen, ("body",))  # as after a restart, it knows no broker
        assert list(reader.latestOffset(offset, ReadAllAvailable())["queues"]) == [kept]
        assert reader.cluster.committed("g", Queue(kept, "broker-a", 0)) == 1
        assert f"in topic {gone} at broker-a were not committed" in caplog.text


class TestBrokers:
    def test_new_queues_and_brokers_join(self, own_servers: Servers) -> None:
        servers = own_servers
        servers.create_topic(servers.topic, queues=1)
        stream = Stream(servers)
        servers.create_topic(servers.topic, queues=2)
        servers.send(servers.topic, [b"1"], queue_id=1)
        assert stream.batch() == [b"1"]
        servers.add_broker("broker-b")
        servers.create_topic(servers.topic, queues=3)
        assert stream.batch() == []
        servers.send(servers.topic, [b"2"], queue_id=2)
        assert stream.batch() == [b"2"]
        assert sorted(stream.offset["queues"][servers.topic]) == ["broker-a", "broker-b"]

    def test_a_silent_broker_does_not_stop_the_others(
        self, own_servers: Servers, caplog: pytest.LogCaptureFixture
    ) -> None:
        servers = own_servers
        servers.add_broker("broker-b")
        servers.create_topic(servers.topic, queues=1)
        stream = Stream(servers)
        servers.stop_broker("broker-b")
        servers.send(servers.topic, [b"1"])
        assert stream.batch() == [b"1"]
        assert stream.offset["queues"][servers.topic]["broker-b"] == {"0": 0}
        assert "The queues of the broker wait" in caplog.text

    def test_a_silent_broker_does_not_stop_the_commits_at_others(self, own_servers: Servers) -> None:
        servers = own_servers
        servers.add_broker("broker-b")
        servers.create_topic(servers.topic, queues=1)
        stream = Stream(servers, group="g", commitGroupOffsets="true")
        for broker in ("broker-a", "broker-b"):
            servers.send(servers.topic, [b"x"], select=at_broker(broker))
        assert stream.batch() == [b"x", b"x"]
        servers.stop_broker("broker-a")
        stream.reader.latestOffset(stream.offset, ReadAllAvailable())
        assert stream.reader.cluster.committed("g", Queue(servers.topic, "broker-b", 0)) == 1

    def test_a_restart_of_the_only_broker_is_no_data_loss(self, own_servers: Servers) -> None:
        servers = own_servers
        servers.create_topic(servers.topic, queues=1)
        stream = Stream(servers)
        servers.stop_broker("broker-a")
        assert stream.batch() is None
        servers.add_broker("broker-a")
        servers.send(servers.topic, [b"1"])
        assert stream.batch() == [b"1"]


@pytest.mark.parametrize("count_max", [1, 3, 100])
def test_pulls_adapt_to_the_limits_of_the_broker(tmp_path: Path, count_max: int) -> None:
    with live(tmp_path, transfer_count_max=count_max, transfer_bytes_max=20_000) as servers:
        servers.create_topic("T", queues=1)
        sent = [b"%d" % i * (1 if i % 100 < 60 else 3000) for i in range(250)]
        servers.send("T", sent)
        assert bodies(read(servers, topic="T")) == sent


def test_expired_messages_are_skipped_and_counted(tmp_path: Path) -> None:
    with live(tmp_path, file_reserved_time=0) as servers:
        servers.create_topic(servers.topic, queues=1)
        strict = Stream(servers, startingOffsets="earliest")
        loose = Stream(servers, startingOffsets="earliest", failOnDataLoss="false")
        start = loose.offset
        servers.send(servers.topic, [random_bytes(60_000, i) for i in range(40)])
        (whole,) = loose.reader.partitions(start, loose.reader.latestOffset(start, ReadAllAvailable()))
        expire_oldest_file(strict.reader.cluster)
        with pytest.raises(DataLossError, match=r"\[0, \d+\) has expired. Set failOnDataLoss"):
            strict.batch()
        rest = loose.batch()
        assert rest is not None and loose.offset["lost"] == 40 - len(rest) > 0
        assert sum(batch.num_rows for batch in loose.reader.read(whole)) == len(rest)
        with pytest.raises(DataLossError, match="no longer has"):
            list(strict.reader.read(whole))


def random_bytes(count: int, seed: int) -> bytes:
    """Return bytes that no client compresses."""
    return Random(seed).randbytes(count)


def expire_oldest_file(cluster: Cluster) -> None:
    """Have the broker delete log files, once their records are on disk."""
    deadline = time.monotonic() + 20
    while cluster.spans("T", "broker-a")[Queue("T", "broker-a", 0)].first == 0:
        assert time.monotonic() < deadline
        cluster.ask("broker-a", Command(code=RequestCode.DELETE_EXPIRED_COMMITLOG))


def test_a_missing_or_wrong_key_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    user = '{"username":"spark","password":"secret-of-spark"}'
    with live(tmp_path, authentication_enabled=True, init_authentication_user=user) as servers:
        keys = {"accessKey": "spark", "secretKey": "secret-of-spark"}
        with SyncAdmin(servers.namesrv, access_key=AccessKey(*keys.values())) as admin:
            admin.create_topic("T", queues=1)
        assert read(servers, topic="T", **keys) == []
        for wrong in ({}, {**keys, "secretKey": "another"}):
            with pytest.raises(BrokerError, match="the key of options accessKey and secretKey"):
                read(servers, topic="T", **wrong)
