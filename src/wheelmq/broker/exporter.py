"""The metrics over HTTP, for Prometheus (RocketMQ: metricsExporterType = PROM)."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from wheelmq.broker.metric_families import Families
from wheelmq.broker.metric_sources import MetricSources
from wheelmq.system.attempt_limit import AttemptLimit

ANSWER_S: Final = 10.0
"""Seconds that a fetch waits for the loop."""
READ_S: Final = 10.0
"""Seconds in which a fetch must send its next bytes."""

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = READ_S

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Exporter(Collector):
    """Serves the metric families at http://HOST:PORT/metrics, from its own thread. Raises OSError for a taken port.

    With a `token`, a fetch needs the header `Authorization: Bearer TOKEN`.
    """

    def __init__(
        self, sources: MetricSources, loop: asyncio.AbstractEventLoop, host: str, port: int, token: str | None = None
    ) -> None:
        self._families = Families(sources)
        self._loop = loop
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        app: App = make_wsgi_app(registry)
        served = app if token is None else _behind(token, app, AttemptLimit(sources.clock.monotonic))
        server = _Ipv6Server if ":" in host else _Server
        self._server = make_server(host, port, served, server, _Handler)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

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


def _behind(token: str, app: App, limit: AttemptLimit) -> App:
    """Return an application that serves `app` to requests with the token.

    It answers 401 to others, and 429 to an address that has failed too often.
    """
    wanted = f"Bearer {token}".encode()
    lock = Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        address = str(environ.get("REMOTE_ADDR", ""))
        found = str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace")
        with lock:
            wait_s = limit.wait_s(address)
            is_right = not wait_s and hmac.compare_digest(found, wanted)
            if is_right:
                limit.note_success(address)
            elif not wait_s:
                limit.note_failure(address)
        if is_right:
            return app(environ, start_response)
        if wait_s:
            start_response("429 Too Many Requests", [("Retry-After", str(int(wait_s) + 1))])
            return [b"Too many requests with a wrong token.\n"]
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
        return [b"The metrics need the token of metrics_prom_exporter_token_file.\n"]

    return guarded
