"""The metric families and their export over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.broker.metric_samples import samples_by
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.metric_families import Families
from wheelmq.broker.overdue import pipeline_problem
from wheelmq.broker.settings import BrokerSettings, MetricsExporter
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.store.ship_status import ShipStatus, ShipStatusFile
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel, Task
from wheelmq.testing.workers import HeldWorker

LINE = (
    r"turn (\d+): (\d+) indexed, (\d+) walked, (\d+) armed; \d+ ms from plan to commit, \d+\.\d ms of them the commit"
)


def test_timers_that_a_stage_delays_are_counted(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)

    def bend(task: Task) -> Task:
        task.rows["shift_ms"] = 1500
        return task

    harness.send("T", delay_ms=4000)
    assert samples_by(harness)["wheelmq_timers_shifted_total", ""] == 0
    model.bend = bend
    harness.advance(3500, model.work)
    assert samples_by(harness)["wheelmq_timers_shifted_total", ""] == 1
    harness.advance(2000, model.work)
    assert harness.bodies("T") == [b"body"]


def test_timer_metrics_follow_messages_from_the_send_to_the_release(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    harness.send("T", delay_ms=500)
    harness.send("T", delay_ms=9000)
    harness.send("U", delay_ms=9000)
    first = samples_by(harness)
    assert first["rocketmq_timer_enqueue_lag", ""] == 3
    assert first["rocketmq_timing_messages", "T"] == 2 and first["rocketmq_timing_messages", "U"] == 1
    harness.advance(4000, model.work)
    later = samples_by(harness)
    assert later["rocketmq_timer_enqueue_lag", ""] == 0
    assert later["rocketmq_timing_messages", "T"] == 1
    assert later["rocketmq_timer_enqueue_total", "T"] == 2 and later["rocketmq_timer_dequeue_total", "T"] == 1
    assert ("rocketmq_timer_dequeue_total", "U") not in later
    assert later["wheelmq_release_lateness_milliseconds_count", ""] == 1
    assert samples_by(harness, "le")["wheelmq_release_lateness_milliseconds_bucket", "1"] == 1
    snapshot = samples_by(harness, "timer_bound_s")
    slots_off = (harness.now_ms + 5000 - 1) // 1000 - harness.now_ms // 1000
    within = [2, 0] if slots_off < 5 else [0, 2]  # the present second's slot is the first of the five
    assert [snapshot["rocketmq_timer_message_snapshot", bound] for bound in ("5", "60")] == within
    rows = samples_by(harness, "what")
    assert [rows["wheelmq_turn_rows_total", what] for what in ("indexed", "walked", "armed")] == [3, 0, 0]
    last = harness.broker.parts.pipeline.figures.last
    assert last is not None and (last.turn, last.indexed) == (harness.broker.parts.timer.turns.turn, 3)
    assert samples_by(harness, "by")["wheelmq_timers_armed_total", "near_lane"] >= 1
    harness.advance(10_000, model.work)
    assert ("rocketmq_timing_messages", "T") not in samples_by(harness)


def test_the_age_of_a_copy_grows_until_the_next_one(harness: BrokerHarness) -> None:
    file = ShipStatusFile(harness.disk, harness.broker.parts.store.paths, "/copies")
    status = ShipStatus(target="/copies", history="h", pid=1, made_ms=harness.now_ms, failures=3)
    file.write(status)
    assert samples_by(harness, "target")["wheelmq_ship_failures_total", "/copies"] == 3
    assert samples_by(harness, "target")["wheelmq_ship_age_seconds", "/copies"] == float("inf")
    harness.send("T", b"shipped")
    shipped_to = harness.broker.parts.store.log.end
    file.write(msgspec.structs.replace(status, complete_ms=harness.now_ms, log_end=shipped_to))
    harness.send("T", b"not shipped")
    harness.advance(2500)
    found = samples_by(harness, "target")
    assert found["wheelmq_ship_age_seconds", "/copies"] == 2.5
    assert found["wheelmq_ship_behind_bytes", "/copies"] == harness.broker.parts.store.log.end - shipped_to > 0


BOUNDS = ("5", "60", "300", "900", "3600", "14400", "28800", "86400")


def test_pending_messages_are_counted_by_kind_and_in_the_wheel(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    due_ms = harness.now_ms + 9000
    harness.send("T", deliver_ms=due_ms, properties={props.UNIQ_KEY: "A"})
    harness.send("T", deliver_ms=due_ms)
    harness.send("T", properties={props.DELAY: "3"})
    harness.send("U", properties={props.DELAY_IN_SECONDS: "30"})

    def waiting() -> tuple[dict[str, float], float, float]:
        where, all_topics = samples_by(harness, "where"), samples_by(harness)
        snapshot = samples_by(harness, "timer_bound_s")
        return (
            {place: where["wheelmq_waiting_messages", place] for place in ("timer", "level", "block")},
            sum(count for (name, _), count in all_topics.items() if name == "rocketmq_timing_messages"),
            sum(snapshot["rocketmq_timer_message_snapshot", bound] for bound in BOUNDS),
        )

    assert waiting() == ({"timer": 2, "level": 1, "block": 1}, 4, 0)
    assert samples_by(harness)["rocketmq_timer_enqueue_lag", ""] == 2
    harness.advance(4000, model.work)
    assert waiting() == ({"timer": 2, "level": 1, "block": 1}, 4, 2)
    harness.send("T", deliver_ms=due_ms, properties={props.TIMER_DEL_UNIQKEY: "T+A"})
    assert waiting() == ({"timer": 1, "level": 1, "block": 1}, 3, 2)  # the cancel is not indexed
    harness.advance(4000, model.work)
    assert waiting() == ({"timer": 1, "level": 1, "block": 1}, 3, 1)
    harness.advance(900, model.work)
    snapshot = samples_by(harness, "timer_bound_s")
    assert snapshot["rocketmq_timer_message_snapshot", "5"] == 1  # in the slot of the present second
    harness.advance(3000, model.work)
    assert waiting()[:2] == ({"timer": 0, "level": 0, "block": 1}, 1)


def test_lags_are_equal_in_metrics_and_in_the_status_of_the_broker(harness: BrokerHarness) -> None:
    """The number and the age of messages to index, and of overdue messages, in both places."""

    def status() -> dict[str, str]:
        body = harness.ask_code(RequestCode.GET_BROKER_RUNTIME_INFO).body
        table: dict[str, str] = json.loads(body)["table"]
        return {name: value for name, value in table.items() if name.startswith("timer")}

    model = PipelineModel(harness)
    names = ("ReadBehind", "OffsetBehind", "CongestNum", "EnqueueTps", "DequeueTps")
    assert set(status()) == {f"timer{name}" for name in names}
    for _ in range(120):
        harness.send("T", delay_ms=12_000)
    harness.advance(2000)
    first = samples_by(harness)
    assert first["rocketmq_timer_enqueue_lag", ""] == 120
    assert 1400 <= first["rocketmq_timer_enqueue_latency", ""] <= 2000
    assert (status()["timerOffsetBehind"], status()["timerCongestNum"]) == ("120", "120")
    harness.advance(8000, model.work, 500)
    later = samples_by(harness)
    assert later["rocketmq_timer_enqueue_lag", ""] == later["rocketmq_timer_enqueue_latency", ""] == 0
    assert (status()["timerOffsetBehind"], status()["timerReadBehind"]) == ("0", "0")
    assert float(status()["timerEnqueueTps"]) > 1 and float(status()["timerDequeueTps"]) == 0
    harness.clock.advance(5000)  # no tick runs
    harness.broker.parts.releaser.take_due(Millis(harness.now_ms))
    late = samples_by(harness)
    assert (late["rocketmq_timer_dequeue_lag", ""], late["rocketmq_timer_dequeue_latency", ""]) == (120, 3.0)
    assert int(status()["timerReadBehind"]) in (3, 4)  # full seconds; the tick of the request releases them
    harness.advance(2000)
    assert (status()["timerCongestNum"], status()["timerReadBehind"]) == ("0", "0")
    assert float(status()["timerDequeueTps"]) > 1


def test_each_turn_is_logged_in_one_line(harness: BrokerHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wheelmq.broker.turns.figures")
    model = PipelineModel(harness)
    for properties in ({props.TIMER_DELAY_MS: "9000"}, {props.DELAY: "2"}, {props.DELAY_IN_SECONDS: "11"}):
        harness.send("T", properties=properties)
    harness.advance(12_000, model.work, 250)
    lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith("turn ")]
    found = [re.fullmatch(LINE, line) for line in lines]
    assert len(lines) == model.committed > 1 and all(found)
    sums = [sum(int(one[i]) for one in found if one) for i in (2, 3, 4)]
    rows = samples_by(harness, "what")
    assert sums == [rows["wheelmq_turn_rows_total", what] for what in ("indexed", "walked", "armed")] == [1, 3, 3]
    assert samples_by(harness)["wheelmq_turn_seconds_count", ""] == len(lines)


def test_transaction_metrics_count_outcomes_by_topic(harness: BrokerHarness) -> None:
    marks = {props.TRAN_MSG: "true", props.PRODUCER_GROUP: "g"}
    sent = [harness.send("T", b"x", properties=marks, g=harness.now_ms - 7000) for _ in range(3)]
    for answer, outcome in zip(sent, (8, 12), strict=False):
        position, queue_offset = int(answer.ext["msgId"][-16:], 16), answer.ext["queueOffset"]
        fields: dict[str, object] = {
            "commitLogOffset": position,
            "tranStateTableOffset": queue_offset,
            "commitOrRollback": outcome,
        }
        assert harness.ask_code(RequestCode.END_TRANSACTION, producerGroup="g", **fields).code == 0
    now = samples_by(harness)
    assert now["rocketmq_half_messages", "T"] == 1
    assert now["rocketmq_commit_messages_total", "T"] == now["rocketmq_rollback_messages_total", "T"] == 1
    assert now["rocketmq_finish_message_latency_count", "T"] == 1
    assert now["rocketmq_finish_message_latency_sum", "T"] == 7


def test_metrics_for_alarms_exist_from_the_start(harness: BrokerHarness) -> None:
    first = samples_by(harness, "how")
    for how in ("released", "rolled", "dead_letter", "early", "unreadable", "too_long", "failed"):
        assert first["wheelmq_timers_settled_total", how] == 0
    assert first["wheelmq_timers_refused_total", ""] == first["wheelmq_timers_not_noted_total", ""] == 0
    harness.broker.parts.store.append(
        Message(TIMER_TOPIC, 0, b"", {"REAL_TOPIC": "no/topic", "REAL_QID": "0", "__WMQ_DUE": f"{harness.now_ms + 20}"})
    )
    harness.advance(30)
    assert samples_by(harness, "how")["wheelmq_timers_settled_total", "dead_letter"] == 1


def test_an_overdue_message_has_a_latency(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=500)
    assert samples_by(harness)["rocketmq_timer_dequeue_latency", ""] == 0
    harness.clock.advance(2500)
    assert samples_by(harness)["rocketmq_timer_dequeue_latency", ""] == 2.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_exporter_serves_the_metrics_over_http(tmp_path: Path, host: str) -> None:
    async def fetch() -> str:
        settings = BrokerSettings.of(
            store_path=tmp_path / "store",
            listen_port=0,
            log_file_bytes=1 << 20,
            timer_slots=60,
            timer_roll_window_slots=20,
            message_index_enable=False,
            metrics_exporter_type=MetricsExporter.PROM,
            metrics_prom_exporter_port=0,
            metrics_prom_exporter_host=host,
        )
        app = BrokerApp(settings, owns_process=False)
        await app.start()
        try:
            assert app.exporter is not None
            url = f"http://{f'[{host}]' if ':' in host else host}:{app.exporter.port}/metrics"
            return await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode())
        finally:
            await app.stop()

    families = {family.name: family for family in text_string_to_metric_families(asyncio.run(fetch()))}
    lag = families["rocketmq_timer_enqueue_lag"].samples[0]
    assert lag.value == 0
    assert lag.labels == {
        "cluster": "DefaultCluster",
        "node_type": "broker",
        "node_id": "broker-a",
        "storage_type": "local",
        "storage_medium": "disk",
    }
    assert families["wheelmq_tick_seconds"].type == "histogram"


def test_metrics_show_a_missing_pipeline_and_overdue_messages(tmp_path: Path) -> None:
    reading = HeldWorker()
    wide = {"timer_lead_ms": 30_000, "timer_slots": 600, "timer_roll_window_slots": 400}
    with BrokerHarness(tmp_path, background=reading, **wide) as harness:
        model = PipelineModel(harness)
        for delay_ms in (40_000, 40_100, 50_000):
            harness.send("T", delay_ms=delay_ms)
        harness.advance(4000, model.work, 500)
        well = samples_by(harness, "by")
        assert well["wheelmq_timers_armed_total", "wheel_lane"] == well["wheelmq_timers_armed_total", "index_lane"] == 0
        assert well["wheelmq_walked_ahead_seconds", "pipeline"] > 20
        assert well["wheelmq_fallback_active", ""] == 0 == well["rocketmq_timer_dequeue_lag", ""]
        assert well["wheelmq_slots_walked_total", "broker"] == 0
        harness.advance(42_000)  # the broker's own reads hang
        late = samples_by(harness, "by")
        assert late["wheelmq_fallback_active", ""] == 1
        assert late["wheelmq_walked_ahead_seconds", "broker"] < 0 > late["wheelmq_walked_ahead_seconds", "pipeline"]
        assert late["rocketmq_timer_dequeue_lag", ""] == 2 and late["rocketmq_timer_dequeue_latency", ""] > 4
        assert "2 messages are overdue, the first for " in pipeline_problem(harness.broker.parts)
        assert "the pipeline makes no turn" in pipeline_problem(harness.broker.parts)
        harness.advance(2000, harness.run_jobs, 500)
        mended = samples_by(harness, "by")
        assert mended["rocketmq_timer_dequeue_lag", ""] == 0 == mended["rocketmq_timer_dequeue_latency", ""]
        assert mended["wheelmq_timers_armed_total", "wheel_lane"] == 3
        assert mended["wheelmq_walked_ahead_seconds", "broker"] >= 5
        assert mended["wheelmq_slots_walked_total", "broker"] == 2
        harness.send("T", delay_ms=300_000)
        harness.advance(20_000, harness.run_jobs, 500)
        assert samples_by(harness)["wheelmq_fallback_indexed_total", ""] == 1
        harness.send("T", delay_ms=20_000)
        harness.advance(4000, model.work, 500)
        assert samples_by(harness)["wheelmq_fallback_active", ""] == 0 and not pipeline_problem(harness.broker.parts)


@pytest.mark.parametrize("library", ["prometheus_client", "opentelemetry"])
def test_a_broker_without_an_exporter_does_not_load_its_library(library: str) -> None:
    code = f"import sys, wheelmq.broker.app; sys.exit({library!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_family_is_documented(harness: BrokerHarness) -> None:
    text = (Path(__file__).parents[3] / "docs/operations/metrics.md").read_text()
    missing = [
        family.name for family in Families(harness.broker.parts.metric_sources).all() if f"`{family.name}" not in text
    ]
    assert not missing
