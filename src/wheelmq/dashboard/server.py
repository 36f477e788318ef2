"""Serve the dashboard over HTTP on 127.0.0.1: uvicorn's protocol behind our port, one answer per connection.

The port decides by the first byte between plain HTTP and HTTPS, and its certificate changes without a restart. So
`net.listening` opens it, and uvicorn gets each connection from there.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wheelmq.dashboard.app import make_app
from wheelmq.dashboard.entry import BODY_BYTES_MAX
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.metrics import BrokerMetrics
from wheelmq.dashboard.sessions import Sessions
from wheelmq.net.listening import OpenPort, listen
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.clock import Clock
from wheelmq.system.tls import TlsMode

HEAD_BYTES_MAX: Final = 8192
"""Greatest length of the head of a request."""
REQUEST_S: Final = 5.0
"""Time for a request to arrive."""
ANSWER_S: Final = 30.0
"""Time for the broker to answer, and for the client to read."""
STOP_S: Final = 1.0
"""Time for running requests to end at the stop. Their clients do not get the answers."""
CONNECTIONS_MAX: Final = 32
"""Simultaneous connections. The server closes further ones."""


class Dashboard:
    """An HTTP server on 127.0.0.1 that shows figures. With `sessions`, only users see them, and some may operate."""

    def __init__(
        self, figures: DashboardFigures, metrics: BrokerMetrics, clock: Clock, sessions: Sessions | None = None
    ) -> None:
        self._figures = figures
        self._app = make_app(figures, metrics, clock, sessions)
        self._server: OpenPort | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._visitors = Visitors()

    async def start(self, port: int, tls: ServerTls | None = None) -> str:
        """Listen on `port` (0 for a free one), and return the page's address. Raises OSError if the port is taken.

        With `tls` the page is served by HTTPS too, or by HTTPS alone, as its mode says.
        """
        config = Config(
            self._app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # a client can cause any number of warnings
            access_log=False,
            proxy_headers=False,  # a client could choose its address and its scheme
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        visitors = self._visitors
        self._server = await listen(lambda: VisitorConnection(config, visitors), "127.0.0.1", port, tls=tls)
        self._sampling = asyncio.create_task(self._figures.keep_sampling())
        is_strict = tls is not None and tls.mode is TlsMode.ENFORCING
        return f"{'https' if is_strict else 'http'}://127.0.0.1:{self._server.port}/"

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        if self._server is None:
            return
        self._server.close()
        await self._visitors.close()
        await self._server.wait_closed()


class Visitors:
    """The open connections, at most CONNECTIONS_MAX."""

    def __init__(self) -> None:
        self.state = ServerState()
        self._open: set[VisitorConnection] = set()
        self._silent: dict[VisitorConnection, None] = {}
        """Connections that have not sent a complete request yet, the oldest first."""

    def enter(self, connection: VisitorConnection) -> bool:
        """Add a connection. Returns False if there are too many, and all of them have sent a request."""
        if len(self._open) >= CONNECTIONS_MAX:
            if not self._silent:
                return False
            oldest = next(iter(self._silent))
            self.leave(oldest)
            oldest.transport.abort()  # a client that sends nothing makes room for one that does
        self._open.add(connection)
        self._silent[connection] = None
        return True

    def note_request(self, connection: VisitorConnection) -> bool:
        """Note that the request is complete. Returns False if it was known."""
        if connection not in self._silent:
            return False
        del self._silent[connection]
        return True

    def leave(self, connection: VisitorConnection) -> None:
        """Remove a connection."""
        self._open.discard(connection)
        self._silent.pop(connection, None)

    async def close(self) -> None:
        """Close all connections, and wait for the end of their requests."""
        for connection in list(self._open):
            connection.transport.abort()
        tasks = list(self.state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class VisitorConnection(H11Protocol):
    """One connection: uvicorn's protocol with a limit and deadlines for the request and the answer, which it lacks."""

    def __init__(self, config: Config, visitors: Visitors) -> None:
        super().__init__(config, visitors.state, {})
        self._visitors = visitors
        self._deadline: asyncio.TimerHandle | None = None
        self._received_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._visitors.enter(self):
            transport.abort()
            return
        self._set_deadline(REQUEST_S)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        if self._received_bytes <= HEAD_BYTES_MAX + BODY_BYTES_MAX:
            super().data_received(data)
        elif self.cycle is None:
            self.send_400_response("The request is too long.")
        else:
            self.transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        is_complete = self.cycle is not None and not self.cycle.more_body
        if is_complete and self._visitors.note_request(self):
            self._set_deadline(ANSWER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._visitors.leave(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def _set_deadline(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)
