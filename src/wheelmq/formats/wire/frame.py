"""The remoting frame (RocketMQ: RemotingCommand, RocketMQSerializable).

```
| length 4 | serialize type 1, header length 3 | header | body |
```

`length` counts the bytes after it. The header is JSON (type 0) or binary (type 1):

```
| code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark length 4, remark | ext length 4, pairs |
pair: | key length 2, key | value length 4, value |
```

The broker always answers in JSON, because every client decodes by the type byte.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from wheelmq.formats.buffer import Buffer
from wheelmq.formats.wire.foreign import foreign_text

FRAME_BYTES_MAX: Final = 16_777_216
"""The longest frame that Apache's server accepts, without its length field."""

TYPE_JSON: Final = 0
TYPE_BINARY: Final = 1

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

VERSION: Final = 479
"""V5_3_3, the version whose behaviour WheelMQ implements."""
LANGUAGE: Final = "PYTHON"
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
    "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
"""Index: the code in the binary header."""

_PREFIX = struct.Struct(">ii")
_BINARY_FIXED = struct.Struct(">hbhii")
_INT32 = struct.Struct(">i")


class FrameError(ValueError):
    """The bytes are no frame. The start of the next frame is unknown, so the connection is closed."""


class Command(msgspec.Struct):
    code: int
    opaque: int = 0
    flag: int = 0
    ext: dict[str, str] = {}
    body: bytes | memoryview = b""
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0


class _JavaHeader(msgspec.Struct):
    """The JSON header as the Java client and most others write it. A missing field is 0, as in Java."""

    code: int = 0
    language: str | None = None
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] = {}
    serializeTypeCurrentRPC: str | None = None


class _AnyHeader(msgspec.Struct):
    """The JSON header in all forms that Java accepts: strings for numbers, and in extFields numbers for strings."""

    code: int = 0
    language: str | int | None = None
    version: int = 0
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None
    serializeTypeCurrentRPC: str | None = None


_decode_java = msgspec.json.Decoder(_JavaHeader).decode
_decode_any = msgspec.json.Decoder(_AnyHeader, strict=False).decode
_encode_json = msgspec.json.Encoder().encode


def frame_end(buffer: Buffer, at: int, end: int) -> int | None:
    """Return the end of the frame at byte `at`; None while incomplete. Raises FrameError for a wrong length."""
    if end - at < 4:
        return None
    stop = at + 4 + frame_bytes(buffer, at)
    return stop if stop <= end else None


def frame_bytes(buffer: Buffer, at: int) -> int:
    """Return the length in the prefix at byte `at`, which does not count its own 4 bytes. Raises FrameError."""
    (length,) = _INT32.unpack_from(buffer, at)
    if 4 <= length <= FRAME_BYTES_MAX:
        return int(length)
    foreign = foreign_text(bytes(buffer[at : at + 4]))
    if foreign is not None:
        raise FrameError(foreign)
    raise FrameError(f"a frame of {length} bytes; the limits are 4 and {FRAME_BYTES_MAX} bytes")


def decode(buffer: Buffer, at: int, end: int) -> Command:
    """Return the command in the frame from byte `at` to `end`. Its body is a copy. Raises FrameError."""
    view = memoryview(buffer)
    _, word = _PREFIX.unpack_from(view, at)
    header_start = at + _PREFIX.size
    header_end = header_start + (word & 0xFF_FFFF)
    if header_end > end:
        raise FrameError(f"a header of {word & 0xFF_FFFF} bytes in a frame of {end - at - 4}")
    header = view[header_start:header_end]
    match word >> 24 & 0xFF:
        case 0:
            command = _from_json(header)
        case 1:
            command = _from_binary(header)
        case unknown:
            raise FrameError(f"unknown serialize type {unknown}; the types are 0 (JSON) and 1 (binary)")
    command.body = bytes(view[header_end:end])
    return command


def encode(command: Command) -> bytes:
    """Return the frame of `command`, with a JSON header."""
    header = _encode_json(
        {
            "code": command.code,
            "extFields": command.ext,
            "flag": command.flag,
            "language": command.language,
            "opaque": command.opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": command.version,
            **({} if command.remark is None else {"remark": command.remark}),
        }
    )
    return b"".join((_PREFIX.pack(4 + len(header) + len(command.body), len(header)), header, command.body))


def encode_binary(command: Command) -> bytes:
    """Return the frame of `command`, with a binary header. Its code must fit 16 bits."""
    remark = (command.remark or "").encode()
    pairs = b"".join(
        len(key := name.encode()).to_bytes(2, "big") + key + len(text := value.encode()).to_bytes(4, "big") + text
        for name, value in command.ext.items()
    )
    language = LANGUAGES.index(command.language)
    header = b"".join(
        (
            _BINARY_FIXED.pack(command.code, language, command.version, command.opaque, command.flag),
            _INT32.pack(len(remark)),
            remark,
            _INT32.pack(len(pairs)),
            pairs,
        )
    )
    word = TYPE_BINARY << 24 | len(header)
    return b"".join((_PREFIX.pack(4 + len(header) + len(command.body), word), header, command.body))


def _from_json(header: memoryview) -> Command:
    raw: _JavaHeader | _AnyHeader
    try:
        raw = java = _decode_java(header)
        ext = java.extFields
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raw = _any_json(header)
        ext = {name: _text(value) for name, value in (raw.extFields or {}).items() if value is not None}
    return Command(
        code=raw.code,
        opaque=raw.opaque,
        flag=raw.flag,
        ext=ext,
        remark=raw.remark,
        language=raw.language if isinstance(raw.language, str) else "OTHER",
        version=raw.version,
    )


def _any_json(header: memoryview) -> _AnyHeader:
    try:
        return _decode_any(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the JSON header does not parse: {error}") from None


def _text(value: Any) -> str:
    """Return a value of extFields as the string that Java would send (ali-ons sends numbers and booleans)."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _from_binary(header: memoryview) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header, 0)
        remark, at = _sized(header, _BINARY_FIXED.size, 4)
        block, at = _sized(header, at, 4)
        ext: dict[str, str] = {}
        p = 0
        while p < len(block):
            key, p = _sized(block, p, 2)
            value, p = _sized(block, p, 4)
            ext[str(key, "utf-8")] = str(value, "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the binary header does not parse: {error}") from None
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        ext=ext,
        remark=str(remark, "utf-8", "replace") or None,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER",
        version=version,
    )


def _sized(view: memoryview, at: int, length_bytes: int) -> tuple[memoryview, int]:
    start = at + length_bytes
    length = int.from_bytes(view[at:start], "big", signed=True)
    if start > len(view) or length < 0 or start + length > len(view):
        raise FrameError(f"a field of {length} bytes at byte {at} of a block of {len(view)}")
    return view[start : start + length], start + length
