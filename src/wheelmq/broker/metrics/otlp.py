"""Metric families as OpenTelemetry's data, and an exporter that sends them to a collector (RocketMQ: OTLP_GRPC).

The package is the extra `wheelmq[opentelemetry]`. Only this module imports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import pairwise
from threading import Event, Thread
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from wheelmq.broker.settings import MetricsSettings
from wheelmq.formats.units import Millis
from wheelmq.formats.wire.metric_families import MetricFamily, MetricKind, MetricSample
from wheelmq.system.clock import Clock

log = logging.getLogger(__name__)

SCOPE: Final = "broker-meter"
"""The name of Apache's meter."""
POINTS_MAX: Final = 5000
"""Data points in one request, which is then shorter than the 4 MiB that a collector accepts by default."""
NANOS_PER_MS: Final = 1_000_000


class OtlpExporter:
    """Sends the families at intervals, from its own thread. A failed attempt is logged and not repeated."""

    def __init__(
        self, read: Callable[[], list[MetricFamily]], settings: MetricsSettings, clock: Clock, boot_ms: Millis
    ) -> None:
        self._read = read
        self._clock = clock
        self._boot_ms = boot_ms
        self._interval_s = settings.otlp_interval_ms / 1000
        self._exporter = OTLPMetricExporter(
            endpoint=settings.otlp_url,
            headers=tuple(settings.otlp_headers.items()),
            timeout=settings.otlp_timeout_ms / 1000,
            max_export_batch_size=POINTS_MAX,
        )
        self._closing = Event()
        self._thread = Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._send()
        self._send()  # the last values, before the broker ends
        self._exporter.shutdown()

    def _send(self) -> None:
        try:
            self._exporter.export(otlp_data(self._read(), self._boot_ms, self._clock.now_ms()))
        except Exception as error:  # the thread must go on
            log.warning("the metrics could not be sent to the collector: %r", error)

    def close(self) -> None:
        """Send the last values, and end. Do not call it on the loop, which must serve the last read."""
        self._closing.set()
        self._thread.join()


def otlp_data(families: Iterable[MetricFamily], start_ms: Millis, now_ms: Millis) -> MetricsData:
    """Return the families as OpenTelemetry's data. Counters and histograms have their values since `start_ms`."""
    convert = _Converter(start_ms * NANOS_PER_MS, now_ms * NANOS_PER_MS)
    metrics = [convert.metric(family) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(Resource({}), [scope], "")])


class _Converter:
    """Converts the families of one moment."""

    def __init__(self, start_ns: int, now_ns: int) -> None:
        self._start_ns = start_ns
        self._now_ns = now_ns

    def metric(self, family: MetricFamily) -> Metric:
        """Return a family. As in Apache's broker, the name of a counter ends with `_total`."""
        if family.kind is MetricKind.HISTOGRAM:
            points = [self._histogram(family, sample) for sample in family.samples]
            return Metric(family.name, family.text, "", Histogram(points, AggregationTemporality.CUMULATIVE))
        values = [self._value(family, sample) for sample in family.samples]
        if family.kind is MetricKind.GAUGE:
            return Metric(family.name, family.text, "", Gauge(values))
        total = Sum(values, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Metric(f"{family.name}_total", family.text, "", total)

    def _value(self, family: MetricFamily, sample: MetricSample) -> NumberDataPoint:
        start_ns = self._start_ns if family.kind is MetricKind.COUNTER else 0
        return NumberDataPoint(_labels(family, sample), start_ns, self._now_ns, sample.value)

    def _histogram(self, family: MetricFamily, sample: MetricSample) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=_labels(family, sample),
            start_time_unix_nano=self._start_ns,
            time_unix_nano=self._now_ns,
            count=sample.counts[-1],
            sum=sample.value,
            bucket_counts=[upto - before for before, upto in pairwise((0, *sample.counts))],
            explicit_bounds=family.bounds,
            min=None,
            max=None,
        )


def _labels(family: MetricFamily, sample: MetricSample) -> dict[str, str]:
    return {**family.fixed_labels, **dict(zip(family.label_names, sample.labels, strict=True))}
