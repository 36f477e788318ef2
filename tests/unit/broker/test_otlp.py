"""Metrics by OTLP: a broker sends them to a real collector over gRPC."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Final, NamedTuple

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2

from wheelmq.broker.app import BrokerApp
from wheelmq.broker.metric_families import Families
from wheelmq.broker.metrics.otlp import otlp_data
from wheelmq.broker.schema import BROKER
from wheelmq.broker.settings import BrokerSettings, MetricsExporter, MetricsSettings
from wheelmq.config.errors import ConfigError
from wheelmq.config.sources import read_pairs
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.testing.harness import BrokerHarness

WAIT_S: Final = 60.0


class Received(NamedTuple):
    """One request to the collector."""

    headers: dict[str, str]
    metrics: list[metrics_pb2.Metric]
    time_left_s: float
    """The time until the broker gives up."""


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
    """A collector that keeps what it gets."""

    def __init__(self) -> None:
        self.received: Queue[Received] = Queue()
        self.rejections = 0
        """Number of the next requests that are rejected."""
        self.port = 0

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.rejections:
            self.rejections -= 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not today")
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        metrics = [
            metric
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        self.received.put(Received(headers, metrics, context.time_remaining()))
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def run_exporting(folder: Path, collector: Collector, requests: int, **chosen: Any) -> list[Received]:
    """Run a broker until the collector has got some requests. Returns what the collector got, also at the stop."""
    settings = BrokerSettings.of(
        store_path=folder,
        listen_port=0,
        log_file_bytes=1 << 20,
        timer_slots=60,
        timer_roll_window_slots=20,
        message_index_enable=False,
        metrics_exporter_type=MetricsExporter.OTLP_GRPC,
        metrics_otlp_target=f"http://127.0.0.1:{collector.port}",
        **chosen,
    )

    async def run() -> list[Received]:
        app = BrokerApp(settings, owns_process=False)
        await app.start()
        try:
            got = [await asyncio.to_thread(collector.received.get, True, WAIT_S) for _ in range(requests)]
        finally:
            await app.stop()
        return got

    got = asyncio.run(run())
    while not collector.received.empty():
        got.append(collector.received.get())
    return got


def labels_of(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def test_a_broker_sends_its_metrics_at_intervals_and_at_its_stop(tmp_path: Path) -> None:
    with collecting() as collector:
        secret = {"metrics_otlp_header": "X-Token: secret of the collector,x-more:1"}
        got = run_exporting(tmp_path, collector, 2, metrics_otlp_interval_ms=50, **secret)
    assert len(got) >= 3, "the last one at the stop"
    headers = got[0].headers
    assert (headers["x-token"], headers["x-more"]) == ("secret of the collector", "1")
    by_name = {metric.name: metric for metric in got[0].metrics}
    (point,) = by_name["rocketmq_storage_flush_behind_bytes"].gauge.data_points
    assert labels_of(point) == {
        "cluster": "DefaultCluster",
        "node_type": "broker",
        "node_id": "broker-a",
        "storage_type": "local",
        "storage_medium": "disk",
    }
    ticks = by_name["wheelmq_tick_seconds"].histogram
    assert ticks.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    requests = by_name["wheelmq_requests_total"].sum
    assert requests.is_monotonic and requests.aggregation_temporality == ticks.aggregation_temporality
    for point in (*ticks.data_points, *requests.data_points):
        assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_only_the_stop_sends_metrics_within_a_long_interval(tmp_path: Path) -> None:
    with collecting() as collector:
        got = run_exporting(tmp_path, collector, 0, metrics_otlp_interval_ms=3_600_000, metrics_otlp_timeout_ms=700_000)
    assert len(got) == 1 and 600 < got[0].time_left_s <= 700


def test_a_rejected_request_does_not_end_the_exporter(tmp_path: Path) -> None:
    with collecting() as collector:
        collector.rejections = 2
        got = run_exporting(tmp_path, collector, 1, metrics_otlp_interval_ms=50)
    assert collector.rejections == 0 and got


def test_a_collector_that_is_away_does_not_delay_the_stop(tmp_path: Path) -> None:
    with collecting() as collector:
        pass
    timeout = {"metrics_otlp_timeout_ms": 200}
    assert run_exporting(tmp_path, collector, 0, metrics_otlp_interval_ms=3_600_000, **timeout) == []


def test_all_families_become_the_same_values(harness: BrokerHarness) -> None:
    harness.send("T", b"x" * 2000)
    harness.send("T", delay_ms=500)
    harness.advance(600)
    families = list(Families(harness.broker.parts.metric_sources).all())
    data = otlp_data(families, Millis(harness.now_ms - 600), Millis(harness.now_ms))
    metrics: dict[str, Any] = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert len(metrics) == len([family for family in families if family.samples]) > 40
    counts = {
        point.attributes["topic"]: point.value for point in metrics["rocketmq_messages_in_total"].data.data_points
    }
    assert counts == {"T": 2, "rmq_sys_wheel_timer": 1}
    (sizes,) = metrics["rocketmq_message_size"].data.data_points
    assert (sizes.count, list(sizes.bucket_counts)) == (3, [2, 1, 0, 0, 0, 0, 0])
    assert len(sizes.explicit_bounds) == len(sizes.bucket_counts) - 1
    assert sizes.sum == harness.broker.parts.stats.put_bytes


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"exporter": MetricsExporter.OTLP_GRPC}, "metrics_otlp_target is empty"),
        ({"otlp_header": "a secret"}, "write NAME:VALUE"),
        ({"otlp_header": "name:"}, "write NAME:VALUE"),
    ],
)
def test_wrong_settings_end_the_start_and_are_not_printed(values: dict[str, Any], problem: str) -> None:
    settings = MetricsSettings(**values)
    with pytest.raises(ValueError, match=problem) as raised:
        settings.check()
    assert "secret" not in str(raised.value) and "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("collector:4317", "https://collector:4317"),
        ("httpcollector:4317", "https://httpcollector:4317"),
        ("http://collector:4317", "http://collector:4317"),
        (" https://collector:4317", "https://collector:4317"),
    ],
)
def test_a_target_without_a_scheme_uses_tls(target: str, url: str) -> None:
    assert MetricsSettings(otlp_target=target).otlp_url == url


@pytest.mark.parametrize("name", ["metrics_otlp_header", "metricsGrpcExporterHeader"])
def test_a_command_line_has_no_header(name: str) -> None:
    with pytest.raises(ConfigError, match="other users of this machine can read a command line"):
        read_pairs({name: "x-token:a secret"}, BROKER)


def test_the_broker_s_settings_and_metrics_have_no_header(tmp_path: Path) -> None:
    with BrokerHarness(tmp_path, metrics_otlp_header="x-token:a secret") as harness:
        answers = [
            harness.ask_code(code).body
            for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.WMQ_METRICS, RequestCode.WMQ_METRIC_FAMILIES)
        ]
    assert all(answers) and b"a secret" not in b"".join(bytes(one) for one in answers)


WITHOUT_THE_EXTRA: Final = """
import asyncio, importlib.abc, sys
from pathlib import Path

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("opentelemetry", "grpc"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from wheelmq.broker.app import BrokerApp
from wheelmq.broker.settings import BrokerSettings, MetricsExporter
from wheelmq.config.errors import ConfigError

settings = BrokerSettings.of(
    store_path=Path(sys.argv[1]), listen_port=0, log_file_bytes=1 << 20, message_index_enable=False,
    metrics_exporter_type=MetricsExporter.OTLP_GRPC, metrics_otlp_target="http://127.0.0.1:1",
)

async def run():
    app = BrokerApp(settings, owns_process=False)
    try:
        await app.start()
    except ConfigError as error:
        print(error)
    finally:
        await app.stop()

asyncio.run(run())
"""


def test_a_start_without_the_extra_names_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA, str(tmp_path)]
    env = {**os.environ, "WHEELMQ_KERNELS": "plain"}  # the compilation of kernels takes a minute
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert 'pip install "wheelmq[opentelemetry]"' in done.stdout, done.stderr
