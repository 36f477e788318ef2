"""Topics that are deleted and created again."""

from __future__ import annotations

import pytest

from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import BrokerHarness

MESSAGES = 5


@pytest.fixture
def deleted(harness: BrokerHarness) -> BrokerHarness:
    """A broker whose topic T was deleted with messages in two queues. Topic Other has one message."""
    for i in range(MESSAGES):
        for queue_id in (0, 1):
            harness.send("T", b"old %d" % i, queue_id=queue_id)
    harness.send("Other", b"stays")
    harness.ask_code(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="consumers", topic="T", queueId=0, commitOffset=3
    )
    assert harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == ResponseCode.SUCCESS
    return harness


def offset(harness: BrokerHarness, code: RequestCode, topic: str = "T") -> int:
    return int(harness.ask_code(code, topic=topic, queueId=0).ext["offset"])


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_created_again_has_none_of_the_old_messages(deleted: BrokerHarness, restarts: bool) -> None:
    if restarts:
        deleted.restart()
    deleted.send("T", b"new", queue_id=0)
    found = deleted.pull("T", 0, 0)
    assert (found.answer.code, found.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, MESSAGES)
    assert [one.message.body for one in deleted.read_queue("T", 0)[-1:]] == [b"new"]
    assert offset(deleted, RequestCode.GET_MAX_OFFSET) == MESSAGES + 1
    assert deleted.bodies("Other") == [b"stays"]


def test_a_deletion_removes_the_offsets_of_groups(deleted: BrokerHarness) -> None:
    assert deleted.broker.parts.consumer_offsets.get("consumers", "T", 0) is None


def test_the_queues_of_a_topic_created_again_begin_at_their_old_end(deleted: BrokerHarness) -> None:
    deleted.send("T", b"new", queue_id=0)
    assert offset(deleted, RequestCode.GET_MIN_OFFSET) == MESSAGES


def test_a_parked_message_of_a_deleted_topic_is_released_when_due(harness: BrokerHarness) -> None:
    harness.send("T", b"old", queue_id=0)
    harness.send("T", b"late", queue_id=0, delay_ms=500)
    harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    harness.advance(600)
    harness.send("T", b"new", queue_id=0)
    assert [one.message.body for one in harness.pull("T", 0, 1).records] == [b"late", b"new"]


def test_a_deletion_removes_all_queue_files_but_the_last(harness: BrokerHarness) -> None:
    folder = harness.broker.parts.paths.consume_queue("T", 0)
    harness.send("T", queue_id=0)
    per_file = harness.broker.parts.store.queues[harness.broker.parts.store.queues.row("T", 0)].units_per_file
    for _ in range(2 * per_file):
        harness.submit(harness.send_command("T", queue_id=0))
    harness.tick()
    assert len(harness.disk.list(folder)) == 3
    harness.ask_code(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert len(harness.disk.list(folder)) == 1
    harness.send("T", b"new", queue_id=0)
    harness.restart(clean=False)
    assert offset(harness, RequestCode.GET_MAX_OFFSET) == 2 * per_file + 2
    assert [one.message.body for one in harness.pull("T", 0, 2 * per_file + 1).records] == [b"new"]
