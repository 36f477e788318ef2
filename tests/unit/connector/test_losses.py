"""Messages that a source cannot read: lost ones, and those that a broker only hides for some time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_rocketmq import pulls
from pyspark_rocketmq.errors import BrokerError, DataLossError
from pyspark_rocketmq.pulls import Pulls
from tests.live import Live, live
from tests.unit.connector.test_source import Stream, bodies, read
from wheelmq.broker.parts import Parts
from wheelmq.formats.disk.paths import StorePaths
from wheelmq.formats.units import QueueOffset


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
