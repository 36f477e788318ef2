"""Metric families as those of Prometheus' client library, which writes them as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from wheelmq.formats.wire.metric_families import MetricFamily, MetricKind

_KINDS: Final[dict[MetricKind, type[CounterMetricFamily | GaugeMetricFamily]]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
}


def prometheus_family(family: MetricFamily) -> Metric:
    """Return a family in the types of the library."""
    names, fixed = [*family.fixed_labels, *family.label_names], list(family.fixed_labels.values())
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.text, labels=names)
        texts = [*map(str, family.bounds), "+Inf"]
        for sample in family.samples:
            buckets = [(text, float(count)) for text, count in zip(texts, sample.counts, strict=True)]
            histogram.add_metric([*fixed, *sample.labels], buckets, sample.value)
        return histogram
    found = _KINDS[family.kind](family.name, family.text, labels=names)
    for sample in family.samples:
        found.add_metric([*fixed, *sample.labels], sample.value)
    return found


class FamilyCollector(Collector):
    """Families for the encoders of the library. `read` returns the present families at each collection."""

    def __init__(self, read: Callable[[], Iterable[MetricFamily]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return map(prometheus_family, self._read())


def encode_families(families: Iterable[MetricFamily], accepted: str) -> tuple[bytes, str]:
    """Return the families as text, and its media type. `accepted` is the header Accept of the request."""
    encoder, media_type = choose_encoder(accepted)
    return encoder(FamilyCollector(lambda: families)), media_type
