"""The metrics over HTTP, for Prometheus (RocketMQ: metricsExporterType = PROM)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from wheelmq.broker.metric_families import Families
from wheelmq.broker.metric_sources import MetricSources

ANSWER_S: Final = 10.0
"""Seconds that a fetch waits for the loop."""


class Exporter(Collector):
    """Serves the metric families at http://HOST:PORT/metrics, from its own thread. Raises OSError for a taken port."""

    def __init__(self, sources: MetricSources, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self._families = Families(sources)
        self._loop = loop
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def collect(self) -> Iterable[Metric]:
        """Return the current families. Another thread calls this, and the loop reads them."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(ANSWER_S)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the families are known only at a fetch."""
        return ()

    async def _read(self) -> list[Metric]:
        return list(self._families.all())

    def close(self) -> None:
        """Stop serving. Do not call it on the loop while a fetch waits for the loop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
