"""WMQ_METRICS: the metrics that `wheelmq up` and the demonstration rely on."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from wheelmq.broker.handlers import metrics as handler
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, lease_token, open_lease


def metrics(harness: BrokerHarness) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(harness.ask_code(RequestCode.WMQ_METRICS).body)
    return found


def test_metrics_of_a_broker_without_a_pipeline(harness: BrokerHarness) -> None:
    found = metrics(harness)
    assert found["takes_sends"] is True
    assert found["refusal"] is None
    assert found["now_ms"] == harness.now_ms
    assert found["pipeline"]["holder"] is None
    assert (found["pipeline"]["is_held"], found["pipeline"]["is_turning"]) == (False, False)
    assert found["timers"]["pending"] == 0


def test_metrics_count_pending_and_released_messages(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=500)
    harness.send("T", delay_ms=10_000)
    assert metrics(harness)["timers"]["pending"] == 2
    harness.advance(500)
    found = metrics(harness)["timers"]
    assert (found["pending"], found["armed_by"]["near_lane"], found["released"]["released"]) == (1, 1, 1)


def test_a_pipeline_is_turning_after_its_first_plan_request(harness: BrokerHarness) -> None:
    harness.ask(open_lease(harness, "p", "secret"))
    found = metrics(harness)["pipeline"]
    assert (found["holder"], found["is_held"], found["is_turning"]) == ("p", True, False)
    harness.submit(_plan(harness))
    harness.tick()
    assert metrics(harness)["pipeline"]["is_turning"] is True
    harness.ask(open_lease(harness, "p", "secret"))
    assert metrics(harness)["pipeline"]["is_turning"] is False  # a new lease without a request for a plan


def test_a_pipeline_with_an_expired_lease_is_not_turning(harness: BrokerHarness) -> None:
    harness.ask(open_lease(harness, "p", "secret"))
    harness.submit(_plan(harness))
    harness.advance(6000)
    found = metrics(harness)["pipeline"]
    assert (found["is_held"], found["is_turning"]) == (False, False)


def test_metrics_count_turns_and_armed_messages(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    harness.send("T", delay_ms=4000)
    harness.advance(1500)
    model.work()
    found = metrics(harness)
    assert found["pipeline"]["turn"] == 1
    assert found["pipeline"]["unindexed"] == 0
    assert found["timers"]["armed_by"]["pipeline"] == 1


def test_metrics_contain_the_counts_of_the_shell(harness: BrokerHarness) -> None:
    assert metrics(harness)["shell"] == {}  # the harness has no sockets
    counts = {"connections": 2, "bad_frames": 3, "slow_frames": 4, "failed_ticks": 5}
    sources = dataclasses.replace(harness.broker.parts.metric_sources, shell_figures=lambda: counts)
    assert handler.metrics(sources)["shell"] == counts


def test_metrics_contain_the_reason_for_rejected_sends(harness: BrokerHarness) -> None:
    harness.broker.parts.health.reject_sends("the disk is full")
    found = metrics(harness)
    assert (found["takes_sends"], found["refusal"]) == (False, "the disk is full")


def _plan(harness: BrokerHarness) -> Command:
    epoch = metrics(harness)["pipeline"]["epoch"]
    ext = headers.texts(epoch=epoch, timeoutMs=1000, token=lease_token(harness))
    return Command(code=RequestCode.WMQ_PIPELINE_PLAN, ext=ext)
