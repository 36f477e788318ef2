"""Counts and listings by due time. They read only the records of messages whose units have no detail."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from wheelmq.cli import main
from wheelmq.cli import timers as command
from wheelmq.cli.timers import list_soonest
from wheelmq.delay import due_times, listing, queue_listing
from wheelmq.formats.disk import properties as props
from wheelmq.formats.kernels import jit
from wheelmq.formats.units import NEVER_MS
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.timer_requests import FIRST_PLACE, TimerQuery, next_place
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

DELAYS_MS = [9000 + 257 * (i * 37 % 41) for i in range(41)]
"""Delays in another order than that of the sends, within the roll window."""
ROLLING_MS = 31_003
LATER_MS = [11_500, 14_000]
"""Delays of messages sent after the others and not indexed."""


@dataclasses.dataclass
class Reads:
    """The number of records that listings have read."""

    count: int = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, read = Reads(), queue_listing._read_records

    def counted(store: Any, positions: Any, *columns: Any) -> int:
        count = read(store, positions, *columns)
        found.count += count
        return count

    monkeypatch.setattr(queue_listing, "_read_records", counted)
    return found


@pytest.fixture(params=["compiled", "plain"])
def filled(
    request: pytest.FixtureRequest, harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> tuple[BrokerHarness, dict[str, int]]:
    """A broker with pending messages, and their due times by unique key."""
    monkeypatch.setattr(jit, "MODE", request.param)
    due_ms: dict[str, int] = {}

    def send(name: str, delay_ms: int, **own: str) -> None:
        due_ms[name] = harness.now_ms + delay_ms
        delay = {} if own else {"delay_ms": delay_ms}
        topic = "TU"[len(due_ms) % 2]
        answer = harness.send(topic, properties={props.UNIQ_KEY: name, **own}, **delay)
        assert answer.code == 0, answer.remark

    for i, delay_ms in enumerate(DELAYS_MS):
        send(f"K{i}", delay_ms)
    send("rolls", ROLLING_MS)
    send("gone", 12_000)
    harness.advance(4000, PipelineModel(harness).work, 500)
    harness.send("T", delay_ms=1000, properties={props.TIMER_DEL_UNIQKEY: f"{'TU'[len(due_ms) % 2]}+gone"})
    del due_ms["gone"]
    for delay_ms in LATER_MS:
        send(f"later{delay_ms}", delay_ms)
    send("level", 10_000, DELAY="3")
    send("block", 15_000, **{props.DELAY_IN_SECONDS: "15"})
    assert harness.broker.parts.timer.indexed_to == len(DELAYS_MS) + 2
    return harness, due_ms


def strip_details(harness: BrokerHarness, every: int = 1) -> None:
    """Turn every `every`-th unit of the timer log into a unit of an older release."""
    log = harness.broker.parts.timer.log
    for _, units in log.chunks(log.files.start, log.end):
        units["reserved"][::every] = 0


def counts(harness: BrokerHarness, **fields: object) -> Counter[int]:
    total: Counter[int] = Counter()
    for answer in answers(harness)("", lambda place: counting(place, fields)):
        total.update({int(step): count for step, count in json.loads(answer.body).items()})
    return total


def counting(place: int, fields: dict[str, Any]) -> Command:
    header = headers.CountTimersHeader(place=place, **{"step_ms": 1000, **fields})
    return Command(code=RequestCode.WMQ_COUNT_TIMERS, ext=headers.write(header))


def expected_counts(due_ms: dict[str, int], step_ms: int = 1000) -> Counter[int]:
    return Counter(due // step_ms * step_ms for due in due_ms.values())


def answers(harness: BrokerHarness) -> Callable[..., Iterator[Command]]:
    """Return a function that asks the harness page by page, as `wheelmq timers` asks a broker."""

    def ask(address: str, request: Callable[[int], Command], tls: object = None) -> Iterator[Command]:
        place: int | None = FIRST_PLACE
        for _ in range(200):
            if place is None:
                return
            answer = harness.ask(request(place))
            assert answer.code == 0, answer.remark
            yield answer
            place = next_place(answer)
        raise AssertionError("the listing does not end")

    return ask


@pytest.mark.parametrize("every", [None, 1, 3], ids=["details", "no details", "some details"])
def test_counts_read_only_records_without_details_in_units(
    filled: tuple[BrokerHarness, dict[str, int]], reads: Reads, every: int | None
) -> None:
    harness, due_ms = filled
    if every is not None:
        strip_details(harness, every)
    assert counts(harness) == expected_counts(due_ms)
    in_timer = len(due_ms) - 2
    with_detail = {None: len(DELAYS_MS), 1: 0, 3: len(DELAYS_MS) - -(-len(DELAYS_MS) // 3)}[every]
    assert reads.count == in_timer - with_detail + 1  # one of a level
    lines = bytes(harness.ask_code(RequestCode.WMQ_LIST_TIMERS, topic="T").body).splitlines()
    of_topic = [json.loads(line)["unique_key"] for line in lines]
    assert 20 < len(of_topic) < len(due_ms)
    assert counts(harness, step_ms=7, topic="T") == expected_counts({name: due_ms[name] for name in of_topic}, 7)


@pytest.mark.parametrize("places", [5, 1 << 16])
@pytest.mark.parametrize("limit", [1, 7, 40, 600])
def test_the_command_lists_the_messages_due_soonest(
    filled: tuple[BrokerHarness, dict[str, int]], monkeypatch: pytest.MonkeyPatch, places: int, limit: int
) -> None:
    harness, due_ms = filled
    monkeypatch.setattr(listing, "PLACES_MAX", places)
    monkeypatch.setattr(listing, "STREAM_PLACES", 1)
    monkeypatch.setattr(command, "_answers", answers(harness))
    order = sorted(due_ms, key=lambda name: due_ms[name])
    first, found = list_soonest(["A"], TimerQuery(None, 0, NEVER_MS), limit)
    assert [pending.unique_key for pending in first] == order[:limit]
    assert [pending.due_ms for pending in first] == [due_ms[name] for name in order[:limit]]
    assert found == len(due_ms)
    from_ms, to_ms = sorted(due_ms.values())[10], sorted(due_ms.values())[30]
    chosen = [name for name in order if from_ms <= due_ms[name] < to_ms]
    first, found = list_soonest(["A"], TimerQuery(None, from_ms, to_ms), limit)
    assert [pending.unique_key for pending in first] == chosen[:limit] and found == len(chosen) == 20
    first, found = list_soonest(["A"], TimerQuery("T", 0, NEVER_MS), limit)
    assert all(pending.topic == "T" for pending in first)
    assert [pending.due_ms for pending in first] == sorted(pending.due_ms for pending in first)
    assert len(first) == min(limit, found)


def test_an_answer_lists_at_most_the_requested_number(filled: tuple[BrokerHarness, dict[str, int]]) -> None:
    harness, due_ms = filled
    answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, soonest="true", count=3)
    lines = [json.loads(line) for line in bytes(answer.body).splitlines()]
    assert [line["due_ms"] for line in lines] == sorted(due_ms.values())[:3]
    assert (answer.ext["found"], answer.ext["isLast"]) == (str(len(due_ms)), "true")
    before_ms = sorted(due_ms.values())[2]
    answer = harness.ask_code(RequestCode.WMQ_LIST_TIMERS, soonest="true", count=3, listedBeforeMs=before_ms)
    assert len(bytes(answer.body).splitlines()) == 2 and answer.ext["found"] == str(len(due_ms))


def test_messages_indexed_twice_are_counted_once(filled: tuple[BrokerHarness, dict[str, int]]) -> None:
    """Their units are no longer in the order of their records. The count reads the records that the search misses."""
    harness, due_ms = filled
    timer = harness.broker.parts.timer
    timer.indexed_to = 17
    harness.advance(2500, PipelineModel(harness).work, 500)
    assert timer.indexed_to > len(DELAYS_MS) + 2
    expected = expected_counts(due_ms)
    assert counts(harness) == expected
    harness.advance(1000, PipelineModel(harness).work, 500)
    assert counts(harness) == expected
    pages = [due_times.due_times(timer, first, first + 10).due_ms for first in range(0, 40, 10)]
    assert {int(due) for due in np.concatenate(pages)} <= {0, *due_ms.values()}


def test_the_command_shows_the_first_messages_and_the_total(
    filled: tuple[BrokerHarness, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, due_ms = filled
    monkeypatch.setattr(command, "_answers", answers(harness))
    shown = CliRunner().invoke(main, ["timers", "--broker", "127.0.0.1:1", "--limit", "2"])
    assert shown.exit_code == 0, shown.output
    assert f"{len(due_ms)} pending, the first 2" in shown.output
    order = sorted(due_ms, key=lambda name: due_ms[name])
    assert all(name in shown.output for name in order[:2]) and f"{order[2]} " not in shown.output
    empty = CliRunner().invoke(main, ["timers", "--broker", "127.0.0.1:1", "--from", "+300d"])
    assert "Nothing is pending." in empty.output
