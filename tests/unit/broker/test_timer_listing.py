"""Listing, counting and finding timers in a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wheelmq.delay import listing, queue_listing
from wheelmq.delay.blocks import listing as block_listing
from wheelmq.delay.blocks import search
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import origin_index
from wheelmq.formats.kernels import jit
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.system.workers import InlineWorker
from wheelmq.testing.harness import Ask, BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel
from wheelmq.testing.workers import HeldWorker


@pytest.fixture(params=["compiled", "plain"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "MODE", request.param)


def rows(harness: BrokerHarness, code: RequestCode, **fields: object) -> list[dict[str, Any]]:
    """Return the lines of all pages."""
    found: list[dict[str, Any]] = []
    place, pages = 0, 0
    while True:
        answer = harness.ask_code(code, place=place, **fields)
        assert answer.code == 0, answer.remark
        found += [json.loads(line) for line in bytes(answer.body).splitlines()]
        pages += 1
        assert pages < 200
        place = int(answer.ext["nextPlace"])
        if answer.ext["isLast"] == "true":
            return found


def counts(harness: BrokerHarness, **fields: object) -> dict[int, int]:
    total: dict[int, int] = {}
    for page in rows(harness, RequestCode.WMQ_COUNT_TIMERS, **fields):
        for step, count in page.items():
            total[int(step)] = total.get(int(step), 0) + count
    return total


def listed(harness: BrokerHarness, **fields: object) -> list[int]:
    return [line["queue_offset"] for line in rows(harness, RequestCode.WMQ_LIST_TIMERS, **fields)]


@pytest.mark.usefixtures("either_way")
def test_timers_are_listed_and_counted_by_topic_and_time(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_listing, "LOOKED_AT_MAX", 7)
    start_ms = harness.now_ms
    for i in range(20):
        harness.send("TU"[i % 2], delay_ms=1000 * (i + 1), queue_id=i % 3)
    harness.advance(3000)
    assert listed(harness) == list(range(3, 20))
    assert listed(harness, topic="U") == list(range(3, 20, 2))
    assert listed(harness, fromMs=start_ms + 6000, toMs=start_ms + 9000) == [5, 6, 7]
    assert listed(harness, topic="T", fromMs=start_ms + 6000, toMs=start_ms + 9000, count=1) == [6]
    assert listed(harness, topic="V") == []
    by_second = counts(harness, stepMs=1000)
    assert sum(by_second.values()) == 17 and set(by_second.values()) == {1}
    step = 5000
    expected: dict[int, int] = {}
    for i in range(3, 20, 2):
        due_ms = start_ms + 1000 * (i + 1)
        expected[due_ms // step * step] = expected.get(due_ms // step * step, 0) + 1
    assert counts(harness, stepMs=step, topic="U") == expected
    assert counts(harness, stepMs=step, fromMs=start_ms + 90_000) == {}


def test_a_count_with_a_step_of_zero_is_rejected(harness: BrokerHarness) -> None:
    answer = harness.ask_code(RequestCode.WMQ_COUNT_TIMERS, stepMs=0)
    assert answer.code == ResponseCode.INVALID_PARAMETER and "stepMs" in (answer.remark or "")


def fates(harness: BrokerHarness, key: str, topic: str = "T") -> list[tuple[str, str | None]]:
    found = rows(harness, RequestCode.WMQ_FIND_TIMERS, topic=topic, key=key)
    return [(one["message"]["state"], one["end"]) for one in found]


def test_a_search_shows_the_end_of_each_timer(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    for name, delay_ms in (("out", 500), ("cancelled", 9000), ("armed", 4800), ("rolls", 40_000)):
        harness.send("T", delay_ms=delay_ms, properties={props.UNIQ_KEY: name, props.KEYS: "order-7 x"})
    harness.advance(3000, model.work)
    harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: "T+cancelled"})
    harness.send("T", delay_ms=9000, properties={props.UNIQ_KEY: "fresh"})
    harness.advance(100)
    assert [end for _, end in fates(harness, "out")] == ["released"]
    assert fates(harness, "cancelled")[0][1] == "cancelled"
    assert fates(harness, "armed") == [("armed", None)]
    assert fates(harness, "fresh") == [("parked", None)]
    assert fates(harness, "rolls") == [("indexed", None)]
    assert len(fates(harness, "order-7")) == 4
    assert fates(harness, "nobody") == [] == fates(harness, "out", topic="U")
    harness.advance(22_000, model.work)
    assert [end for _, end in fates(harness, "rolls")] == ["rolled", None]


def test_a_timer_settled_but_not_indexed_by_key_is_found(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, background=HeldWorker(), reading=InlineWorker()) as harness:
        harness.send("T", delay_ms=500, properties={props.UNIQ_KEY: "K"})
        harness.run_jobs()
        harness.advance(1000)
        assert [end for _, end in fates(harness, "K")] == ["settled"]
        harness.run_jobs()
        assert [end for _, end in fates(harness, "K")] == ["released"]


def test_a_timer_whose_key_many_messages_share_is_found(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=500, properties={props.UNIQ_KEY: "U", props.KEYS: "busy"})
    for _ in range(70):
        harness.send("T", properties={props.KEYS: "busy"})
    harness.advance(1000)
    assert [end for _, end in fates(harness, "busy")] == ["released"]
    for _ in range(70):
        harness.send("T", delay_ms=9000, properties={props.KEYS: "busy"})
    answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="busy")
    assert answer.ext["truncated"] == "true"


def test_a_listing_of_zero_timers_is_rejected(harness: BrokerHarness) -> None:
    for count in (0, -1):
        answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, count=count)
        assert answer.code == ResponseCode.INVALID_PARAMETER and "count" in (answer.remark or "")


def test_records_that_the_kernel_skips_are_listed(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_listing, "PLAIN_MAX", 3)
    for i in range(10):
        harness.send("T", delay_ms=5000, properties={props.KEYS: "\u20ac" if i % 2 else "k"})
    first = harness.ask_code(RequestCode.WMQ_LIST_TIMERS)
    assert origin_index(int(first.ext["nextPlace"])) < 10
    assert listed(harness) == list(range(10))
    assert sum(counts(harness, stepMs=1000).values()) == 10


def test_a_search_without_a_message_index_is_rejected(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, message_index_enable=False) as harness:
        answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="K")
        assert answer.code == ResponseCode.SYSTEM_ERROR and "messageIndexEnable" in (answer.remark or "")


def search_for(harness: BrokerHarness, key: str) -> Ask:
    """Start a search."""
    ext = headers.texts(topic="T", key=key, place=0)
    asked = harness.submit(Command(code=RequestCode.WMQ_FIND_TIMERS, ext=ext))
    harness.tick()
    return asked


class TestBlocks:
    def test_messages_of_blocks_are_listed_with_timers_and_levels(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue_listing, "LOOKED_AT_MAX", 7)
        monkeypatch.setattr(listing, "STREAM_PLACES", 2)
        start_ms = harness.now_ms
        for i in range(30):
            harness.send("TU"[i % 2], properties={props.DELAY_IN_SECONDS: str(i + 1), props.UNIQ_KEY: f"B{i}"})
        harness.send("T", delay_ms=20_000, properties={props.UNIQ_KEY: "timer"})
        harness.send("T", properties={props.DELAY: "4", props.UNIQ_KEY: "level"})
        harness.advance(3000)

        def keys(**fields: object) -> list[str]:
            return [line["unique_key"] for line in rows(harness, RequestCode.WMQ_LIST_TIMERS, **fields)]

        all_of_blocks = [f"B{i}" for i in range(3, 30)]
        assert keys() == ["level", *all_of_blocks, "timer"]
        assert keys(count=1) == keys()
        assert keys(topic="U") == all_of_blocks[::2]
        assert keys(topic="T") == ["level", *all_of_blocks[1::2], "timer"]
        assert keys(topic="V") == []
        assert keys(fromMs=start_ms + 9000, toMs=start_ms + 12_000) == ["B8", "B9", "B10"]
        assert keys(fromMs=start_ms + 90_000) == [] == keys(toMs=start_ms)
        lines = rows(harness, RequestCode.WMQ_LIST_TIMERS, topic="U")
        assert [line["due_ms"] for line in lines] == [start_ms + 1000 * (i + 1) for i in range(3, 30, 2)]
        assert {line["state"] for line in lines} == {"armed", "block"} and lines[0]["state"] == "armed"
        assert {line["block"] for line in lines} == {1, 2, 3, 4}
        by_ten = counts(harness, stepMs=10_000, topic="T")
        assert sum(by_ten.values()) == 13 + 2
        assert sum(counts(harness, stepMs=60_000).values()) == 27 + 2
        model = PipelineModel(harness)
        harness.advance(40_000, model.work)
        assert keys() == [] and counts(harness, stepMs=1000) == {}

    def test_a_page_reads_a_limited_number_of_records_and_blocks(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(60):
            harness.send("T", properties={props.DELAY_IN_SECONDS: str(20 + 10 * (i % 6))})
        monkeypatch.setattr(block_listing, "RECORDS_AT_ONCE", 4)
        monkeypatch.setattr(listing, "SLICE_S", 0)
        first = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, topic="T")
        assert len(bytes(first.body).splitlines()) <= 4 and first.ext["isLast"] == "false"
        assert len(listed(harness, topic="T")) == 60
        monkeypatch.setattr(listing, "SLICE_S", 9)
        monkeypatch.setattr(listing, "STREAM_PLACES", listing.PLACES_MAX)
        first = harness.ask_code(RequestCode.WMQ_COUNT_TIMERS, stepMs=1000, place=1 << 60)
        assert sum(json.loads(first.body).values()) == 10 and first.ext["isLast"] == "false"
        assert sum(counts(harness, stepMs=1000).values()) == 60

    def test_a_damaged_message_is_not_listed(self, harness: BrokerHarness) -> None:
        for body in (b"first", b"damaged", b"last"):
            harness.send("T", body, properties={props.DELAY_IN_SECONDS: "25"})
        [block] = harness.broker.parts.blocks
        at = int(block.queue.read(1, 1)["position"][0])
        block.log.files.file_at(0).array[at] ^= 0x55
        assert listed(harness) == [0, 2] == listed(harness, topic="T")

    def test_a_search_shows_the_end_of_each_message(self, harness: BrokerHarness) -> None:
        model = PipelineModel(harness)

        def send(key: str, seconds: int, keys: str = "order-7 x") -> None:
            own = {props.UNIQ_KEY: key, props.KEYS: keys, props.DELAY_IN_SECONDS: str(seconds)}
            assert harness.send("T", b"body of " + key.encode(), properties=own).code == 0

        send("out", 1)
        send("cancelled", 25)
        send("armed", 4)
        send("waits", 26, keys="\u20ac order-7")
        harness.advance(3000, model.work)
        harness.send("T", deliver_ms=harness.now_ms + 9000, properties={props.TIMER_DEL_UNIQKEY: "T+cancelled"})
        harness.advance(100, model.work)
        assert fates(harness, "out") == [("block", "released")]
        assert fates(harness, "cancelled") == [("block", "cancelled")]
        assert fates(harness, "armed") == [("armed", None)]
        assert fates(harness, "waits") == [("block", None)] == fates(harness, "\u20ac")
        assert len(fates(harness, "order-7")) == 4
        assert fates(harness, "order") == [] == fates(harness, "body") == fates(harness, "out", topic="U")
        harness.restart(clean=False)
        assert [end for _, end in fates(harness, "order-7")] == ["released", None, "cancelled", None]

    def test_a_search_shows_the_end_of_a_message_of_a_deleted_block(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, clean_resource_interval_ms=1000) as harness:
            for key in ("out", "cancelled"):
                own = {props.UNIQ_KEY: key, props.KEYS: "k", props.DELAY_IN_SECONDS: "2"}
                harness.send("T", b"body", properties=own)
            due_ms = harness.now_ms + 2000
            harness.send("T", deliver_ms=due_ms, properties={props.TIMER_DEL_UNIQKEY: "T+cancelled"})
            harness.advance(30_000)
            assert len(harness.broker.parts.blocks) == 0
            for key, end in (("out", "released"), ("cancelled", "cancelled")):
                [found] = rows(harness, RequestCode.WMQ_FIND_TIMERS, topic="T", key=key)
                message = found["message"]
                assert (found["end"], message["unique_key"], message["due_ms"]) == (end, key, due_ms)
                assert (message["state"], message["block"], message["topic"]) == ("block", 1, "T")
            assert fates(harness, "k") == [("block", "released")]

    def test_a_search_continues_where_the_last_page_ended(
        self, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(150):  # three log files, three files of units, two blocks
            own = {props.KEYS: "busy", props.UNIQ_KEY: f"U{i}", props.DELAY_IN_SECONDS: str(25 + i % 2 * 10)}
            harness.send("T", bytes(150), properties=own)
        assert all(len(block.queue.files.pieces(0, block.queue.end * 24)) == 2 for block in harness.broker.parts.blocks)
        monkeypatch.setattr(search, "FOUND_MAX", 7)
        monkeypatch.setattr(search, "SEARCHED_BYTES", 5000)
        first = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="busy")
        assert len(bytes(first.body).splitlines()) == 7 and first.ext["isLast"] == "false"
        assert fates(harness, "busy") == [("block", None)] * 150
        for i in (0, 77, 149):
            assert fates(harness, f"U{i}") == [("block", None)]

    def test_a_search_runs_in_a_worker_and_is_answered_at_its_end(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, reading=HeldWorker()) as harness:
            assert isinstance(harness.reading, HeldWorker)
            harness.send("T", properties={props.UNIQ_KEY: "key", props.DELAY_IN_SECONDS: "2"})
            asked = [search_for(harness, "key") for _ in range(search.UNDER_WAY_MAX)]
            one_more = search_for(harness, "key").answer
            assert one_more is not None and one_more.code == ResponseCode.SYSTEM_BUSY
            assert all(ask.answer is None for ask in asked)
            harness.send("T", properties={props.UNIQ_KEY: "later", props.KEYS: "key", props.DELAY_IN_SECONDS: "2"})
            harness.advance(3000)
            harness.reading.run()
            harness.tick()
            for ask in asked:
                assert ask.answer is not None
                [found] = [json.loads(line) for line in bytes(ask.answer.body).splitlines()]
                assert (found["message"]["unique_key"], found["end"]) == ("key", "released")
            assert search_for(harness, "key").answer is None, "there is room again"
            harness.advance(harness.broker.parts.settings.requests.response_timeout_ms)

    def test_a_search_on_a_slow_or_failing_disk_is_rejected(self, tmp_path: Path) -> None:
        with BrokerHarness(tmp_path, reading=HeldWorker()) as harness:
            assert isinstance(harness.reading, HeldWorker)
            asked = search_for(harness, "key")
            harness.advance(harness.broker.parts.settings.requests.response_timeout_ms)
            assert asked.answer is not None and asked.answer.code == ResponseCode.SYSTEM_BUSY
            harness.reading.run()
            harness.tick()
            harness.reading.fail_next(OSError("no such disk"))
            asked = search_for(harness, "key")
            harness.reading.run()
            harness.tick()
            assert asked.answer is not None and asked.answer.code == ResponseCode.SYSTEM_ERROR
            assert "no such disk" in (asked.answer.remark or "")

    def test_a_search_of_a_block_deleted_meanwhile_is_answered(self, tmp_path: Path) -> None:
        settings = {"block_length_seconds": 3, "clean_resource_interval_ms": 1000}
        with BrokerHarness(tmp_path, reading=HeldWorker(), **settings) as harness:
            assert isinstance(harness.reading, HeldWorker)
            harness.send("T", properties={props.UNIQ_KEY: "out", props.DELAY_IN_SECONDS: "1"})
            asked = search_for(harness, "out")
            harness.advance(8000, every_ms=500)
            assert len(harness.broker.parts.blocks) == 0 and asked.answer is None
            harness.reading.run()
            harness.tick()
            assert asked.answer is not None
            [found] = [json.loads(line) for line in bytes(asked.answer.body).splitlines()]
            assert (found["message"]["unique_key"], found["end"]) == ("out", "released")

    def test_a_search_without_a_key_is_rejected(self, harness: BrokerHarness) -> None:
        answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="")
        assert answer.code == ResponseCode.INVALID_PARAMETER
