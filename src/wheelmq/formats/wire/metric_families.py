"""Metric families as values: the answer to WMQ_METRIC_FAMILIES, a list of them in MessagePack.

They belong to no library. The broker creates them quickly, and other code turns them into the text of Prometheus or
into OTLP.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Final

import msgspec


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSample(msgspec.Struct, array_like=True, gc=False):
    """One value, or one histogram. It can be in no cycle, so the garbage collector need not track it."""

    labels: tuple[str, ...]
    """The values of the labels of the family, in their order."""
    value: float
    """The value. Of a histogram, the sum of all its values."""
    counts: tuple[int, ...] = ()
    """Of a histogram: the number of values at or below each bound, and then the number of all."""


class MetricFamily(msgspec.Struct):
    """The samples with one name. The name of a counter has no `_total` at its end."""

    name: str
    kind: MetricKind
    text: str
    fixed_labels: dict[str, str]
    """Labels that all samples share: they identify the broker."""
    label_names: tuple[str, ...] = ()
    bounds: tuple[int | float, ...] = ()
    """Of a histogram: the upper bounds of its buckets, without infinity."""
    samples: list[MetricSample] = []

    def add(self, value: float, *labels: str) -> None:
        """Add the value of the sample with these labels."""
        self.samples.append(MetricSample(labels, value))


_ARRAY_16: Final = 0xDC
"""MessagePack's mark of an array whose length has 16 bits."""
_ARRAY: Final = struct.Struct(">BH")
_DECODER: Final = msgspec.msgpack.Decoder(list[MetricFamily])


def written(family: MetricFamily) -> bytes:
    """Return the bytes of one family."""
    return msgspec.msgpack.encode(family)


def body_of(families: list[bytes]) -> bytes:
    """Return the body of an answer with these families, each as `written` returns it."""
    return _ARRAY.pack(_ARRAY_16, len(families)) + b"".join(families)


def read(body: bytes | memoryview) -> list[MetricFamily]:
    """Return the families in the body of an answer. Raises msgspec.DecodeError."""
    return _DECODER.decode(body)
