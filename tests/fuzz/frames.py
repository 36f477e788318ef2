"""The bytes that a connection receives: JSON and binary frames in a row, and the headers in them.

Rules: bytes that are no frame raise FrameError, and an invalid header raises HeaderError. A command that is written
and read again is the same, as JSON and in binary. The send kernel reads the same values as the plain code.
"""

from __future__ import annotations

import contextlib

import numpy as np

from tests.fuzz.kernels import runs_kernels
from wheelmq.broker.fast import send_fields as fields
from wheelmq.broker.fast import send_read, send_write
from wheelmq.formats.kernels import json_header
from wheelmq.formats.wire import frame, headers
from wheelmq.formats.wire.frame import Command, FrameError
from wheelmq.formats.wire.headers import Header, HeaderError

TOKENS = (
    b"\0\0\0\x60", b"\0\0\0\x58", b"\x01\0\0\x20", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b'"code":',
    b"310", b"320", b"2147483648", b"9223372036854775808", b"1e400", b"-1", b"null", b"true", b'"extFields":{',
    b'"flag":',
    b'"opaque":', b'"a":"g"', b'"b":"T"', b'"e":"0"', b'"i":"K\\u0001v\\u0002"', b"\\ud800", b"\\u0000", b"\xff",
    b"{", b"}", b"[",
)  # fmt: skip

KINDS: tuple[type[Header], ...] = tuple(Header.__subclasses__())


def check(data: bytes) -> None:
    """Read `data` as a connection does and check the rules."""
    buffer = bytearray(data)
    at = 0
    with contextlib.suppress(FrameError):
        while (stop := frame.frame_end(buffer, at, len(buffer))) is not None:
            command = _decode_both(buffer, at, stop)
            _check_again(command)
            _check_headers(command.ext)
            at = stop


def _decode_both(buffer: bytearray, at: int, stop: int) -> Command:
    """Return the command, as the plain code and the kernel read it. Raises FrameError."""
    try:
        command = frame.decode(buffer, at, stop)
    except FrameError:
        assert _read_by_kernel(buffer, at, stop) is None, "the kernel takes what is no frame"
        raise
    found = _read_by_kernel(buffer, at, stop)
    if found is not None:
        said, block, body = found
        header = headers.read_send_v2(command.ext)
        plain = {
            fields.QUEUE: header.queue_id,
            fields.SYS_FLAG: header.sys_flag,
            fields.BORN_MS: header.born_timestamp,
            fields.USER_FLAG: header.flag,
            fields.RECONSUME: header.reconsume_times,
            fields.OPAQUE: command.opaque,
            fields.ONEWAY: int(command.is_oneway),
        }
        assert {place: int(said[place]) for place in plain} == plain
        assert bytes(buffer[said[fields.TOPIC] : said[fields.TOPIC_END]]).decode() == header.topic
        assert block.decode() == header.properties and body == command.body
        assert not header.unit_mode and not header.batch and command.code == 310
    return command


def _read_by_kernel(buffer: bytearray, at: int, stop: int) -> tuple[list[int], bytes, bytes] | None:
    """Return the fields, properties and body that the kernel reads; None if it leaves the frame to the plain code."""
    if not runs_kernels() or stop - at < 8:
        return None
    said, scratch = np.zeros(fields.FIELDS, np.int64), np.zeros(json_header.HEADER, np.int64)
    received, block = np.frombuffer(bytes(buffer), np.uint8), np.zeros(stop - at, np.uint8)
    if not send_read.read_request(received, at, stop, scratch, said):
        return None
    block_end = send_write.unescape(received, said[fields.PROPERTIES], said[fields.PROPERTIES_END], block, 0)
    if block_end < 0:
        return None
    return said.tolist(), block[:block_end].tobytes(), bytes(buffer[said[fields.BODY] : stop])


def _check_again(command: Command) -> None:
    again = frame.encode(command)
    assert frame.decode(again, 0, len(again)) == command
    if not -(1 << 15) <= command.code < 1 << 15 or not -(1 << 15) <= command.version < 1 << 15:
        return
    if command.language not in frame.LANGUAGES or any(len(name.encode()) >= 1 << 15 for name in command.ext):
        return
    again = frame.encode_binary(command)
    command.remark = command.remark or None  # binary frames cannot hold an empty remark
    assert frame.decode(again, 0, len(again)) == command


def _check_headers(ext: dict[str, str]) -> None:
    for kind in KINDS:
        with contextlib.suppress(HeaderError):
            header = headers.read(ext, kind)
            assert headers.read(headers.write(header), kind) == header
    with contextlib.suppress(HeaderError):
        header = headers.read_send_v2(ext)
        assert headers.read_send_v2(headers.write_send_v2(header)) == header
