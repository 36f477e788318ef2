"""The figures of a broker on the dashboard, and the escape of texts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.unit.broker.test_metrics_exporter import samples_by
from wheelmq.dashboard import due_counts, page
from wheelmq.dashboard.figures import COUNTED_S, DashboardFigures
from wheelmq.dashboard.history import HourHistory
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, open_lease

from .sample_figures import CountedRequests, read_figures, shown, steady_history

HOSTILE = "<script>alert('x')</script>&\"'<img src=x onerror=alert(1)>"


@pytest.fixture
def requests(harness: BrokerHarness) -> CountedRequests:
    return CountedRequests(harness)


def json_of(found: dict[str, Any]) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(page.json(found, HourHistory(), found.get("now_ms", 0)))
    return decoded


def tables_by_title(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the JSON, by title."""
    return {one["title"]: one for one in json_of(found)["sections"]}


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
    assert ["state", "makes turns"] in tables["Pipeline"]["rows"]
    assert tables["Turns"]["rows"][-1][:2] == ["since the start", "4"]
    minutes = tables["Due in the next hour, by minute"]["rows"]
    assert sum(int(count) for _, count, _ in minutes) == 5
    [topic] = tables["Topics"]["rows"]
    assert topic[0] == "T" and topic[3] == "1"


def test_the_page_shows_pending_messages_by_topic_hour_and_day(
    harness: BrokerHarness, requests: CountedRequests
) -> None:
    for hours in (1, 1, 30, 70):
        harness.send("T", delay_ms=hours * 3_600_000)
    harness.send("U", delay_ms=3_600_000)
    harness.send("U", properties={props.DELAY_IN_SECONDS: str(200 * 86_400)})
    found = read_figures(requests)
    assert [count for _, count in found["by_hour"] if count] == [3] and len(found["by_hour"]) == 24
    assert sum(count for _, count in found["by_day"]) == 6
    tables = tables_by_title(found)
    assert [row[:2] for row in tables["Pending by topic"]["rows"]] == [["T", "4"], ["U", "2"]]
    assert len(tables["Due by day"]["rows"]) >= 3
    table = next(one for one in shown(found).all("table") if one.all("th", scope="row")[0].text == "T")
    assert [one.text for one in table.all("td") if "aria-hidden" not in one.attributes] == ["", "4", "2"]


def test_a_table_of_many_days_ends_with_all_later_ones(requests: CountedRequests) -> None:
    found = read_figures(requests)
    found["by_day"] = [[day * 86_400_000, 1] for day in range(100)]
    rows = tables_by_title(found)["Due by day"]["rows"]
    assert len(rows) == 62 and rows[-1][:2] == ["later", "39"]


def test_the_page_shows_groups_with_lag_and_dead_letters(harness: BrokerHarness, requests: CountedRequests) -> None:
    for _ in range(5):
        harness.send("T", queue_id=0)
    harness.broker.parts.consumer_offsets.commit("billing", "T", 0, 2)
    harness.send("%DLQ%billing", queue_id=0)
    found = read_figures(requests)
    tables = tables_by_title(found)
    assert tables["Groups with lag"]["rows"] == [["billing", "T", "3", "0"]]
    assert tables["Dead letters"]["rows"] == [["billing", "1"]]
    tiles = shown(found).one("dl")
    assert "lag of all groups 3" in tiles.text and "dead letters 1" in tiles.text


def test_a_quantity_is_not_broken_before_its_unit(harness: BrokerHarness, requests: CountedRequests) -> None:
    """A narrow screen breaks other cells at any character."""
    model = PipelineModel(harness)
    harness.send("T", delay_ms=70_000)
    harness.advance(4000, model.work)
    cells = shown(read_figures(requests)).all("td")
    quantities = {one.text for one in cells if one.attributes.get("class") == "quantity"}
    assert {"0.00 s", "0.0 s", "1"} <= quantities
    assert "makes turns" in {one.text for one in cells} - quantities
    assert b"td.quantity { white-space: nowrap; }" in page.asset("style.css")


