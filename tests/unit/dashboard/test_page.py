"""The figures of a broker on the dashboard, and the escape of texts."""

from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from wheelmq.dashboard import figures as figures_module
from wheelmq.dashboard import page
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, open_lease

HOSTILE = "<script>alert('x')</script>&\"'<img src=x onerror=alert(1)>"


class CountedRequests:
    """Sends commands to a broker and counts them."""

    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self.codes: list[int] = []
        self.is_there = True

    async def __call__(self, command: Command) -> Command:
        self.codes.append(command.code)
        if not self.is_there:
            raise CallError(HOSTILE)
        return self.harness.ask(command)


@pytest.fixture
def requests(harness: BrokerHarness) -> CountedRequests:
    return CountedRequests(harness)


def read_figures(requests: CountedRequests) -> dict[str, Any]:
    return asyncio.run(DashboardFigures(requests, requests.harness.clock).get())


def tables_by_title(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the JSON, by title."""
    return {one["title"]: one for one in msgspec.json.decode(page.json(found))["sections"]}


class Tags(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_waiting_messages_and_lateness(harness: BrokerHarness, requests: CountedRequests) -> None:
    model = PipelineModel(harness)
    harness.send("T", delay_ms=500)
    for delay_ms in (9000, 9000, 70_000):
        harness.send("T", delay_ms=delay_ms)
    harness.send("T", properties={props.DELAY: "4"})
    harness.send("T", properties={props.DELAY_IN_SECONDS: "30"})
    harness.advance(4000, model.work)
    found = read_figures(requests)
    assert found["counted"] == "all"
    assert found["overview"]["waiting"] == {"timer": 3, "level": 1, "block": 1}
    assert len(found["by_minute"]) == 60 and sum(count for _, count in found["by_minute"]) == 5
    tables = tables_by_title(found)
    assert ["in levels", "1"] in tables["Delayed messages"]["rows"]
    assert ["released", "1"] in tables["Delayed messages"]["rows"]
    [late] = tables["Lateness of releases"]["rows"]
    assert late[1:] == ["1", {"count": 1, "of": 1}]
    assert ["state", "turns"] in tables["Pipeline"]["rows"]
    assert tables["Turns"]["rows"][-1][:2] == ["since the start", "4"]
    minutes = tables["Due in the next hour, by minute"]["rows"]
    assert sum(int(count) for _, count, _ in minutes) == 5
    [topic] = tables["Topics"]["rows"]
    assert topic[0] == "T" and topic[3] == "1"


def test_the_page_shows_rates_per_topic(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.advance(10_000)
    for _ in range(30):
        harness.send("Busy")
    harness.send("Quiet")
    harness.pull("Busy")
    harness.advance(20_000)
    topics = read_figures(requests)["overview"]["topics"]
    assert [one["topic"] for one in topics] == ["Busy", "Quiet"]
    stats = harness.broker.parts.stats
    assert topics[0]["puts_per_s"] == pytest.approx(stats.put_tps("Busy")) and topics[0]["puts_per_s"] > 0
    assert topics[0]["gets_per_s"] > 0 == topics[1]["gets_per_s"]
    assert topics[0]["messages"] == 30


def test_a_large_backlog_is_counted_from_the_timer_wheel(
    harness: BrokerHarness, requests: CountedRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "COUNTS_MAX", 0)
    harness.send("T", delay_ms=9000)
    harness.send("T", delay_ms=9000)
    harness.send("T", properties={props.DELAY: "4"})
    harness.advance(4000, PipelineModel(harness).work)
    found = read_figures(requests)
    assert found["counted"] == "wheel"
    assert sum(count for _, count in found["by_minute"]) == 2 and len(found["by_minute"]) == 60
    assert "without levels and blocks" in tables_by_title(found)["Due in the next hour, by minute"]["note"]


def test_many_viewers_cause_one_broker_request_per_second(harness: BrokerHarness, requests: CountedRequests) -> None:
    figures = DashboardFigures(requests, harness.clock)

    async def many() -> None:
        await asyncio.gather(*(figures.get() for _ in range(20)))

    asyncio.run(many())
    once = len(requests.codes)
    assert requests.codes[0] == RequestCode.WMQ_METRICS and once <= 1 + figures_module.COUNTS_MAX
    harness.clock.advance(1000)
    asyncio.run(many())
    assert len(requests.codes) == 2 * once


def test_the_page_reports_a_broker_that_does_not_answer(requests: CountedRequests) -> None:
    requests.is_there = False
    found = read_figures(requests)
    assert msgspec.json.decode(page.json(found))["sections"] == []
    told = Tags(page.html(found).decode())
    assert "does not answer" in told.text and HOSTILE in told.text
    assert told.tags.count("script") == 1 and "img" not in told.tags


def test_names_are_escaped_on_the_page(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.ask(open_lease(harness, HOSTILE))
    harness.broker.parts.health.reject_sends(HOSTILE)
    harness.send("T")
    found = read_figures(requests)
    assert found["pipeline"]["holder"] == HOSTILE
    told = Tags(page.html(found).decode())
    assert told.text.count(HOSTILE) >= 2
    assert told.tags.count("script") == 1 and "img" not in told.tags
    assert not {name for name in told.attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert ["holder", HOSTILE] in tables_by_title(found)["Pipeline"]["rows"]
    assert "innerHTML" not in page.SCRIPT  # the script also sets text, not HTML


def test_the_page_warns_while_the_pipeline_makes_no_turn(requests: CountedRequests) -> None:
    harness = requests.harness
    assert msgspec.json.decode(page.json(read_figures(requests)))["problem"] == ""
    harness.send("T", delay_ms=9000)
    harness.advance(4000, PipelineModel(harness).work, 500)
    harness.advance(8000)
    found = read_figures(requests)
    problem = msgspec.json.decode(page.json(found))["problem"]
    assert problem == "The pipeline makes no turn: the broker arms and indexes messages itself"
    assert f'<p id="state">{problem}</p>' in page.html(found).decode()
    rows = dict(map(tuple, tables_by_title(found)["Pipeline"]["rows"]))
    assert rows["the broker in its place"].endswith("s ahead")
