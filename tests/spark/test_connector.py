"""`format("rocketmq")` in Spark, against a live broker of WheelMQ."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.json import decode
from pyspark.errors.exceptions.base import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from examples.archive_topic import archive
from examples.replay_traffic import replay
from examples.schedule_campaign import schedule
from pyspark_rocketmq import DefaultSource, named
from pyspark_rocketmq.columns import COLUMNS, SPARK_SCHEMA, arrow_schema
from pyspark_rocketmq.options import sink_options
from pyspark_rocketmq.rows import RowForm
from pyspark_rocketmq.writers import RocketStreamWriter
from tests.live import Live, live
from wheelmq.cli.timers import list_pending
from wheelmq.delay.pending_message import PendingMessage
from wheelmq.formats.units import NEVER_MS
from wheelmq.formats.wire.timer_requests import TimerQuery

pytestmark = pytest.mark.spark
DEADLINE_S = 120


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("servers")) as running:
        yield running


def read(spark: SparkSession, servers: Live, topic: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrvAddr=servers.namesrv, topic=topic, **options).load()


def bodies(rows: DataFrame) -> list[bytes]:
    return sorted(bytes(row.body) for row in rows.select("body").collect())


def run_available(stream: DataFrame, folder: Path) -> StreamingQuery:
    """Write the bodies of all messages that exist now as Parquet files in `folder`."""
    query = (
        stream.select("body")
        .writeStream.format("parquet")
        .options(path=str(folder / "bodies"), checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)
    return query


def test_the_schemas_are_one(spark: SparkSession) -> None:
    schema = StructType.fromDDL(SPARK_SCHEMA)
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(tuple(COLUMNS)))


class TestBatch:
    def test_spark_finds_the_source_by_itself(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Found", queues=2)
        servers.send("Found", [b"%d" % i for i in range(10)], tags="a", keys="k", properties={"x": "y"})
        rows = read(spark, servers, "Found")
        assert rows.schema == StructType.fromDDL(SPARK_SCHEMA)
        assert bodies(rows) == [b"%d" % i for i in range(10)]
        row = rows.where("body = '3'").collect()[0]
        assert row.properties["x"] == "y" and row.tags == "a" and row.topic == "Found" and row.deliverTime is None
        age_s = datetime.datetime.now().timestamp() - row.storeTimestamp.timestamp()
        assert abs(age_s) < 1800  # a wrong time zone is at least this far

    def test_a_source_can_have_a_name_of_its_own(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Named", queues=1)
        servers.send("Named", [b"x"])
        spark.dataSource.register(named("rocketmq.orders"))
        rows = spark.read.format("rocketmq.orders").options(namesrvAddr=servers.namesrv, topic="Named").load()
        assert bodies(rows) == [b"x"]

    def test_a_schema_chooses_columns(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Chosen", queues=1)
        servers.send("Chosen", [b"x"], tags="a")
        reader = spark.read.format("rocketmq").options(namesrvAddr=servers.namesrv, topic="Chosen")
        assert reader.schema("tags string, queueOffset bigint").load().collect() == [("a", 0)]
        with pytest.raises(PySparkException, match="the columns are body, topic"):
            reader.schema("price double").load().collect()

    def test_tasks_read_the_files_of_a_store(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Files", queues=2)
        for queue in range(2):
            servers.send("Files", [b"%d %d" % (queue, i) for i in range(40)], queue_id=queue)
        broker = servers.brokers["broker-a"].broker
        assert broker is not None
        before = broker.parts.stats.transferred
        rows = read(spark, servers, "Files", storePath=str(servers.store("broker-a").parent / "{broker}"))
        assert bodies(rows) == sorted(b"%d %d" % (queue, i) for queue in range(2) for i in range(40))
        assert broker.parts.stats.transferred - before == 4  # the first and the last message of each queue

    def test_an_empty_topic_has_no_rows(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Empty", queues=2)
        assert read(spark, servers, "Empty").count() == 0

    def test_an_error_names_the_option(self, spark: SparkSession, servers: Live) -> None:
        with pytest.raises(PySparkException, match="unknown option startingofset: did you mean startingOffsets"):
            read(spark, servers, "Found", startingOfset="earliest").collect()
        with pytest.raises(PySparkException, match="does not know topic Nowhere"):
            read(spark, servers, "Nowhere").collect()


class TestStream:
    def test_a_stream_continues_at_its_checkpoint(self, spark: SparkSession, servers: Live, tmp_path: Path) -> None:
        servers.create_topic("Stream", queues=2)
        servers.send("Stream", [b"0", b"1", b"2"])
        options = {"namesrvAddr": servers.namesrv, "topic": "Stream", "startingOffsets": "earliest"}
        stream = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="2").load()
        query = run_available(stream, tmp_path)
        assert bodies(spark.read.parquet(str(tmp_path / "bodies"))) == [b"0", b"1", b"2"]
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [2, 1]
        servers.send("Stream", [b"3"])
        run_available(stream, tmp_path)
        assert bodies(spark.read.parquet(str(tmp_path / "bodies"))) == [b"0", b"1", b"2", b"3"]

    def test_a_running_stream_gets_new_messages(self, spark: SparkSession, servers: Live, tmp_path: Path) -> None:
        servers.create_topic("Running", queues=1)
        options = {"namesrvAddr": servers.namesrv, "topic": "Running", "startingOffsets": "earliest"}
        stream = spark.readStream.format("rocketmq").options(**options).load()
        writer = stream.writeStream.format("memory").queryName("running").trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        try:
            for i in range(2):
                servers.send("Running", [b"%d" % i])
                query.processAllAvailable()
                assert bodies(spark.table("running")) == [b"%d" % j for j in range(i + 1)]
            (source,) = query.lastProgress["sources"]
            assert source["endOffset"] == source["latestOffset"]
        finally:
            query.stop()


class TestSink:
    def test_all_columns_arrive(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Sink", queues=2)
        rows = spark.sql(
            "SELECT 'Sink' topic, encode(string(id), 'utf-8') body, 'tag' tags, array('k1', 'k2') keys, "
            "map('x', 'y', 'KEYS', 'left out') properties, 'same' shardingKey FROM range(300)"
        )
        rows.coalesce(1).write.format("rocketmq").option("namesrvAddr", servers.namesrv).mode("append").save()
        found = read(spark, servers, "Sink").orderBy("queueId", "queueOffset").collect()
        assert [int(row.body) for row in found] == list(range(300))
        assert len({row.queueId for row in found}) == 1 and len({row.msgId for row in found}) == 300
        assert found[0].keys == "k1 k2" and found[0].tags == "tag" and found[0].properties["x"] == "y"

    def test_rows_of_a_source_can_be_written(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("From", queues=1)
        servers.create_topic("To", queues=1)
        servers.send("From", [b"x"], tags="a", keys="k", properties={"x": "y"})
        rows = read(spark, servers, "From").selectExpr("body", "tags", "keys", "properties", "msgId")
        rows.write.format("rocketmq").options(namesrvAddr=servers.namesrv, topic="To").mode("append").save()
        (old,), (new,) = read(spark, servers, "From").collect(), read(spark, servers, "To").collect()
        assert (new.body, new.tags, new.keys, new.msgId) == (old.body, old.tags, old.keys, old.msgId)

    def test_a_job_gives_its_rows_the_same_keys_again(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("Job", queues=1)
        rows = spark.sql("SELECT string(id) body FROM range(0, 4, 1, 2)")
        for _ in range(2):
            rows.write.format("rocketmq").options(namesrvAddr=servers.namesrv, topic="Job", jobId="7").mode(
                "append"
            ).save()
        found = read(spark, servers, "Job")
        assert found.count() == 8 and found.select("msgId").distinct().count() == 4
        assert found.select("msgId", "body").distinct().count() == 4

    def test_a_stream_is_written(self, spark: SparkSession, servers: Live, tmp_path: Path) -> None:
        servers.create_topic("In", queues=2)
        servers.create_topic("Out", queues=2)
        servers.send("In", [b"%d" % i for i in range(20)])
        options = {"namesrvAddr": servers.namesrv, "topic": "In", "startingOffsets": "earliest"}
        stream = spark.readStream.format("rocketmq").options(**options).load().select("body", "properties")
        query = (
            stream.writeStream.format("rocketmq")
            .options(namesrvAddr=servers.namesrv, topic="Out", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(DEADLINE_S)
        assert bodies(read(spark, servers, "Out")) == sorted(b"%d" % i for i in range(20))

    def test_a_query_that_is_killed_at_its_commits_delivers_each_row_once(
        self, spark: SparkSession, servers: Live, tmp_path: Path
    ) -> None:
        servers.create_topic("Once", queues=2)
        servers.create_topic("OnceIn", queues=2)
        servers.send("OnceIn", [b"%d" % i for i in range(20)])
        spark.dataSource.register(killed_source("rocketmq.killed", tmp_path))
        source = {"namesrvAddr": servers.namesrv, "topic": "OnceIn", "startingOffsets": "earliest"}
        sink = {"namesrvAddr": servers.namesrv, "topic": "Once", "guarantee": "exactly-once"}

        def run() -> StreamingQuery:
            stream = spark.readStream.format("rocketmq").options(**source, maxOffsetsPerTrigger="10").load()
            writer = stream.select("body").repartition(3).writeStream.format("rocketmq.killed").options(**sink)
            return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

        for moment, delivered in (("before", 0), ("after", 10)):
            (tmp_path / moment).touch()
            with pytest.raises(StreamingQueryException):
                run().awaitTermination(DEADLINE_S)
            assert not (tmp_path / moment).exists()
            assert read(spark, servers, "Once").count() == delivered
        assert run().awaitTermination(DEADLINE_S)
        assert bodies(read(spark, servers, "Once")) == sorted(b"%d" % i for i in range(20))

    def test_a_job_is_written_once(self, spark: SparkSession, servers: Live) -> None:
        servers.create_topic("JobOnce", queues=2)
        rows = spark.sql("SELECT string(id) body FROM range(0, 40, 1, 3)")
        options = {"namesrvAddr": servers.namesrv, "topic": "JobOnce", "guarantee": "exactly-once"}
        for job in ("8", "8", "9"):
            rows.write.format("rocketmq").options(**options, jobId=job).mode("append").save()
        rows.write.format("rocketmq").options(**options).mode("append").save()
        found = read(spark, servers, "JobOnce")
        assert found.count() == 120 and found.select("msgId").distinct().count() == 120
        assert {row["count"] for row in found.groupBy("body").count().collect()} == {3}

    @pytest.mark.parametrize(
        ("query", "options", "text"),
        [
            ("SELECT 1 price", {}, "column price has no use in a message"),
            ("SELECT 'x' body", {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger has no use for a sink"),
            ("SELECT 'x' body, timestamp '2020-01-01' deliverTime", {}, "pastDeliverTime"),
            ("SELECT 'x' body, now() + interval '90 days' deliverTime", {}, "column deliverTime"),
            ("SELECT repeat('x', 100) body", {"maxBodyBytes": "99"}, "maxBodyBytes"),
        ],
    )
    def test_an_error_names_the_column_or_the_option(
        self, spark: SparkSession, servers: Live, query: str, options: dict[str, str], text: str
    ) -> None:
        writer = spark.sql(query).write.format("rocketmq").options(namesrvAddr=servers.namesrv, topic="Bad", **options)
        with pytest.raises(PySparkException, match=text):
            writer.mode("append").save()


def killed_source(format_name: str, folder: Path) -> type[DefaultSource]:
    """Return a source whose commit kills its process, before or after its work, if `folder` has a file for that."""

    class KilledWriter(RocketStreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            for moment in ("before", "after"):
                if moment == "after":
                    super().commit(messages, batchId)
                if (folder / moment).exists():
                    (folder / moment).unlink()
                    os.kill(os.getpid(), signal.SIGKILL)

    def stream_writer(self: DefaultSource, schema: StructType, overwrite: bool) -> RocketStreamWriter:
        options = sink_options(self.options)
        return KilledWriter(options, RowForm.of(schema, options), overwrite=overwrite)

    return type("KilledSource", (named(format_name),), {"streamWriter": stream_writer})


def test_the_example_schedules_a_campaign(spark: SparkSession, servers: Live) -> None:
    servers.create_topic("Campaign", queues=2)
    hour = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(hours=1)
    members = [(i, f"user{i}@example.com", "Hello", hour + datetime.timedelta(seconds=i)) for i in range(20)]
    schema = "member bigint, address string, text string, send_at timestamp"
    spark.createDataFrame(members, schema).createOrReplaceTempView("campaign")
    schedule(spark, servers.namesrv, "campaign", "Campaign")
    pending = pending_messages(servers, "Campaign")
    assert {(one.keys, one.unique_key, one.due_ms) for one in pending} == {
        (str(member), f"campaign-{member}", round(send_at.timestamp() * 1000)) for member, _, _, send_at in members
    }


def test_the_examples_archive_a_topic_and_replay_it(spark: SparkSession, servers: Live, tmp_path: Path) -> None:
    servers.create_topic("Recorded", queues=2)
    servers.create_topic("Replayed", queues=2)
    for sent in ([b"0", b"1", b"2"], [b"3"]):
        servers.send("Recorded", sent, keys="k")
        archive(spark, servers.namesrv, "Recorded", str(tmp_path))
    recording = spark.read.parquet(str(tmp_path / "messages"))
    assert bodies(recording) == [b"0", b"1", b"2", b"3"]
    for name in ("monday", "monday"):
        replay(spark, servers.namesrv, str(tmp_path / "messages"), "Replayed", name)
    due_ms = sorted(one.due_ms for one in pending_messages(servers, "Replayed"))
    stored = sorted(row.ms for row in recording.selectExpr("unix_millis(storeTimestamp) ms").collect())
    assert [one - due_ms[0] for one in due_ms] == [one - stored[0] for one in stored]


def pending_messages(servers: Live, topic: str) -> list[PendingMessage]:
    asked = TimerQuery(topic, 0, NEVER_MS)
    return [decode(line, type=PendingMessage) for line in list_pending(servers.broker_address("broker-a"), asked)]
