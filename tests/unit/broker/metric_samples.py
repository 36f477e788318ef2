"""The samples of a broker's metrics, by name and labels."""

from __future__ import annotations

from wheelmq.broker.metric_families import Families
from wheelmq.observe.prometheus import prometheus_family
from wheelmq.testing.harness import BrokerHarness

Samples = dict[tuple[str, str], float]


def samples_by(harness: BrokerHarness, label: str = "topic") -> Samples:
    """Return every sample by its name and the value of one label."""
    return {
        (sample.name, sample.labels.get(label, "")): float(sample.value)
        for family in Families(harness.broker.parts.metric_sources).all()
        for sample in prometheus_family(family).samples
    }


def samples_of(harness: BrokerHarness, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the samples with one name: their labels without those of the broker, and their values."""
    return [
        ({key: value for key, value in sample.labels.items() if key not in family.fixed_labels}, float(sample.value))
        for family in Families(harness.broker.parts.metric_sources).all()
        for sample in prometheus_family(family).samples
        if sample.name == name
    ]
