"""Streams while servers, topics or queues are away."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pyspark_rocketmq.cluster import Cluster, TopicGone
from pyspark_rocketmq.errors import DataLossError
from pyspark_rocketmq.offsets import Queue
from tests.live import Live
from tests.unit.connector.test_source import Stream
from wheelmq.client import SyncAdmin


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
