"""Listing, counting and finding timers in a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wheelmq.delay import listing
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.origin import origin_index
from wheelmq.formats.kernels import jit
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.offload import HeldOffload
from wheelmq.testing.pipeline_model import PipelineModel


@pytest.fixture(params=["compiled", "plain"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "MODE", request.param)


def rows(harness: BrokerHarness, code: RequestCode, **fields: object) -> list[dict[str, Any]]:
    """The lines of all pages."""
    found: list[dict[str, Any]] = []
    place, pages = 0, 0
    while True:
        answer = harness.ask_code(code, place=place, **fields)
        assert answer.code == 0, answer.remark
        found += [json.loads(line) for line in bytes(answer.body).splitlines()]
        pages += 1
        assert pages < 100
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
def test_by_topic_and_time(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LOOKED_AT_MAX", 7)
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


def test_a_step_of_nothing(harness: BrokerHarness) -> None:
    answer = harness.ask_code(RequestCode.WMQ_COUNT_TIMERS, stepMs=0)
    assert answer.code == ResponseCode.INVALID_PARAMETER and "stepMs" in (answer.remark or "")


def fates(harness: BrokerHarness, key: str, topic: str = "T") -> list[tuple[str, str | None]]:
    answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic=topic, key=key)
    assert answer.code == 0
    found = [json.loads(line) for line in bytes(answer.body).splitlines()]
    return [(one["message"]["state"], one["end"]) for one in found]


def test_what_became_of_one(harness: BrokerHarness) -> None:
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


def test_what_is_settled_and_not_indexed_by_key_yet(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, background=HeldOffload()) as harness:
        harness.send("T", delay_ms=500, properties={props.UNIQ_KEY: "K"})
        harness.run_jobs()
        harness.advance(1000)
        assert [end for _, end in fates(harness, "K")] == ["settled"]
        harness.run_jobs()
        assert [end for _, end in fates(harness, "K")] == ["released"]


def test_one_with_a_busy_key(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=500, properties={props.UNIQ_KEY: "U", props.KEYS: "busy"})
    for _ in range(70):
        harness.send("T", properties={props.KEYS: "busy"})
    harness.advance(1000)
    assert [end for _, end in fates(harness, "busy")] == ["released"]
    for _ in range(70):
        harness.send("T", delay_ms=9000, properties={props.KEYS: "busy"})
    answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="busy")
    assert answer.ext["truncated"] == "true"


def test_a_count_of_nothing(harness: BrokerHarness) -> None:
    for count in (0, -1):
        answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, count=count)
        assert answer.code == ResponseCode.INVALID_PARAMETER and "count" in (answer.remark or "")


def test_records_that_the_kernel_leaves(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PLAIN_MAX", 3)
    for i in range(10):
        harness.send("T", delay_ms=5000, properties={props.KEYS: "\u20ac" if i % 2 else "k"})
    first = harness.ask_code(RequestCode.WMQ_LIST_TIMERS)
    assert origin_index(int(first.ext["nextPlace"])) < 10
    assert listed(harness) == list(range(10))
    assert sum(counts(harness, stepMs=1000).values()) == 10


def test_without_an_index(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, message_index_enable=False) as harness:
        answer = harness.ask_code(RequestCode.WMQ_FIND_TIMERS, topic="T", key="K")
        assert answer.code == ResponseCode.SYSTEM_ERROR and "messageIndexEnable" in (answer.remark or "")
