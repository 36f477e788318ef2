"""How many queues a topic may have, and the topics in arrays."""

from __future__ import annotations

import errno
from unittest import mock

import numpy as np
import pytest

from wheelmq.broker.state.topics import QUEUES_MAX
from wheelmq.broker.topic_arrays import TopicArrays
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.disk import Call
from wheelmq.testing.harness import BrokerHarness


def create(harness: BrokerHarness, topic: str, read: int, write: int) -> int:
    answer = harness.ask_code(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=read,
        writeQueueNums=write,
        perm=6,
    )
    return answer.code


class TestOnDisk:
    def test_a_topic_that_cannot_be_saved_is_none(self, harness: BrokerHarness) -> None:
        """Else what is sent to it then could not be pulled after a stop."""
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
        assert harness.send("T", b"refused").code != 0
        assert harness.broker.topics.get("T") is None
        harness.advance(500)
        assert harness.send("T", b"stored").code == 0
        harness.restart(clean=False)
        assert harness.bodies("T") == [b"stored"]

    def test_a_topic_that_cannot_be_deleted_stays(self, harness: BrokerHarness) -> None:
        harness.send("T", b"stored")
        harness.disk.fail_call(1, OSError(errno.EIO, "broken"), [Call.REPLACE])
        assert harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code != 0
        assert harness.bodies("T") == [b"stored"]


class TestQueueCounts:
    @pytest.mark.parametrize("count", [-(1 << 31), -1, 0, QUEUES_MAX + 1, (1 << 31) - 1])
    def test_out_of_bounds_is_refused(self, harness: BrokerHarness, count: int) -> None:
        for read, write in ((count, 4), (4, count)):
            assert create(harness, "T", read, write) == ResponseCode.INVALID_PARAMETER
        assert harness.broker.topics.get("T") is None

    @pytest.mark.parametrize("count", [1, QUEUES_MAX])
    def test_bounds(self, harness: BrokerHarness, count: int) -> None:
        assert create(harness, "T", count, count) == 0

    @pytest.mark.parametrize("count", [-1, 0])
    def test_a_send_makes_no_topic_without_queues(self, harness: BrokerHarness, count: int) -> None:
        assert harness.send("T", d=count).code == ResponseCode.INVALID_PARAMETER
        assert harness.broker.topics.get("T") is None

    def test_what_a_file_says_is_brought_into_bounds(self, harness: BrokerHarness) -> None:
        create(harness, "T", 77, 78)
        harness.stop()
        path = harness._folder / "config" / "topics.json"
        path.write_text(path.read_text().replace("77", "-3").replace("78", "2147483647"))
        harness.start()
        config = harness.broker.topics.get("T")
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums) == (0, QUEUES_MAX)


def test_arrays_that_cannot_be_made_stay_as_they_were(harness: BrokerHarness) -> None:
    arrays = TopicArrays(harness.broker)
    arrays.refresh()
    before = arrays.names, arrays.rows, arrays.slots, arrays.queue_rows
    create(harness, "T", 4, 4)
    with mock.patch.object(np, "full", side_effect=MemoryError), pytest.raises(MemoryError):
        arrays.refresh()
    assert all(
        now is then
        for now, then in zip((arrays.names, arrays.rows, arrays.slots, arrays.queue_rows), before, strict=True)
    )
    arrays.refresh()
    assert len(arrays.rows) == len(harness.broker.topics.all())
