"""Creates metric families. The labels of each family identify the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from wheelmq.broker.settings import NodeSettings
from wheelmq.formats.wire.metric_families import MetricFamily, MetricKind, MetricSample
from wheelmq.observe.histogram import Histogram

STORAGE: Final = {"storage_type": "local", "storage_medium": "disk"}
"""Labels of Apache's families of the store."""

FamilySteps = Iterator[MetricFamily | None]
"""Families, and None between two small pieces of their work: the broker may then do other work."""


def node_labels(node: NodeSettings) -> dict[str, str]:
    """Return the labels of a broker."""
    return {"cluster": node.cluster, "node_type": "broker", "node_id": node.name}


class FamilyBuilder:
    """Creates families with the same fixed labels."""

    def __init__(self, fixed_labels: dict[str, str]) -> None:
        self._labels = fixed_labels

    def empty(self, kind: MetricKind, name: str, text: str, *label_names: str) -> MetricFamily:
        """Return a family without samples."""
        return MetricFamily(name, kind, text, self._labels, label_names)

    def gauge(self, name: str, text: str, value: float) -> MetricFamily:
        """Return a gauge with one sample."""
        return self._single(MetricKind.GAUGE, name, text, value)

    def total(self, name: str, text: str, count: float) -> MetricFamily:
        """Return a counter with one sample."""
        return self._single(MetricKind.COUNTER, name, text, count)

    def counter(self, name: str, text: str, label: str, counts: Mapping[str, float]) -> MetricFamily:
        """Return a counter with a sample for each value of a label."""
        return self._labelled(MetricKind.COUNTER, name, text, label, counts)

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> MetricFamily:
        """Return a gauge with a sample for each value of a label."""
        return self._labelled(MetricKind.GAUGE, name, text, label, values)

    def histogram(self, name: str, text: str, histogram: Histogram, bounds: tuple[float, ...]) -> MetricFamily:
        """Return a histogram with one sample."""
        family = self.histograms(name, text, bounds)
        family.samples.append(histogram_sample(histogram, bounds))
        return family

    def histograms(self, name: str, text: str, bounds: tuple[float, ...], *label_names: str) -> MetricFamily:
        """Return a family of histograms without samples."""
        return MetricFamily(name, MetricKind.HISTOGRAM, text, self._labels, label_names, bounds)

    def _single(self, kind: MetricKind, name: str, text: str, value: float) -> MetricFamily:
        family = self.empty(kind, name, text)
        family.add(value)
        return family

    def _labelled(
        self, kind: MetricKind, name: str, text: str, label: str, values: Mapping[str, float]
    ) -> MetricFamily:
        family = self.empty(kind, name, text, label)
        for key, value in sorted(values.items()):
            family.add(value, key)
        return family


def histogram_sample(histogram: Histogram, bounds: tuple[float, ...], *labels: str) -> MetricSample:
    """Return the number of values at or below each bound, and the sum of all values."""
    counts = (*map(histogram.count_to, bounds), histogram.count)
    return MetricSample(labels, histogram.total, counts)
