"""The part of the remoting protocol that one request to a server needs.

It is separate from `wheelmq`: code that judges WheelMQ's codec must not depend on it.

     0               4               8
    +---------------+---------------+--------------------+------+
    | bytes to come | header length | header (JSON)      | body |
    +---------------+---------------+--------------------+------+
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

GET_BROKER_CLUSTER_INFO = 106
CONTROLLER_GET_METADATA_INFO = 1005
SUCCESS = 0

_LENGTHS = struct.Struct(">ii")
_ANSWER_BYTES_MAX = 16 << 20


class RefusedError(Exception):
    """The server answered with another code than SUCCESS."""


def ask(address: str, code: int, timeout_s: float = 2.0) -> bytes:
    """Send one request without fields or body and return the answer's body."""
    return _call(address, code, timeout_s)[1]


def ask_fields(address: str, code: int, timeout_s: float = 2.0) -> dict[str, str]:
    """Send one request without fields or body and return the fields of the answer."""
    return dict(_call(address, code, timeout_s)[0].get("extFields") or {})


def _call(address: str, code: int, timeout_s: float) -> tuple[dict[str, Any], bytes]:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.sendall(_request(code))
        return _answer(connection)


def _request(code: int) -> bytes:
    fields = {"code": code, "language": "PYTHON", "version": 0, "opaque": 1, "flag": 0}
    header = json.dumps(fields).encode()
    return _LENGTHS.pack(4 + len(header), len(header)) + header


def _answer(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    bytes_to_come, header_length = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
    if not 4 + header_length <= bytes_to_come <= _ANSWER_BYTES_MAX:
        raise ConnectionError(f"not a remoting frame: {bytes_to_come} bytes, header {header_length}")
    header = json.loads(_read(connection, header_length))
    body = _read(connection, bytes_to_come - 4 - header_length)
    if header["code"] != SUCCESS:
        raise RefusedError(f"{header['code']}: {header.get('remark')}")
    return header, body


def _read(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise ConnectionError(f"closed after {len(received)} of {length} bytes")
        received += chunk
    return bytes(received)
