"""Serve the dashboard over HTTP: one answer per connection. Without users it has two paths, for GET and HEAD only."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from wheelmq.dashboard import page
from wheelmq.dashboard.entry import LOGIN, PATHS, UserPages, account_html
from wheelmq.dashboard.figures import DashboardFigures
from wheelmq.dashboard.http import (
    HEAD_BYTES_MAX,
    BadRequest,
    HttpAnswer,
    HttpRequest,
    head_of,
    parse_head,
    read_form,
    text_answer,
)
from wheelmq.dashboard.sessions import Sessions
from wheelmq.net.listening import OpenPort, listen, stream_factory
from wheelmq.net.server_tls import ServerTls
from wheelmq.system.tls import TlsMode

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


class Dashboard:
    """An HTTP server on 127.0.0.1 that shows figures. With `sessions`, only users see them, and some may operate."""

    def __init__(self, figures: DashboardFigures, sessions: Sessions | None = None) -> None:
        self._figures = figures
        self._entry = None if sessions is None else UserPages(sessions)
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
                        head = await head_of(reader)
                        request, answer = await self._read(head, reader, writer)
                    self._silent.pop(task, None)
                    if request is not None:
                        answer = await self.answer(request)
                    is_head = head.startswith(b"HEAD ")
                    async with asyncio.timeout(HEAD_S):
                        writer.write(self._written(answer, is_head=is_head))
                        await writer.drain()
                        writer.close()
                        await writer.wait_closed()
        finally:
            self._connections.discard(task)
            self._silent.pop(task, None)
            writer.transport.abort()  # no effect if it is closed already

    async def _read(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[HttpRequest | None, HttpAnswer]:
        """Return the request with `head`, or None and the answer that rejects it. Raises IncompleteReadError."""
        try:
            is_encrypted = writer.get_extra_info("ssl_object") is not None
            address = writer.get_extra_info("peername")[0]
            request = parse_head(head, address, is_encrypted=is_encrypted)
            if _host(request.header("host")) not in HOSTS:
                raise BadRequest("421 Misdirected Request", "Use the host name 127.0.0.1 or localhost.")
            if self._entry is not None and request.method == "POST" and request.path in PATHS:
                request = await read_form(request, reader)
            return request, NO_ANSWER
        except BadRequest as bad:
            return None, bad.answer

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return the answer to a request."""
        path, entry = request.path, self._entry
        if entry is not None and path in PATHS:
            return await entry.answer(request)
        if path not in ("/", "/figures.json"):
            return text_answer("404 Not Found", "The pages are / and /figures.json.")
        if request.method not in ("GET", "HEAD"):
            return text_answer("405 Method Not Allowed", "This page is read-only.", ("Allow", "GET, HEAD"))
        account = ""
        if entry is not None:
            session = await entry.session_of(request)
            if session is None and path == "/":
                return text_answer("303 See Other", f"See {LOGIN}", ("Location", LOGIN))
            if session is None:
                return text_answer("401 Unauthorized", f"Log in at {LOGIN} first.")
            account = account_html(session)
        figures = await self._figures.get()
        if path == "/":
            return HttpAnswer("200 OK", "text/html; charset=utf-8", page.html(figures, account))
        return HttpAnswer("200 OK", "application/json", page.json(figures))

    def _written(self, answer: HttpAnswer, *, is_head: bool) -> bytes:
        found = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *COMMON]
        found.append(("Content-Security-Policy", page.POLICY if self._entry is None else page.FORMS_POLICY))
        head = "".join(f"{name}: {value}\r\n" for name, value in (*found, *answer.headers))
        return f"HTTP/1.1 {answer.status}\r\n{head}\r\n".encode() + (b"" if is_head else answer.body)


NO_ANSWER: Final = text_answer("500 Internal Server Error", "There is no answer.")


def _host(name: str) -> str:
    """Return a Host header's name without the port, which may differ because of a port forwarding."""
    return name if name.endswith("]") else name.rpartition(":")[0] or name
