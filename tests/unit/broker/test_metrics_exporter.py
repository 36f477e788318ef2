"""The metric families, and their way over HTTP."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from wheelmq.broker.app import BrokerApp
from wheelmq.broker.metric_families import Families
from wheelmq.broker.settings import BrokerSettings, MetricsExporter
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.timer import TIMER_TOPIC
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.harness import BrokerHarness
from wheelmq.testing.pipeline_model import PipelineModel

Samples = dict[tuple[str, str], float]


def told(harness: BrokerHarness, label: str = "topic") -> Samples:
    """Every sample, by its name and the value of one label."""
    return {
        (sample.name, sample.labels.get(label, "")): float(sample.value)
        for family in Families(harness.broker).all()
        for sample in family.samples
    }


def test_the_timers_way(harness: BrokerHarness) -> None:
    model = PipelineModel(harness)
    harness.send("T", delay_ms=500)
    harness.send("T", delay_ms=9000)
    harness.send("U", delay_ms=9000)
    first = told(harness)
    assert first["rocketmq_timer_enqueue_lag", ""] == 3
    assert first["rocketmq_timing_messages", "T"] == 2 and first["rocketmq_timing_messages", "U"] == 1
    harness.advance(4000, model.work)
    later = told(harness)
    assert later["rocketmq_timer_enqueue_lag", ""] == 0
    assert later["rocketmq_timing_messages", "T"] == 1
    assert later["rocketmq_timer_enqueue_total", "T"] == 2 and later["rocketmq_timer_dequeue_total", "T"] == 1
    assert ("rocketmq_timer_dequeue_total", "U") not in later
    assert later["wheelmq_release_lateness_milliseconds_count", ""] == 1
    assert told(harness, "le")["wheelmq_release_lateness_milliseconds_bucket", "1"] == 1
    snapshot = told(harness, "timer_bound_s")
    assert [snapshot["rocketmq_timer_message_snapshot", bound] for bound in ("5", "60")] == [2, 0]
    rows = told(harness, "what")
    assert [rows["wheelmq_turn_rows_total", what] for what in ("indexed", "walked", "armed")] == [3, 0, 0]
    last = harness.broker.pipeline.last_turn
    assert last is not None and (last.turn, last.indexed) == (harness.broker.timer.turns.turn, 3)
    assert told(harness, "by")["wheelmq_timers_armed_total", "near_lane"] >= 1
    harness.advance(10_000, model.work)
    assert ("rocketmq_timing_messages", "T") not in told(harness)


def test_transactions(harness: BrokerHarness) -> None:
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
    now = told(harness)
    assert now["rocketmq_half_messages", "T"] == 1
    assert now["rocketmq_commit_messages_total", "T"] == now["rocketmq_rollback_messages_total", "T"] == 1
    assert now["rocketmq_finish_message_latency_count", "T"] == 1
    assert now["rocketmq_finish_message_latency_sum", "T"] == 7


def test_what_alarms_is_there_from_the_start(harness: BrokerHarness) -> None:
    first = told(harness, "how")
    for how in ("released", "rolled", "dead_letter", "early", "unreadable"):
        assert first["wheelmq_timers_settled_total", how] == 0
    assert first["wheelmq_timers_refused_total", ""] == first["wheelmq_timers_not_noted_total", ""] == 0
    harness.broker.store.append(
        Message(TIMER_TOPIC, 0, b"", {"REAL_TOPIC": "no/topic", "REAL_QID": "0", "__WMQ_DUE": f"{harness.now_ms + 20}"})
    )
    harness.advance(30)
    assert told(harness, "how")["wheelmq_timers_settled_total", "dead_letter"] == 1


def test_what_is_late(harness: BrokerHarness) -> None:
    harness.send("T", delay_ms=500)
    assert told(harness)["rocketmq_timer_dequeue_latency", ""] == 0
    harness.clock.advance(2500)
    assert told(harness)["rocketmq_timer_dequeue_latency", ""] == 2.0


def test_over_http(tmp_path: Path) -> None:
    async def fetch() -> str:
        settings = BrokerSettings(
            store_path=tmp_path / "store",
            listen_port=0,
            log_file_bytes=1 << 20,
            timer_slots=60,
            timer_roll_window_slots=20,
            message_index_enable=False,
            metrics_exporter_type=MetricsExporter.PROM,
            metrics_prom_exporter_port=0,
        )
        app = BrokerApp(settings)
        await app.start()
        try:
            assert app.exporter is not None
            url = f"http://127.0.0.1:{app.exporter.port}/metrics"
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
