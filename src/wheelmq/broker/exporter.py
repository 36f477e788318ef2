"""The metrics over HTTP, for Prometheus (RocketMQ: metricsExporterType = PROM)."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from wheelmq.broker.metrics.reader import FamilyReader
from wheelmq.observe.prometheus import FamilyCollector
from wheelmq.system.attempt_limit import AttemptLimit
from wheelmq.system.clock import Clock

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


class Exporter:
    """Serves the metric families at http://HOST:PORT/metrics, from its own thread. Raises OSError for a taken port.

    With a `token`, a fetch needs the header `Authorization: Bearer TOKEN`.
    """

    def __init__(self, reader: FamilyReader, clock: Clock, host: str, port: int, token: str | None = None) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(FamilyCollector(reader.read))
        app: App = make_wsgi_app(registry)
        served = app if token is None else _behind(token, app, AttemptLimit(clock.monotonic))
        server = _Ipv6Server if ":" in host else _Server
        self._server = make_server(host, port, served, server, _Handler)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

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
