"""Messages that a source cannot read: lost ones, and those that a broker only hides for some time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_rocketmq import pulls, sampling
from pyspark_rocketmq.batch_reader import RocketBatchReader
from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.errors import BrokerError, DataLossError, SilentBroker
from pyspark_rocketmq.offsets import OffsetSpan, Queue
from pyspark_rocketmq.options import DEFAULT_GROUP, batch_options
from pyspark_rocketmq.pulls import Pulls
from pyspark_rocketmq.ranges import OffsetRange
from tests.live import Live, live
from tests.unit.connector.test_source import Stream, bodies, from_offset, read
from wheelmq.broker.parts import Parts
from wheelmq.client import SyncAdmin
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.sync_connection import SyncConnection


def parts_of(servers: Live) -> Parts:
    broker = servers.brokers["broker-a"].broker
    assert broker is not None
    return broker.parts


def stored(servers: Live, offset: int) -> int:
    """Return the log position of a message."""
    queue = parts_of(servers).store.queues.find("T", 0)
    assert queue is not None
    return int(queue.read(QueueOffset(offset), 1)[0]["position"])


def show_all(servers: Live) -> None:
    parts_of(servers).settings.replication.in_sync_replicas = 1


class TestDamage:
    """A broker leaves out the records that are damaged on its disk."""

    @pytest.mark.parametrize(("damaged", "gap"), [([1], "1, 2"), ([0, 1, 3], "0, 2"), ([0, 1, 2, 3], "0, 4")])
    def test_damaged_records_are_a_loss(
        self, servers: Live, damaged: list[int], gap: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        send_and_damage(servers, damaged)
        with pytest.raises(DataLossError, match=rf"leaves out \[{gap}\).*failOnDataLoss"):
            read(servers, topic="T")
        assert bodies(read(servers, topic="T", failOnDataLoss="false")) == [
            b"%d" % i for i in range(4) if i not in damaged
        ]
        assert f"leaves out [{gap})" in caplog.text

    def test_a_filter_may_leave_out_any_record(self, servers: Live) -> None:
        send_and_damage(servers, [])
        assert bodies(read(servers, topic="T", tags="odd")) == [b"1", b"3"]

    def test_a_compacted_topic_has_gaps(self, servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        send_and_damage(servers, [1])
        topic = parts_of(servers).topics.get("T")
        assert topic is not None
        monkeypatch.setattr(topic, "attributes", {"cleanup.policy": "COMPACTION"})
        assert bodies(read(servers, topic="T")) == [b"0", b"2", b"3"]

    def test_a_broker_without_topic_configs_has_no_compacted_topic(
        self, servers: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send_and_damage(servers, [1])
        call = Cluster.call

        def call_old_broker(cluster: Cluster, broker: str, command: Command) -> Command:
            if command.code == RequestCode.GET_TOPIC_CONFIG:
                return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            return call(cluster, broker, command)

        monkeypatch.setattr(Cluster, "call", call_old_broker)
        with pytest.raises(DataLossError, match=r"leaves out \[1, 2\)"):
            read(servers, topic="T")


def send_and_damage(servers: Live, offsets: list[int]) -> None:
    """Send four messages. The broker takes the records at some queue offsets for damaged ones."""
    servers.create_topic("T", queues=1)
    for i in range(4):
        servers.send("T", [b"%d" % i], tags="odd" if i % 2 else "even")
    parts_of(servers).store.log.damaged = frozenset(LogPosition(stored(servers, offset)) for offset in offsets)


class TestResets:
    """A broker keeps the reset of a group for its next pull of the queue."""

    def test_a_reset_waits_for_the_consumers_of_the_group(self, servers: Live) -> None:
        send_and_reset(servers, "g")
        assert bodies(read(servers, topic="T", group="g")) == [b"0", b"1", b"2"]
        assert parts_of(servers).consumer_offsets.has_reset("g", "T", 0)

    @pytest.mark.parametrize("store", [False, True])
    def test_a_reset_that_a_task_gets_is_no_loss(self, servers: Live, store: bool) -> None:
        send_and_reset(servers, DEFAULT_GROUP)
        options = {"storePath": str(servers.store("broker-a"))} if store else {}
        assert bodies(read(servers, topic="T", **options)) == [b"0", b"1", b"2"]

    @pytest.fixture
    def strict(self, tmp_path: Path) -> Iterator[Live]:
        """A broker that creates no groups, and has the group g."""
        with live(tmp_path, auto_create_group=False) as servers:
            with SyncAdmin(servers.namesrv) as admin:
                admin.create_group("g")
            yield servers

    def test_a_task_pulls_with_the_group_of_the_option_if_the_other_does_not_exist(
        self, strict: Live, caplog: pytest.LogCaptureFixture
    ) -> None:
        send_and_reset(strict, "g")
        assert bodies(read(strict, topic="T", group="g")) == [b"0", b"1", b"2"]
        assert "rejects group PYSPARK_ROCKETMQ" in caplog.text
        with pytest.raises(BrokerError, match=r"PYSPARK_ROCKETMQ\] does not exist. Create the group"):
            read(strict, topic="T")

    def test_a_task_learns_once_that_a_broker_rejects_the_group(
        self, strict: Live, caplog: pytest.LogCaptureFixture
    ) -> None:
        strict.create_topic("T", queues=2)
        for i in range(2):
            strict.send("T", [b"%d" % i], queue_id=i)
        assert bodies(read(strict, topic="T", group="g")) == [b"0", b"1"]
        assert caplog.text.count("rejects group PYSPARK_ROCKETMQ") == 1


def send_and_reset(servers: Live, group: str) -> None:
    """Send three messages, and reset the offset of a group to the second one."""
    servers.create_topic("T", queues=1)
    servers.send("T", [b"0", b"1", b"2"])
    parts_of(servers).consumer_offsets.reset(group, "T", 0, 1)


class TestHiddenMessages:
    @pytest.fixture(params=[0, 1])
    def shown(self, request: pytest.FixtureRequest) -> int:
        """Return the number of messages that the master shows after its restart, of three."""
        return int(request.param)

    @pytest.fixture
    def servers(self, tmp_path: Path, shown: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
        """Start a SYNC_MASTER without replicas, which hides the messages whose queue units were lost."""
        monkeypatch.setattr(pulls, "HIDDEN_DELAYS_S", (0.0,))
        with live(tmp_path) as servers:
            servers.create_topic("T", queues=1)
            servers.send("T", [b"0", b"1", b"2"])
            position = stored(servers, shown)
            servers.stop_broker("broker-a")
            StorePaths(servers.store("broker-a")).hidden_tail.write_bytes(b"%d" % position)
            servers.add_broker("broker-a", broker_role="SYNC_MASTER")
            yield servers

    def test_the_ends_of_queues_exclude_them(self, servers: Live, shown: int) -> None:
        sent = [b"0", b"1", b"2"]
        assert bodies(read(servers, topic="T")) == sent[:shown]
        show_all(servers)
        servers.wait_for("T", lambda ends: set(ends.values()) == {3})
        assert bodies(read(servers, topic="T")) == sent

    def test_an_offset_after_them_is_no_loss(self, servers: Live) -> None:
        stream = Stream(servers)
        stream.offset = {"lost": 0, "queues": {"T": {"broker-a": {"0": 3}}}}
        assert stream.batch() is None
        show_all(servers)
        servers.send("T", [b"3"])
        assert stream.batch() == [b"3"]

    def test_a_task_waits_for_them(self, servers: Live, shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
        reader = Stream(servers, failOnDataLoss="false").reader
        ends = [{"lost": 0, "queues": {"T": {"broker-a": {"0": end}}}} for end in (0, 3)]
        (task,) = reader.partitions(*ends)
        with pytest.raises(BrokerError, match=rf"has \[{shown}, 3\), and does not show it: start the replicas"):
            list(reader.read(task))
        monkeypatch.setattr(Pulls, "_wait_for_hidden", lambda pulls, first: show_all(servers))
        assert [row["body"] for batch in reader.read(task) for row in batch.to_pylist()] == [b"0", b"1", b"2"]

    def test_the_end_of_a_queue_that_was_created_again_is_a_loss(self, servers: Live) -> None:
        reader = Stream(servers).reader
        ends = [{"lost": 0, "queues": {"T": {"broker-a": {"0": end}}}} for end in (0, 4)]
        (task,) = reader.partitions(*ends)
        with pytest.raises(DataLossError, match=r"no longer has \[\d, 4\)"):
            list(reader.read(task))


def test_a_read_up_to_an_expired_message_is_empty(servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    servers.create_topic("T", queues=1)
    servers.send("T", [b"0", b"1", b"2"])
    queue = Queue("T", "broker-a", 0)
    monkeypatch.setattr(Cluster, "spans", lambda cluster, topic, broker: {queue: OffsetSpan(2, 3)})
    assert read(servers, topic="T", endingOffsets=from_offset(servers, 1)) == []


def test_the_error_of_a_busy_broker_does_not_call_it_silent(servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "RETRY_DELAYS_S", ())
    servers.create_topic("T", queues=1)
    servers.send("T", [b"0"])
    reader = RocketBatchReader(batch_options({"namesrvAddr": servers.namesrv, "topic": "T"}), ("body",))
    (task,) = reader.partitions()
    busy = Command(code=ResponseCode.SYSTEM_BUSY, remark="too many requests")
    monkeypatch.setattr(SyncConnection, "finish", lambda *args: busy)
    with pytest.raises(SilentBroker, match="broker broker-a cannot be read: it is busy: too many requests"):
        list(reader.read(task))


def test_lost_messages_have_no_size(servers: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "Pulls", lambda cluster, options, one: [])  # as if the broker had lost them
    options, queue = batch_options({"namesrvAddr": servers.namesrv, "topic": "T"}), Queue("T", "broker-a", 0)
    with Cluster(options.connection) as cluster:
        assert sampling.mean_bytes(cluster, options, [OffsetRange(queue, 0, 3)]) == {queue: 0}
