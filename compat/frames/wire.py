"""A socket for frames with any content."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

SILENCE_S = 0.7


@dataclass
class Outcome:
    """The reaction to some bytes: answers in order, and whether the broker closed the connection."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False

    @property
    def codes(self) -> list[int]:
        return [answer["code"] for answer in self.answers]

    def text(self) -> str:
        said = ", ".join(f"code {answer['code']}" for answer in self.answers) or "no answer"
        return said + (", closed" if self.closed else "")


def frame(header: bytes | dict[str, Any], body: bytes = b"", *, serialize: int = 0) -> bytes:
    """Return a frame with correct lengths around any header."""
    raw = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    return struct.pack(">iI", 4 + len(raw) + len(body), serialize << 24 | len(raw)) + raw + body


class Peer:
    """One connection to a broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 5)
        self._buffer = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def outcome(self, *, answers: int = 1, wait_s: float = SILENCE_S) -> Outcome:
        """Return what arrives until there are `answers`, the connection closes, or nothing arrives for `wait_s`."""
        found = Outcome()
        self._socket.settimeout(wait_s)
        while len(found.answers) < answers:
            answer = self._take()
            if answer is not None:
                found.answers.append(answer)
                continue
            try:
                chunk = self._socket.recv(1 << 20)
            except TimeoutError:
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                found.closed = True
                break
            self._buffer += chunk
        return found

    def _take(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack_from(">i", self._buffer)
        if len(self._buffer) < 4 + length:
            return None
        raw, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        header_bytes = int.from_bytes(raw[1:4], "big")
        answer: dict[str, Any] = json.loads(raw[4 : 4 + header_bytes])
        answer["body"] = raw[4 + header_bytes :]
        return answer
