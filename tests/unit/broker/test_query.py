"""Queries by key, while the index follows the log at its own pace."""

from __future__ import annotations

from pathlib import Path

import pytest

from wheelmq.broker.block_queries import SEARCH_MS
from wheelmq.broker.handlers.query import CATCH_UP_MS
from wheelmq.formats.disk.message_id import offset_message_id, parse_offset_message_id
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.index import GATHER_S
from wheelmq.testing.harness import Ask, BrokerHarness, records_in
from wheelmq.testing.workers import HeldWorker


def query(harness: BrokerHarness, key: str) -> Ask:
    fields = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": harness.now_ms + 1}
    return harness.submit(Command(code=RequestCode.QUERY_MESSAGE, ext=headers.texts(**fields)))


def send(harness: BrokerHarness, key: str) -> None:
    harness.send("T", key.encode(), properties={"KEYS": key})


def found(asked: Ask) -> list[bytes]:
    assert asked.answer is not None and asked.answer.code == ResponseCode.SUCCESS
    return [record.message.body for record in records_in(bytes(asked.answer.body))]


def test_a_message_stored_in_the_same_tick_is_found(harness: BrokerHarness) -> None:
    assert harness.broker.parts.index is not None
    harness.broker.parts.index.gather_s = GATHER_S
    for key in ("first", "second"):
        send(harness, key)
        asked = query(harness, key)
        harness.tick()
        assert found(asked) == [key.encode()]


def test_a_query_waits_for_the_index_up_to_a_limit(tmp_path: Path) -> None:
    background = HeldWorker()
    with BrokerHarness(tmp_path / "store", background=background) as harness:
        send(harness, "a")
        patient, late = query(harness, "a"), query(harness, "a")
        harness.tick()
        assert patient.answer is late.answer is None
        harness.run_jobs()
        assert found(patient) == found(late) == [b"a"]
        send(harness, "b")
        late = query(harness, "b")
        harness.advance(CATCH_UP_MS - 1)
        assert late.answer is None
        harness.advance(1)
        assert late.answer is not None and late.answer.code == ResponseCode.QUERY_NOT_FOUND


class TestBlocks:
    """Messages in blocks, by id and by key, before and after their release."""

    def put(self, harness: BrokerHarness, body: bytes, keys: str, unique_key: str, topic: str = "T") -> str:
        properties = {"KEYS": keys, "UNIQ_KEY": unique_key, "delayInSeconds": "5"}
        answer = harness.send(topic, body, queue_id=2, properties=properties)
        assert answer.code == 0
        return answer.ext["msgId"]

    def by_id(self, harness: BrokerHarness, message_id: str) -> Command:
        _, offset = parse_offset_message_id(message_id)
        return harness.ask(Command(code=RequestCode.VIEW_MESSAGE_BY_ID, ext=headers.texts(offset=offset)))

    def test_a_message_of_a_block_is_found_by_its_id(self, harness: BrokerHarness) -> None:
        """The answer has the same id. The message is found until its block is deleted, even after its release."""
        harness.send("T", queue_id=2)
        message_id = self.put(harness, b"block", "a", "U")
        for end in (lambda: None, harness.restart, lambda: harness.advance(6000)):
            end()
            [record] = records_in(bytes(self.by_id(harness, message_id).body))
            assert offset_message_id(record.store_host, record.position) == message_id
            assert (record.message.topic, record.message.queue_id, record.message.body) == ("T", 2, b"block")
            assert record.message.properties["UNIQ_KEY"] == "U" and record.body_is_intact
            assert record.queue_offset >= 1
        assert harness.bodies("T", 2) == [b"body", b"block"]

    def test_a_query_by_an_unknown_id_is_rejected(self, harness: BrokerHarness) -> None:
        message_id = self.put(harness, b"block", "a", "U")
        host, offset = parse_offset_message_id(message_id)
        for wrong in (offset + 1, offset + (1 << 40), 2 << 60):
            answer = self.by_id(harness, offset_message_id(host, LogPosition(wrong)))
            assert answer.code == ResponseCode.SYSTEM_ERROR and "query by unique key" in answer.remark

    @pytest.mark.parametrize("key", ["a", "b", "U1"])
    def test_a_message_of_a_block_is_found_by_each_of_its_keys(self, harness: BrokerHarness, key: str) -> None:
        self.put(harness, b"block", "a b", "U1")
        self.put(harness, b"other key", "c", "U2")
        self.put(harness, b"other topic", "a b", "U1", topic="V")
        for restart in (False, True):
            if restart:
                harness.restart(clean=False)
            asked = query(harness, key)
            harness.tick()
            assert found(asked) == [b"block"]
        harness.advance(6000)
        asked = query(harness, key)
        harness.tick()
        assert found(asked) == [b"block"]
        assert [record.message.topic for record in records_in(bytes(asked.answer.body))] == ["T"]  # type: ignore[union-attr]

    def test_a_word_of_a_body_is_not_found_as_a_key(self, harness: BrokerHarness) -> None:
        self.put(harness, b" word ", "a", "U1")
        asked = query(harness, "word")
        harness.tick()
        assert asked.answer is not None and asked.answer.code == ResponseCode.QUERY_NOT_FOUND

    def test_a_query_returns_messages_of_log_and_blocks_up_to_its_limit(self, harness: BrokerHarness) -> None:
        send(harness, "a")
        for i in range(40):
            self.put(harness, b"%d" % i, "a", f"U{i}")
        asked = query(harness, "a")
        harness.tick()
        assert found(asked) == [b"a", *(b"%d" % i for i in range(31))]

    def test_a_query_waits_for_the_search_of_blocks_up_to_a_limit(self, tmp_path: Path) -> None:
        """At the limit, the answer has no messages of blocks. Otherwise it comes when the search ends."""
        reading = HeldWorker()
        with BrokerHarness(tmp_path / "store", reading=reading) as harness:
            send(harness, "a")
            self.put(harness, b"block", "a", "U")
            late = query(harness, "a")
            harness.advance(SEARCH_MS - 1)
            assert late.answer is None
            harness.advance(1)
            assert found(late) == [b"a"]
            asked = query(harness, "a")
            harness.tick()
            assert asked.answer is None
            while reading.run():
                harness.tick()
            assert found(asked) == [b"a", b"block"]

    def test_a_query_finds_only_messages_of_its_time_span(self, harness: BrokerHarness) -> None:
        self.put(harness, b"block", "a", "U")
        for later_ms, code in ((0, ResponseCode.SUCCESS), (1, ResponseCode.QUERY_NOT_FOUND)):
            begin_ms = harness.now_ms + later_ms
            fields = {"topic": "T", "key": "a", "maxNum": 32, "beginTimestamp": begin_ms, "endTimestamp": 1 << 62}
            assert harness.ask(Command(code=RequestCode.QUERY_MESSAGE, ext=headers.texts(**fields))).code == code


def test_a_message_without_a_queue_unit_is_found(harness: BrokerHarness) -> None:
    """The message has the flag of a half message in its real topic, so it has no queue unit."""
    assert harness.broker.parts.index is not None
    harness.send("T", b"half", properties={"KEYS": "a"}, f=4)
    asked = query(harness, "a")
    harness.tick()
    assert found(asked) == [b"half"]
