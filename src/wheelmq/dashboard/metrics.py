"""The broker's metrics for Prometheus. This process writes the text, so a fetch costs the broker little."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import msgspec

from wheelmq.dashboard.due_counts import Ask
from wheelmq.formats.wire import metric_families
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.metric_families import MetricFamily
from wheelmq.net.errors import CallError, Refused
from wheelmq.observe.prometheus import encode_families
from wheelmq.system.clock import Clock

KEPT_S: Final = 1.0
"""The greatest age of metrics. The broker is not asked more often, even for many fetches."""


class MetricsUnavailable(Exception):
    """The broker does not answer. The text says why."""


class MetricsText(NamedTuple):
    body: bytes
    media_type: str


class BrokerMetrics:
    """The metrics of one broker as text."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask = ask
        self._now_s = clock.monotonic
        self._asking = asyncio.Lock()
        self._kept: dict[str, MetricsText] = {}
        """The present text by the header Accept of the fetch."""
        self._families: list[MetricFamily] = []
        self._kept_s = float("-inf")

    async def text(self, accepted: str) -> MetricsText:
        """Return the metrics in a format that a fetch accepts. Raises MetricsUnavailable."""
        async with self._asking:
            if self._now_s() - self._kept_s >= KEPT_S:
                self._kept.clear()
                self._families = await self._fetch()
                self._kept_s = self._now_s()
            found = self._kept.get(accepted)
            if found is None:
                # A thread, because many topics take long, and this process watches the parts.
                found = MetricsText(*await asyncio.to_thread(encode_families, self._families, accepted))
                self._kept = {accepted: found}
            return found

    async def _fetch(self) -> list[MetricFamily]:
        try:
            answer = await self._ask(Command(code=RequestCode.WMQ_METRIC_FAMILIES))
            return metric_families.read(answer.body)
        except (CallError, Refused, msgspec.DecodeError) as error:
            raise MetricsUnavailable(f"the broker does not answer: {error}") from None