def test_the_figures_are_those_of_the_metrics(harness: BrokerHarness, requests: CountedRequests) -> None:
    model = PipelineModel(harness)
    for delay_ms in (500, 9000, 70_000):
        harness.send("T", delay_ms=delay_ms)
        harness.send("U", delay_ms=delay_ms)
    harness.advance(4000, model.work)
    found, samples = read_figures(requests), samples_by(harness)
    for topic, count in found["overview"]["pending_by_topic"]:
        assert samples["rocketmq_timing_messages", topic] == count == 2
    late = found["overview"]["lateness_ms"]
    assert samples["wheelmq_release_lateness_milliseconds_count", ""] == late["count"] == 2
    assert samples["rocketmq_timer_dequeue_lag", ""] == found["overview"]["due_and_not_released"]
    waiting = samples_by(harness, "where")
    for place, count in found["overview"]["waiting"].items():
        assert waiting["wheelmq_waiting_messages", place] == count


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
    monkeypatch.setattr(due_counts, "REQUESTS_MAX", 0)
    harness.send("T", delay_ms=9000)
    harness.send("T", delay_ms=9000)
    harness.send("T", properties={props.DELAY: "4"})
    harness.advance(4000, PipelineModel(harness).work)
    found = read_figures(requests)
    assert found["counted"] == "wheel"
    assert sum(count for _, count in found["by_minute"]) == 2 and len(found["by_minute"]) == 60
    tables = tables_by_title(found)
    assert "without levels and blocks" in tables["Due in the next hour, by minute"]["note"]
    assert (tables["Due by day"]["rows"], tables["Due by day"]["note"]) == ([], "the broker is still counting")


def test_many_viewers_cause_one_broker_request_per_second(harness: BrokerHarness, requests: CountedRequests) -> None:
    figures = DashboardFigures(requests, harness.clock)

    async def many() -> None:
        await asyncio.gather(*(figures.get() for _ in range(20)))

    asyncio.run(many())
    first = len(requests.codes)
    assert requests.codes[0] == RequestCode.WMQ_METRICS and first <= 1 + 2 * due_counts.REQUESTS_MAX
    harness.clock.advance(1000)
    asyncio.run(many())
    second = len(requests.codes) - first
    assert second < first, "the messages by hour and day are counted less often"
    harness.clock.advance(int(COUNTED_S * 1000))
    asyncio.run(many())
    assert len(requests.codes) == 2 * first + second


def test_health_checks_cause_one_small_request_per_second(harness: BrokerHarness, requests: CountedRequests) -> None:
    figures = DashboardFigures(requests, harness.clock)

    async def many() -> list[dict[str, Any]]:
        return await asyncio.gather(*(figures.state() for _ in range(20)))

    for count in (1, 2):
        found = asyncio.run(many())
        assert requests.codes == [RequestCode.WMQ_METRICS] * count
        assert all(one["takes_sends"] and "overview" not in one for one in found)
        harness.clock.advance(1000)


def test_the_page_reports_a_broker_that_does_not_answer(requests: CountedRequests) -> None:
    requests.is_there, requests.problem = False, HOSTILE
    found = read_figures(requests)
    assert json_of(found)["sections"] == []
    seen = shown(found, steady_history(0))
    banner = seen.one(id="state")
    assert "does not answer" in banner.text and HOSTILE in banner.text and "wheelmq doctor" in banner.text
    assert len(seen.all("script")) == 1 and not seen.all("img")
    assert len(seen.all("figure")) == 3, "the last hour stays"


def test_names_are_escaped_on_the_page(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.ask(open_lease(harness, HOSTILE))
    harness.broker.parts.health.reject_sends(HOSTILE)
    harness.send("T")
    found = read_figures(requests)
    assert found["pipeline"]["holder"] == HOSTILE
    seen = shown(found)
    assert seen.text.count(HOSTILE) >= 2
    assert len(seen.all("script")) == 1 and not seen.all("img")
    names = {name for one in seen.walk() for name in one.attributes}
    assert "style" not in names and not any(name.startswith("on") for name in names)
    assert ["holder", HOSTILE] in tables_by_title(found)["Pipeline"]["rows"]
    assert b"innerHTML" not in page.asset("refresh.js")
