"""The banner: green, or red with the reason and the remedy of each problem."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wheelmq.dashboard import alarms as alarms_module
from wheelmq.dashboard import page
from wheelmq.dashboard.alarms import QUIET_MS, alarms, duration_text
from wheelmq.dashboard.history import HourHistory
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

from .html_tree import Element
from .sample_figures import CountedRequests, read_figures, shown, steady_history


@pytest.fixture
def requests(harness: BrokerHarness) -> CountedRequests:
    return CountedRequests(harness)


def banner(found: dict[str, Any], history: HourHistory | None = None) -> Element:
    return shown(found, history).one("section", aria_labelledby="state-title")


def assert_red(found: dict[str, Any], reason: str, remedy: str, history: HourHistory | None = None) -> None:
    """The banner is red with this one problem, for eyes and for screen readers."""
    seen = banner(found, history)
    assert seen.attributes["class"] == "banner alarm"
    assert seen.one("h2").text == "1 problem", seen.text
    assert reason in seen.one("strong").text
    assert seen.one("span", _class="remedy").text.startswith("Remedy:")
    assert remedy in seen.one("span", _class="remedy").text
    assert shown(found, history).one("head").one("title").text == "1 problem - WheelMQ"
    decoded = msgspec.json.decode(page.json(found, history or HourHistory(), found.get("now_ms", 0)))
    assert reason in decoded["problem"] and remedy in decoded["alarms"][0]["remedy"]


def test_a_healthy_broker_is_green(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.send("T", delay_ms=9000)
    harness.advance(4000, PipelineModel(harness).work)
    found = read_figures(requests)
    seen = banner(found, steady_history(found["now_ms"]))
    assert seen.attributes["class"] == "banner well" and seen.one("h2").text == "All is well"
    assert "the pipeline makes turns" in seen.text and not seen.all("li")
    assert msgspec.json.decode(page.json(found, HourHistory(), 0))["problem"] == ""


def test_a_pipeline_without_turns_is_red(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.send("T", delay_ms=9000)
    harness.advance(4000, PipelineModel(harness).work, 500)
    harness.advance(8000)
    found = read_figures(requests)
    assert_red(found, "The pipeline makes no turn: the broker arms and indexes messages itself", "pipeline.log")
    [row] = [one for one in shown(found).all("tr") if [th.text for th in one.all("th")] == ["work done by the broker"]]
    assert row.text.endswith("s ahead")


def test_a_pipeline_that_never_came_is_red_after_a_minute(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.advance(QUIET_MS - 1000)
    assert alarms(read_figures(requests), None) == []
    assert "the pipeline starts" in banner(read_figures(requests)).text
    harness.advance(2000)
    assert_red(read_figures(requests), "The pipeline has made no turn for", "--no-pipeline")


def test_a_broker_without_a_pipeline_is_green(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.send("T", delay_ms=900_000)
    harness.advance(2 * QUIET_MS)
    found = read_figures(requests, expects_pipeline=False)
    assert found["pipeline"]["fallback"]["is_active"]
    assert "the broker does the work of the pipeline" in banner(found).text and alarms(found, None) == []


def test_overdue_messages_are_red(harness: BrokerHarness, requests: CountedRequests) -> None:
    found = read_figures(requests)
    found["overview"] |= {"overdue_ms": 1500, "due_and_not_released": 1}
    assert_red(found, "1 message is overdue, the first for 1.5 s", "slow disk")
    found["overview"] |= {"overdue_ms": 999}
    assert alarms(found, None) == []


def test_late_releases_are_red(requests: CountedRequests) -> None:
    found = read_figures(requests)
    late = steady_history(found["now_ms"], late_ms=5000)
    assert_red(found, "in the last minute, 99 % were released within 5 s, and the bound is 1 s", "slow disk", late)
    assert alarms(found, steady_history(found["now_ms"], late_ms=1000).recent(60_000)) == []


def test_stopped_releases_are_red(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.restart(timer_stop_dequeue=True)
    assert_red(read_figures(requests), "The release of timers is stopped", "timerStopDequeue to false")


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("the disk is full: No space left on device", "Free space on the disk of the store"),
        ("in-sync replicas not enough: 1 of 2 (min_in_sync_replicas)", "Start the slaves again"),
        ("512 records wait for replicas, which do not keep up", "Start the slaves again"),
        ("a flush to the disk failed: Input/output error", "broker.log"),
    ],
)
def test_rejected_sends_are_red(harness: BrokerHarness, requests: CountedRequests, reason: str, remedy: str) -> None:
    harness.broker.parts.health.reject_sends(reason)
    assert_red(read_figures(requests), f"Sends are rejected: {reason}", remedy)


def test_sends_that_begin_later_are_red(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.restart(start_accept_send_request_time_stamp=harness.now_ms + 60_000)
    assert_red(read_figures(requests), "does not accept sends before", "start_accept_send_request_time_stamp")


def test_a_slave_that_accepts_no_sends_is_green(requests: CountedRequests) -> None:
    found = read_figures(requests) | {"is_master": False, "takes_sends": False, "refusal": "the broker is a slave"}
    assert alarms(found, None) == []
    assert "This broker is a slave" in banner(found).text


def test_a_disk_that_fills_is_red_once(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.disk.used = 0.87
    assert_red(read_figures(requests), "The disk of the store is 87 % full. From 85 % on", "file_reserved_time")
    harness.disk.used = 0.93
    harness.advance(20_000)
    assert_red(read_figures(requests), "Sends are rejected: the disk is 93 % full", "below 90 %")


def test_slots_that_cannot_be_read_are_red(requests: CountedRequests) -> None:
    found = read_figures(requests)
    found["pipeline"]["skipped_slots"] = 1
    assert_red(found, "1 slot of the timer wheel cannot be read", "CRITICAL")


def test_kernels_that_are_not_compiled_are_red(requests: CountedRequests) -> None:
    found = read_figures(requests)
    found["kernels"] = {"state": "failed", "problem": "signal 9 ended the compiler"}
    assert_red(found, "The kernels are not compiled: signal 9 ended the compiler. The broker", "broker.log")
    found["kernels"] = {"state": "compiling", "problem": ""}
    assert alarms(found, None) == []


def test_several_problems_are_listed(harness: BrokerHarness, requests: CountedRequests) -> None:
    harness.disk.used = 0.87
    found = read_figures(requests)
    found["overview"] |= {"overdue_ms": 90_000, "due_and_not_released": 7000}
    seen = banner(found)
    assert seen.one("h2").text == "2 problems" and len(seen.all("li")) == 2
    announced = shown(found).one(role="status").text
    assert announced == "2 problems: Messages are overdue; The disk fills.", "no figure that changes"
    assert "7,000 messages are overdue, the first for 90 s" in seen.text


def test_each_problem_is_documented() -> None:
    tree = ast.parse(Path(alarms_module.__file__).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Alarm"]
    titles = {ast.literal_eval(call.args[0]) for call in calls}
    guide = Path(__file__).parents[3] / "docs/operations/dashboard.md"
    assert titles == set(re.findall(r"^\| ([A-Z][^|]*)\. \|", guide.read_text(), re.MULTILINE)) and len(titles) == 9


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1500, "1.5 s"), (90_000, "90 s"), (600_000, "10 min"), (90_000_000, "25 h")],
)
def test_durations_have_a_unit_for_people(time_ms: int, text: str) -> None:
    assert duration_text(time_ms) == text
