"""The metrics over HTTP, for Prometheus to fetch (RocketMQ: metricsExporterType = PROM)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from wheelmq.broker.metric_families import Families

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

ANSWER_S: Final = 10.0
"""How long a fetch waits for the loop."""


class Exporter(Collector):
    """Serves the families of a broker at http://HOST:PORT/metrics, from a thread of its own.

    Raises OSError when the port is taken.
    """

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        self._families = Families(broker)
        self._loop = loop
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def collect(self) -> Iterable[Metric]:
        """The families as they are now; asked for from another thread, read on the loop."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(ANSWER_S)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: what there is, is told when it is fetched."""
        return ()

    async def _read(self) -> list[Metric]:
        return list(self._families.all())

    def close(self) -> None:
        """Serve no more. Not to be called on the loop while a fetch waits for it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
