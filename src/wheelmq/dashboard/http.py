"""Requests and answers of HTTP/1.1, as far as the dashboard needs them."""

from __future__ import annotations

import asyncio
import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

HEAD_BYTES_MAX: Final = 8192
BODY_BYTES_MAX: Final = 4096
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:")
"""RFC 9112: no blank before the name, and none between the name and the colon."""
FORM: Final = "application/x-www-form-urlencoded"


class HttpAnswer(NamedTuple):
    status: str
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class BadRequest(Exception):
    """The request is not served. The answer says why."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.answer = text_answer(status, text)


class HttpRequest(NamedTuple):
    method: str
    path: str
    """Without the query."""
    headers: dict[str, list[str]]
    """The values by name in lower case."""
    address: str
    """The address of the client."""
    form: dict[str, str]
    is_encrypted: bool = False
    """Whether it came by HTTPS."""

    def header(self, name: str) -> str:
        """Return the only value of a header; empty if there is none, or more than one."""
        values = self.headers.get(name, [])
        return values[0] if len(values) == 1 else ""

    def cookie(self, name: str) -> str:
        """Return the value of a cookie, or an empty text."""
        for pair in self.header("cookie").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
        return ""


def text_answer(status: str, text: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an answer with a line of text."""
    return HttpAnswer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """Return the head of the next request; empty if it is too long. Raises IncompleteReadError."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


def parse_head(head: bytes, address: str, *, is_encrypted: bool = False) -> HttpRequest:
    """Return the request with this head, and no form. Raises BadRequest."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest("400 Bad Request", "This is not an HTTP/1.1 request.")
    headers: dict[str, list[str]] = {}
    for line in filter(None, lines[1:]):
        if not _HEADER_NAME.match(line):
            raise BadRequest("400 Bad Request", "A header line has a name without blanks, a colon and a value.")
        name, _, value = line.partition(":")
        headers.setdefault(name.lower(), []).append(value.strip())
    return HttpRequest(words[0], words[1].partition("?")[0], headers, address, {}, is_encrypted)


async def read_form(request: HttpRequest, reader: asyncio.StreamReader) -> HttpRequest:
    """Return the request with the form of its body. Raises BadRequest, IncompleteReadError."""
    length = request.header("content-length")
    if not length.isascii() or not length.isdigit() or "transfer-encoding" in request.headers:
        raise BadRequest("411 Length Required", "A form needs a Content-Length.")
    if len(length) > 6 or int(length) > BODY_BYTES_MAX:
        raise BadRequest("413 Content Too Large", f"A form has at most {BODY_BYTES_MAX} bytes.")
    if request.header("content-type").partition(";")[0].strip().lower() != FORM:
        raise BadRequest("415 Unsupported Media Type", f"A form has the type {FORM}.")
    raw = await reader.readexactly(int(length))
    return request._replace(form=dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)))
