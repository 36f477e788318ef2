"""Consumer offsets after a failed save, or a power cut that loses the end of a queue."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest

from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.system import memory
from wheelmq.testing.disk import SimulatedDisk
from wheelmq.testing.harness import BrokerHarness


def commit(harness: BrokerHarness, offset: int) -> None:
    harness.broker.parts.groups.get("g")
    harness.ask_code(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0, commitOffset=offset)


def committed(harness: BrokerHarness) -> int | None:
    return harness.broker.parts.consumer_offsets.get("g", "T", 0)


def failing(disk: SimulatedDisk) -> mock._patch[mock.Mock]:
    """Let each write of consumerOffset.json fail."""
    real = disk.replace

    def replace(path: Path, data: bytes, *, keep_previous: bool = False, private: bool = False) -> None:
        if path.name == "consumerOffset.json":
            raise OSError(errno.EIO, "no")
        real(path, data, keep_previous=keep_previous)

    return mock.patch.object(disk, "replace", side_effect=replace)


def test_a_failed_save_is_retried(harness: BrokerHarness, disk: SimulatedDisk) -> None:
    for _ in range(3):
        harness.send("T")
    commit(harness, 3)
    with failing(disk) as asked:
        harness.advance(11_000)
        assert sum(call.args[0].name == "consumerOffset.json" for call in asked.mock_calls) == 2
    harness.advance(5000)
    harness.restart(clean=False)
    assert committed(harness) == 3


def test_a_last_save_that_fails_leaves_the_stop_clean(harness: BrokerHarness, disk: SimulatedDisk) -> None:
    harness.send("T")
    commit(harness, 1)
    with failing(disk):
        harness.stop()
    harness.start()
    assert harness.broker.parts.store.last_stop_was_clean
    assert committed(harness) is None


def test_an_offset_beyond_the_end_of_its_queue_is_set_to_the_end(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut has lost consumed messages. The group must not skip the messages that replace them."""
    for _ in range(4):
        harness.send("T")
    commit(harness, 4)
    harness.stop()
    path = harness._folder / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace("4", "9"))
    caplog.clear()
    harness.start()
    assert committed(harness) == 4
    assert "T@g: offset 9 of queue 0 is beyond the end of the queue, and is set to 4" in caplog.text
    harness.restart()
    assert committed(harness) == 4


def test_an_offset_of_a_missing_queue_is_set_to_zero(harness: BrokerHarness) -> None:
    harness.send("T")
    harness.broker.parts.consumer_offsets.commit("g", "U", 3, 7)
    harness.restart()
    assert harness.broker.parts.consumer_offsets.get("g", "U", 3) == 0


class TestDeletedGroup:
    def delete(self, harness: BrokerHarness) -> None:
        fields = {"groupName": "g", "cleanOffset": True}
        assert harness.ask_code(RequestCode.DELETE_SUBSCRIPTIONGROUP, **fields).code == 0

    def test_a_deleted_group_leaves_the_pull_offsets_of_others(self, harness: BrokerHarness) -> None:
        offsets = harness.broker.parts.consumer_offsets
        for _ in range(3):
            harness.send("T")
        commit(harness, 1)
        for group in ("g", "h"):  # group h has committed nothing yet
            harness.pull("T", consumerGroup=group)
        self.delete(harness)
        assert (offsets.pulled("g", "T"), offsets.pulled("h", "T")) == ({}, {0: 3})

    def test_a_deleted_group_loses_its_reset(self, harness: BrokerHarness) -> None:
        """Otherwise the reset would move a new group of that name, and the broker would ignore its commits."""
        harness.send("T")
        commit(harness, 1)
        harness.broker.parts.consumer_offsets.reset("g", "T", 0, 0)
        self.delete(harness)
        commit(harness, 1)
        assert committed(harness) == 1


class TestNewGroup:
    def query(self, harness: BrokerHarness, topic: str = "T") -> tuple[int, str | None]:
        answer = harness.ask_code(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="new", topic=topic, queueId=0)
        return answer.code, answer.ext.get("offset")

    def test_a_new_group_begins_at_the_first_message_that_memory_holds(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "PHYSICAL_BYTES", 100_000)
        harness.send("T")
        assert self.query(harness) == (0, "0")
        harness.send("U", b"x" * 39_000)
        assert self.query(harness) == (0, "0")
        harness.send("U", b"x" * 1000)
        assert self.query(harness) == (ResponseCode.QUERY_NOT_FOUND, None)

    def test_a_new_group_begins_at_zero_in_an_empty_queue(self, harness: BrokerHarness) -> None:
        assert harness.send("T", queue_id=1).code == 0
        assert self.query(harness) == self.query(harness, "nowhere") == (0, "0")
