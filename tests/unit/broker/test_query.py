"""Queries by key beside the index, which follows the log at its own pace."""

from __future__ import annotations

from pathlib import Path

from wheelmq.broker.handlers.query import CATCH_UP_MS
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.store.index import GATHER_S
from wheelmq.testing.harness import Ask, BrokerHarness, records_in
from wheelmq.testing.offload import HeldOffload


def query(harness: BrokerHarness, key: str) -> Ask:
    fields = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": harness.now_ms + 1}
    return harness.submit(Command(code=RequestCode.QUERY_MESSAGE, ext=headers.texts(**fields)))


def send(harness: BrokerHarness, key: str) -> None:
    harness.send("T", key.encode(), properties={"KEYS": key})


def found(asked: Ask) -> list[bytes]:
    assert asked.answer is not None and asked.answer.code == ResponseCode.SUCCESS
    return [record.message.body for record in records_in(bytes(asked.answer.body))]


def test_what_was_stored_in_the_same_moment_is_found(harness: BrokerHarness) -> None:
    assert harness.broker.index is not None
    harness.broker.index.gather_s = GATHER_S
    for key in ("first", "second"):
        send(harness, key)
        asked = query(harness, key)
        harness.tick()
        assert found(asked) == [key.encode()]


def test_a_query_waits_for_the_index_and_not_for_ever(tmp_path: Path) -> None:
    background = HeldOffload()
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


def test_a_message_that_no_queue_has_is_found(harness: BrokerHarness) -> None:
    """It is marked as the half of a transaction and lies in its topic all the same: so it has no queue unit."""
    assert harness.broker.index is not None
    harness.send("T", b"half", properties={"KEYS": "a"}, f=4)
    asked = query(harness, "a")
    harness.tick()
    assert found(asked) == [b"half"]
