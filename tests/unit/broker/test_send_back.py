"""CONSUMER_SEND_MSG_BACK: the message is retried later, or becomes a dead letter."""

from __future__ import annotations

import pytest

from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Record
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness

LEVEL_3_MS = 10_000


def send_back(
    harness: BrokerHarness, record: Record, level: int = 0, *, version: int = 479, **fields: object
) -> Command:
    ext = headers.texts(offset=record.position, group="g", delayLevel=level, originTopic="T", **fields)
    return harness.ask(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, version=version))


@pytest.fixture
def record(harness: BrokerHarness) -> Record:
    harness.send("T", b"body", queue_id=3, properties={"TAGS": "A", "KEYS": "k"}, h=9)
    (found,) = harness.read_queue("T", 3)
    return found


def test_a_message_sent_back_is_released_in_the_retry_topic(harness: BrokerHarness, record: Record) -> None:
    assert send_back(harness, record).code == 0
    harness.advance(LEVEL_3_MS - 1)
    assert harness.bodies("%RETRY%g") == []
    harness.advance(1)
    (again,) = harness.read_queue("%RETRY%g")
    message = again.message
    assert (message.body, message.flag, message.reconsume_times) == (b"body", 9, 1)
    assert (message.born_ms, message.born_host) == (record.message.born_ms, record.message.born_host)
    assert message.properties[props.RETRY_TOPIC] == "T"
    assert message.properties[props.ORIGIN_MESSAGE_ID] == offset_message_id(record.store_host, record.position)
    assert (message.properties["TAGS"], message.properties[props.DELAY]) == ("A", "3")
    invariants.check(harness.broker)


@pytest.mark.parametrize(("level", "delay_ms"), [(1, 1000), (2, 5000), (5, 60_000), (99, 7_200_000)])
def test_the_consumer_chooses_the_delay_level(
    harness: BrokerHarness, record: Record, level: int, delay_ms: int
) -> None:
    send_back(harness, record, level)
    ((origin, parked),) = invariants.read_log(harness.broker).in_levels.items()
    generation = harness.broker.parts.generations.of(origin)
    assert generation.due_of(origin, parked, Millis(harness.now_ms)) == harness.now_ms + delay_ms
    assert parked.message.properties[props.DELAY] == str(min(level, 18))


def test_each_retry_waits_longer_until_the_message_is_a_dead_letter(harness: BrokerHarness, record: Record) -> None:
    waits, again = [10_000, 30_000, 60_000], record
    for times, wait_ms in enumerate(waits):
        assert send_back(harness, again, maxReconsumeTimes=3).code == 0
        harness.advance(wait_ms - 1)
        assert len(harness.bodies("%RETRY%g")) == times
        harness.advance(1)
        again = harness.read_queue("%RETRY%g")[-1]
        assert again.message.properties[props.RETRY_TOPIC] == "T"  # the first topic, not the retry topic
        assert again.message.properties[props.ORIGIN_MESSAGE_ID] == offset_message_id(
            record.store_host, record.position
        )
    assert send_back(harness, again, maxReconsumeTimes=3).code == 0
    (dead,) = harness.read_queue("%DLQ%g")
    assert (dead.message.body, dead.message.reconsume_times) == (b"body", 4)
    invariants.check(harness.broker)


@pytest.mark.parametrize(
    ("version", "asked", "dead"), [(479, 0, True), (121, 0, True), (120, 0, False), (479, None, False), (479, 1, False)]
)
def test_the_limit_of_retries_depends_on_the_client_version(
    harness: BrokerHarness, record: Record, version: int, asked: int | None, dead: bool
) -> None:
    """The broker ignores the limit of clients before V3_4_9, and uses that of the group."""
    send_back(harness, record, version=version, maxReconsumeTimes=asked)
    assert bool(harness.bodies("%DLQ%g")) is dead


def test_a_negative_level_makes_a_dead_letter_at_once(harness: BrokerHarness, record: Record) -> None:
    send_back(harness, record, -1)
    assert harness.bodies("%DLQ%g") == [b"body"]


def test_a_released_message_sent_back_loses_its_first_delay(harness: BrokerHarness) -> None:
    """The broker removes the properties of the first delay, above all the origin."""
    harness.send("T", b"x", delay_ms=1000)
    harness.advance(1000)
    (released,) = harness.read_queue("T")
    assert props.WMQ_ORIGIN in released.message.properties
    send_back(harness, released)
    harness.advance(LEVEL_3_MS)
    assert harness.bodies("%RETRY%g") == [b"x"]
    harness.restart(clean=False)
    assert harness.bodies("%RETRY%g") == [b"x"]
    invariants.check(harness.broker)


def test_a_message_of_a_group_without_retry_queues_is_dropped(harness: BrokerHarness, record: Record) -> None:
    group = harness.broker.parts.groups.get("g")
    assert group is not None
    group.retry_queue_nums = 0
    end = harness.broker.parts.store.log.end
    assert send_back(harness, record).code == 0
    assert harness.broker.parts.store.log.end == end


@pytest.mark.parametrize("offset", [-1, 1, 50, 1 << 20, 1 << 40])
def test_an_offset_without_a_record_is_rejected(harness: BrokerHarness, record: Record, offset: int) -> None:
    record.position = offset  # type: ignore[assignment]
    answer = send_back(harness, record)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def test_an_unknown_group_is_rejected(harness: BrokerHarness, record: Record) -> None:
    harness.restart(auto_create_group=False)
    assert send_back(harness, record).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_retry_topic_without_write_permission_is_rejected(harness: BrokerHarness, record: Record) -> None:
    harness.broker.parts.topics.create_for_group("%RETRY%g", 1).perm = 4
    assert send_back(harness, record).code == ResponseCode.NO_PERMISSION


def test_a_message_with_the_highest_retry_count_becomes_a_dead_letter(harness: BrokerHarness) -> None:
    """Otherwise the message could never be sent back."""
    harness.send("T", j=(1 << 31) - 1)
    (record,) = harness.read_queue("T")
    assert send_back(harness, record).code == 0
    assert [one.message.reconsume_times for one in harness.read_queue("%DLQ%g")] == [(1 << 31) - 1]
