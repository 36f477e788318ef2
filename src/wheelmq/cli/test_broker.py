"""`wheelmq test-broker`: a broker for the tests of an application in any language, whose clock moves by HTTP."""

from __future__ import annotations

import json
import signal
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import click

from wheelmq.cli.config_options import set_option
from wheelmq.cli.part import end_with_stdin
from wheelmq.cli.times import parse_duration

if TYPE_CHECKING:
    from wheelmq.testing.broker import TestBroker

HELP: Final = "POST /advance?by=3d, POST /freeze, POST /thaw, GET /clock"
_port = click.IntRange(0, 65535)


@click.command(name="test-broker", short_help="Run a broker for tests, with a clock that they move.")
@click.option("--namesrv-port", type=_port, default=0, help="Port of the name server. The default picks a free port.")
@click.option("--broker-port", type=_port, default=0, help="Port of the broker. The default picks a free port.")
@click.option("--clock-port", type=_port, default=0, help="Port that moves the clock. The default picks a free port.")
@click.option("--frozen", is_flag=True, help="Stop the clock at the start: only requests move it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line when the broker is ready.")
@click.option("--ends-with-stdin", is_flag=True, help="Stop when the standard input ends, with the tests.")
@set_option
def command(
    namesrv_port: int,
    broker_port: int,
    clock_port: int,
    frozen: bool,
    as_json: bool,
    ends_with_stdin: bool,
    pairs: tuple[str, ...],
) -> None:
    """Run a name server and a broker on 127.0.0.1 until SIGTERM or Ctrl-C, for the tests of an application.

    Connect your client to the name server. The store is in memory, and is deleted at the end. Then move the clock by
    HTTP requests to the clock's port. The answer to this request comes when each message that is now due is in its
    topic:

    \b
        curl -X POST 'http://127.0.0.1:PORT/advance?by=3d'

    POST /freeze stops the clock, POST /thaw lets it run, and GET /clock returns its time.
    """
    from wheelmq.config.errors import ConfigError
    from wheelmq.testing.broker import TestBroker

    settings = dict(pair.split("=", 1) for pair in pairs)
    broker = TestBroker(namesrv_port=namesrv_port, **({"listen_port": broker_port} | settings))
    try:
        with broker, _clock_server(broker, clock_port) as server:
            if frozen:
                broker.clock.freeze()
            _say_ready(broker, f"http://127.0.0.1:{server.server_port}", as_json)
            if ends_with_stdin:
                end_with_stdin()
            _serve(server)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0)


def _say_ready(broker: TestBroker, url: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"namesrv": broker.namesrv, "broker": broker.address, "clock": url}))
    else:
        click.echo(f"The broker {broker.address} is ready. Connect clients to the name server {broker.namesrv}.")
        click.echo(f"Move its clock at {url}: {HELP}.")


def _serve(server: ThreadingHTTPServer) -> None:
    """Serve requests until SIGTERM or Ctrl-C."""

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()  # it waits for this thread

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.serve_forever(poll_interval=0.05)


def _clock_server(broker: TestBroker, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server for the clock of `broker`. Raises OSError if the port is taken."""

    class ClockRequest(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*_clock_answer(broker, "GET", self.path))

        def do_POST(self) -> None:
            self._answer(*_clock_answer(broker, "POST", self.path))

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log no request: each one is a line of a test."""

    return ThreadingHTTPServer(("127.0.0.1", port), ClockRequest)


def _clock_answer(broker: TestBroker, method: str, target: str) -> tuple[int, dict[str, Any]]:
    """Obey a request. Returns the status and the content of the answer."""
    url = urlsplit(target)
    try:
        match method, url.path:
            case "POST", "/advance":
                [by] = parse_qs(url.query).get("by", [""])
                broker.advance(timedelta(milliseconds=parse_duration(by)))
            case "POST", "/freeze":
                broker.clock.freeze()
            case "POST", "/thaw":
                broker.clock.thaw()
            case "GET", "/clock":
                pass
            case _:
                return 404, {"error": f"there is no {method} {url.path}. The requests are: {HELP}"}
    except ValueError as error:
        return 400, {"error": f"{error}. Write the time as in POST /advance?by=3d"}
    except (TimeoutError, OverflowError) as error:
        return 500, {"error": f"the clock moved, and due messages are not released yet: {error}"}
    return 200, {"now_ms": broker.clock.now_ms(), "now": broker.now.isoformat(), "is_frozen": broker.clock.is_frozen}
