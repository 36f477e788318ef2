"""Serve the dashboard over HTTP: two paths, GET and HEAD only, one answer per connection."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final, NamedTuple

from wheelmq.dashboard import page
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.net.listening import OpenPort, listen, stream_factory
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.tls import TlsMode

HEAD_BYTES_MAX: Final = 8192
HEAD_S: Final = 5.0
"""Time for a request to arrive, and for its answer to be read."""
CONNECTIONS_MAX: Final = 32
"""Simultaneous connections. The server closes further ones."""
HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
"""Names in the Host header that are accepted.

A foreign page whose name was pointed to this server has another one.
"""
COMMON: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
)


_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:")
"""RFC 9112: no blank before the name, and none between the name and the colon."""


class HttpAnswer(NamedTuple):
    status: str
    kind: str
    body: bytes
    allow: str | None = None


class Dashboard:
    """An HTTP server on 127.0.0.1 that shows figures and accepts no changes."""

    def __init__(self, figures: DashboardFigures) -> None:
        self._figures = figures
        self._server: OpenPort | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}
        """Connections that have not sent a complete request yet, the oldest first."""

    async def start(self, port: int, tls: ServerTls | None = None) -> str:
        """Listen on `port` (0 for a free one), and return the page's address. Raises OSError if the port is taken.

        With `tls` the page is served by HTTPS too, or by HTTPS alone, as its mode says.
        """
        factory = stream_factory(self._serve, limit=HEAD_BYTES_MAX)
        self._server = await listen(factory, "127.0.0.1", port, tls=tls)
        is_strict = tls is not None and tls.mode is TlsMode.ENFORCING
        return f"{'https' if is_strict else 'http'}://127.0.0.1:{self._server.port}/"

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        if len(self._connections) > CONNECTIONS_MAX and self._silent:
            oldest = next(iter(self._silent))
            self._connections.discard(oldest)
            del self._silent[oldest]
            oldest.cancel()  # a client that sends nothing makes room for one that does
        try:
            if len(self._connections) <= CONNECTIONS_MAX:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    self._silent[task] = None
                    async with asyncio.timeout(HEAD_S):
                        head = await _head_of(reader)
                    self._silent.pop(task, None)
                    answer = await self.answer(head)
                    async with asyncio.timeout(HEAD_S):
                        writer.write(_written(answer, is_head=head.startswith(b"HEAD ")))
                        await writer.drain()
                        writer.close()
                        await writer.wait_closed()
        finally:
            self._connections.discard(task)
            self._silent.pop(task, None)
            writer.transport.abort()  # no effect if it is closed already

    async def answer(self, head: bytes) -> HttpAnswer:
        """Return the answer to a request with this head."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _text("400 Bad Request", "This is not an HTTP/1.1 request.")
        if any(not _HEADER_NAME.match(line) for line in lines[1:] if line):
            return _text("400 Bad Request", "A header line has a name without blanks, a colon and a value.")
        names = [line.partition(":")[2].strip() for line in lines[1:] if line.lower().startswith("host:")]
        if len(names) != 1 or _host(names[0]) not in HOSTS:
            return _text("421 Misdirected Request", "Use the host name 127.0.0.1 or localhost.")
        method, path = words[0], words[1].partition("?")[0]
        if path not in ("/", "/figures.json"):
            return _text("404 Not Found", "The pages are / and /figures.json.")
        if method not in ("GET", "HEAD"):
            return _text("405 Method Not Allowed", "This page is read-only.", allow="GET, HEAD")
        figures = await self._figures.get()
        if path == "/":
            return HttpAnswer("200 OK", "text/html; charset=utf-8", page.html(figures))
        return HttpAnswer("200 OK", "application/json", page.json(figures))


async def _head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


def _host(name: str) -> str:
    """Return a Host header's name without the port, which may differ because of a port forwarding."""
    return name if name.endswith("]") else name.rpartition(":")[0] or name


def _text(status: str, text: str, allow: str | None = None) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), allow)


def _written(answer: HttpAnswer, *, is_head: bool) -> bytes:
    found = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *COMMON]
    found.append(("Content-Security-Policy", page.POLICY))
    if answer.allow is not None:
        found.append(("Allow", answer.allow))
    head = "".join(f"{name}: {value}\r\n" for name, value in found)
    return f"HTTP/1.1 {answer.status}\r\n{head}\r\n".encode() + (b"" if is_head else answer.body)
