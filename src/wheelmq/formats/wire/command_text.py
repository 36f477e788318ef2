"""Requests and answers as text for a log line. Header fields are shortened; bodies and secrets are left out."""

from __future__ import annotations

import struct
from typing import Final

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command, FrameError

FIELD_CHARS_MAX: Final = 64
FIELDS_MAX: Final = 24
HEAD_BYTES: Final = 512
"""`frame_text` needs the first bytes of a frame, not its body."""
SECRETS: Final = frozenset(("accesskey", "secretkey", "signature", "securitytoken", "password", "token", "holderid"))
"""Fields of access lists (RocketMQ: SessionCredentials), in lower case. Their values are never logged."""
_PREFIX: Final = struct.Struct(">ii")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF


def command_text(command: Command) -> str:
    """Return a command as one line of text: header, shortened fields, remark, and the size of its body."""
    pairs = list(command.ext.items())
    fields = [f"{_short(name)}={_value(name, value)}" for name, value in pairs[:FIELDS_MAX]]
    if len(pairs) > FIELDS_MAX:
        fields.append(f"and {len(pairs) - FIELDS_MAX} more")
    remark = "" if command.remark is None else f" remark={_short(command.remark)}"
    return (
        f"code={command.code} opaque={command.opaque} flag={command.flag} version={command.version} "
        f"language={command.language} fields={{{', '.join(fields)}}}{remark} body={len(command.body)} bytes"
    )


def frame_text(head: bytes) -> str:
    """Return the text of the command whose frame begins with `head`, or the reason why it cannot be read."""
    if len(head) < _PREFIX.size:
        return "none"
    length, marked = _PREFIX.unpack_from(head)
    header_end = _PREFIX.size + (marked & _HEADER_LENGTH_MASK)
    if header_end > len(head):
        return f"a frame of {length + 4} bytes with a long header"
    try:
        command = frame.decode(_PREFIX.pack(header_end - 4, marked) + head[_PREFIX.size : header_end], 0, header_end)
    except FrameError as error:
        return f"a frame of {length + 4} bytes: {error}"
    body_bytes = length + 4 - header_end
    return f"{command_text(command).removesuffix('body=0 bytes')}body={body_bytes} bytes"


def short_fields(command: Command) -> dict[str, str]:
    """Return the first header fields, shortened, without those of access lists."""
    open_fields = [(name, value) for name, value in command.ext.items() if name.lower() not in SECRETS]
    return {_short(name): _short(value) for name, value in open_fields[:FIELDS_MAX]}


def _value(name: str, value: str) -> str:
    return "***" if name.lower() in SECRETS else _short(value)


def _short(text: str) -> str:
    cut = text if len(text) <= FIELD_CHARS_MAX else f"{text[:FIELD_CHARS_MAX]}..."
    return cut if cut.isprintable() else ascii(cut)[1:-1]
