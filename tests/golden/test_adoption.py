"""A broker on a store of Apache RocketMQ finds every message and delivers each pending one once, at its due time."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from compat.golden.life import CONSUMED, GROUP, LONG_GROUP, TOPIC, Sent
from tests.golden.conftest import Golden
from wheelmq.delay.listing import END
from wheelmq.delay.offline import pending_in
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, Record, decode_record
from wheelmq.formats.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, retry_topic
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing import invariants
from wheelmq.testing.harness import BrokerHarness, records_in

CLOCKS_APART_MS = 1000
"""Longest time between a sender's reading of its clock and the broker's receipt."""
SYS_HOSTS_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

pytestmark = pytest.mark.usefixtures("kernels")


def pending(golden: Golden) -> dict[str, Sent]:
    """Return the pending messages by body."""
    return {one.body: one for one in golden.life.sent if one.due_ms is not None}


def everywhere(harness: BrokerHarness) -> Counter[tuple[str, str]]:
    """Count the messages of all topics that clients consume from, by topic and body."""
    found: Counter[tuple[str, str]] = Counter()
    for topic in (TOPIC, retry_topic(GROUP), retry_topic(LONG_GROUP)):
        found.update((topic, record.message.body.hex()) for record in harness.read_queue(topic))
    return found


def with_key(harness: BrokerHarness, topic: str, key: str) -> list[Record]:
    """Query by key. Check each record found by reading it again at its position."""
    ext = headers.texts(topic=topic, key=key, maxNum=64, beginTimestamp=0, endTimestamp=1 << 62)
    answer = harness.ask(Command(code=RequestCode.QUERY_MESSAGE, ext=ext))
    found = records_in(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
    for record in found:
        view = harness.ask_code(RequestCode.VIEW_MESSAGE_BY_ID, offset=record.position)
        assert records_in(bytes(view.body)) == [record]
    return found


def has_key(record: Record, key: str) -> bool:
    properties = record.message.properties
    return key in (*properties.get(props.KEYS, "").split(), properties.get(props.UNIQ_KEY))


def test_stored_messages_are_found_by_offset_key_and_id(golden: Golden) -> None:
    there = [one for one in golden.life.sent if one.due_ms is None and not one.is_gone]
    with golden.open() as harness:
        harness.settle()
        assert everywhere(harness) == Counter((one.topic, one.body) for one in there)
        for one in there:
            for key in one.keys:
                queued = [record for record in harness.read_queue(one.topic) if has_key(record, key)]
                assert [record.message.body.hex() for record in queued] == [one.body]
                assert [record.message.sys_flag & ~SYS_HOSTS_V6 for record in queued] == [one.sys_flag]
                assert [record for record in with_key(harness, one.topic, key) if has_key(record, key)] == queued
        assert len(with_key(harness, TOPIC, "all")) > 10
        assert len(harness.pull(TOPIC, subscription="in-batch", maxMsgNums=32).records) == 3


def test_pending_messages_are_listed(golden: Golden) -> None:
    expected = pending(golden)
    listed = {line.unique_key: line for line in pending_in(golden.store)}
    assert set(listed) == {one.keys[1] for one in expected.values()}
    for one in expected.values():
        line = listed[one.keys[1]]
        assert (line.topic, line.queue_id) == (one.topic, one.queue_id)
        assert one.due_ms is not None and abs(line.due_ms - one.due_ms) <= CLOCKS_APART_MS
    with golden.open() as harness:
        harness.tick()
        place, lines = 0, list[bytes]()
        while place != END:
            answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, place=place, count=1000)
            lines += bytes(answer.body).splitlines()
            place = int(answer.ext["nextPlace"])
        assert len(lines) == len(expected)
    assert {line.unique_key: line.due_ms for line in pending_in(golden.store)} == {
        key: line.due_ms for key, line in listed.items()
    }


@pytest.mark.parametrize("way", ["on", "killed"])
def test_pending_messages_are_delivered_once_at_their_due_time(golden: Golden, way: str) -> None:
    due = sorted((line.due_ms, line.unique_key) for line in pending_in(golden.store))
    with golden.open() as harness:
        harness.settle()
        before = everywhere(harness)
        for due_ms, unique_key in due:
            came = everywhere(harness)
            harness.clock.advance(due_ms - 1 - harness.now_ms)
            harness.settle()
            assert everywhere(harness) == came, "early"
            if way == "killed":
                harness.restart(clean=False)
            harness.clock.advance(1)
            harness.settle()
            [(topic, body)] = everywhere(harness) - came
            [record] = [one for one in harness.read_queue(topic) if one.message.body.hex() == body]
            message, sent = record.message, pending(golden)[body]
            assert (message.properties[props.UNIQ_KEY], topic) == (unique_key, sent.topic)
            assert message.sys_flag & ~SYS_HOSTS_V6 == sent.sys_flag
            assert len(message.born_host.address) == (16 if bytes.fromhex(body).startswith(b"ipv6") else 4)
        harness.clock.advance(24 * 3_600_000)
        harness.restart(clean=way == "on")
        harness.settle()
        assert everywhere(harness) - before == Counter((one.topic, one.body) for one in pending(golden).values())
        invariants.check(harness.broker)


def test_half_messages_are_kept_and_not_delivered(golden: Golden) -> None:
    with golden.open() as harness:
        halves = [record.message for record in harness.read_queue(HALF_TOPIC)]
        assert [half.body for half in halves] == [b"transaction 0", b"transaction 8", b"transaction 12"]
        assert {half.properties[props.REAL_TOPIC] for half in halves} == {TOPIC}
        ended = {number for record in harness.read_queue(OP_HALF_TOPIC) for number in record.message.body.split(b",")}
        assert ended - {b""} == {b"1", b"2"}
        [committed] = [record for record in harness.read_queue(TOPIC) if b"transaction" in record.message.body]
        assert (committed.message.body, committed.message.sys_flag) == (b"transaction 8", 0x8)
        half = harness.read_queue(HALF_TOPIC)[1]
        assert committed.message.prepared_position == half.position


def test_the_producer_is_checked_only_for_the_pending_transaction(golden: Golden) -> None:
    with golden.open() as harness:
        assert harness.broker.parts.transactions.counts.waiting() == {TOPIC: 1}
        producer = harness.connect()
        beat = msgspec.json.encode({"clientID": "c", "producerDataSet": [{"groupName": GROUP}]})
        harness.ask_code(RequestCode.HEART_BEAT, beat, producer)
        harness.advance(30_000)
        [asked] = [one for one in producer.requests if one.code == RequestCode.CHECK_TRANSACTION_STATE]
        told = decode_record(bytes(asked.body)).message
        assert (told.topic, told.body) == (TOPIC, b"transaction 0")
        places = {name: asked.ext[name] for name in ("commitLogOffset", "tranStateTableOffset")}
        fields = {"commitOrRollback": 8, "fromTransactionCheck": True, "producerGroup": GROUP, **places}
        assert harness.ask_code(RequestCode.END_TRANSACTION, **fields).code == 0
        harness.restart(clean=False)
        ended = [one.message.body for one in harness.read_queue(TOPIC) if b"transaction" in one.message.body]
        assert ended == [b"transaction 8", b"transaction 0"]
        assert harness.broker.parts.transactions.counts.waiting() == {}


def test_groups_continue_at_their_committed_offsets(golden: Golden) -> None:
    assert golden.life.offsets == {f"{TOPIC}@{GROUP}": {0: CONSUMED}}
    with golden.open() as harness:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
        answer = harness.ask_code(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        assert answer.ext["offset"] == str(CONSUMED)


def test_delay_offsets_of_levels_are_written_for_apache(golden: Golden) -> None:
    path = golden.store / "config" / "delayOffset.json"
    pending_levels = [line for line in pending_in(golden.store) if line.level is not None]
    expected: dict[str, int] = {}
    for line in reversed(pending_levels):
        expected[str(line.level)] = line.queue_offset
    with golden.open() as harness:
        ends = {
            str(queue_id + 1): queue.end
            for (topic, queue_id), queue in harness.broker.parts.store.queues.items()
            if topic == SCHEDULE_TOPIC
        }
        assert set(ends) == {"1", "4", "5", "6"} > set(expected) and len(expected) >= 3
        assert msgspec.json.decode(path.read_bytes())["offsetTable"] == ends | expected
        harness.clock.advance(200_000)
        harness.settle()
    assert msgspec.json.decode(path.read_bytes())["offsetTable"] == ends


def test_messages_released_from_levels_match_those_of_apache(golden: Golden) -> None:
    """Apache's broker and ours deliver a level message with the properties it was parked with."""
    with golden.open() as harness:
        harness.clock.advance(200_000)
        harness.settle()
        log = invariants.read_log(harness.broker)
        left = {record.message.properties.get(props.UNIQ_KEY): record for record in log.records}  # each key's last
        for parked in log.in_levels.values():
            properties = dict(left[parked.message.properties[props.UNIQ_KEY]].message.properties)
            properties.pop(props.WMQ_ORIGIN, None)
            assert properties == parked.message.properties
