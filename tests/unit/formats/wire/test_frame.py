"""Frames: both header types, cuts at every byte, and invalid input of every kind.

The commands of one table are decoded whole, byte by byte, and with more bytes after them.
"""

from __future__ import annotations

import contextlib
import json
import re
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import FRAME_BYTES_MAX, Command, FrameError

COMMANDS = [
    Command(code=34),
    Command(code=310, opaque=7, ext={"a": "group", "i": "KEYS\x01k\x02", "e": "0"}, body=b"body"),
    Command(code=0, opaque=-1, flag=frame.FLAG_RESPONSE, remark="a remark, ü", language="JAVA", version=63),
    Command(code=15, flag=frame.FLAG_ONEWAY, ext={"topic": 'quotes " and \\ and \n'}, body=b"\0" * 300),
    Command(code=11, opaque=2147483647, ext={"": ""}, language="GO"),
]
IDS = [str(command.code) for command in COMMANDS]


def encoded(command: Command, binary: bool) -> bytes:
    return frame.encode_binary(command) if binary else frame.encode(command)


def json_frame(header: object, body: bytes = b"") -> bytes:
    return raw_frame(0, header.encode() if isinstance(header, str) else json.dumps(header).encode(), body)


def raw_frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def decode_whole(raw: bytes) -> Command:
    end = frame.frame_end(raw, 0, len(raw))
    assert end == len(raw)
    return frame.decode(raw, 0, end)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("command", COMMANDS, ids=IDS)
class TestRoundTrip:
    def test_a_whole_frame_decodes_to_its_command(self, command: Command, binary: bool) -> None:
        assert decode_whole(encoded(command, binary)) == command

    def test_a_frame_cut_at_any_byte_is_incomplete(self, command: Command, binary: bool) -> None:
        raw = encoded(command, binary)
        for cut in range(len(raw)):
            assert frame.frame_end(raw[:cut], 0, cut) is None
            assert frame.frame_end(raw, 0, cut) is None  # the buffer is longer than its filled part

    def test_a_frame_is_decoded_among_other_bytes(self, command: Command, binary: bool) -> None:
        raw = encoded(command, binary)
        buffer = memoryview(bytearray(b"before" + raw + b"\0\0\0behind"))
        end = frame.frame_end(buffer, 6, len(buffer))
        assert end == 6 + len(raw)
        assert frame.decode(buffer, 6, end) == command

    def test_the_body_is_a_copy(self, command: Command, binary: bool) -> None:
        buffer = bytearray(encoded(command, binary))
        decoded = frame.decode(buffer, 0, len(buffer))
        buffer[:] = bytes(len(buffer))
        assert decoded.body == command.body


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(1 << 31), FRAME_BYTES_MAX + 1, (1 << 31) - 1])
def test_an_impossible_length_is_rejected(length: int) -> None:
    raw = struct.pack(">i", length)
    with pytest.raises(FrameError, match="the limits are 4 and 16777216 bytes"):
        frame.frame_end(raw, 0, 4)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "HTTP/2, as gRPC clients do; this port speaks RocketMQ's remoting protocol",
        ),
        (b"GET / HTTP/1.1\r\n", "the peer speaks HTTP/1; this port speaks RocketMQ's remoting protocol"),
        (b"POST /v1 HTTP/1.1\r\n", "the peer speaks HTTP/1;"),
        (b"HTTP/1.1 400 Bad Request\r\n", "the peer speaks HTTP/1;"),
        (b"\x16\x03\x01\x02\x00\x01", "the peer speaks TLS;"),
        (b"PROXY TCP4 10.0.0.7 10.0.0.8 1 2\r\n", "the peer begins with a header of the PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n", "the peer begins with a header of the PROXY protocol"),
        (b"\x16\x02\x01\x02\x00\x01", "a frame of 369230082 bytes"),
    ],
)
def test_another_protocol_is_named(first: bytes, expected: str) -> None:
    with pytest.raises(FrameError, match=re.escape(expected)):
        frame.frame_end(memoryview(b"ab" + first), 2, 2 + len(first))


def test_lengths_at_the_limits_are_accepted() -> None:
    assert frame.frame_end(struct.pack(">i", FRAME_BYTES_MAX), 0, 4) is None
    assert frame.frame_end(struct.pack(">ii", 4, 0), 0, 8) == 8


@pytest.mark.parametrize("header_bytes", [1, 5, (1 << 24) - 1])
def test_a_header_longer_than_its_frame_is_rejected(header_bytes: int) -> None:
    raw = struct.pack(">ii", 4, header_bytes)
    with pytest.raises(FrameError, match="a header of"):
        frame.decode(raw, 0, len(raw))


def test_a_header_may_not_reach_into_the_next_frame() -> None:
    raw = struct.pack(">ii", 4, 20) + frame.encode(Command(code=1))
    with pytest.raises(FrameError, match="a header of 20 bytes in a frame of 4"):
        frame.decode(raw, 0, 8)


@pytest.mark.parametrize("kind", range(2, 256))
def test_an_unknown_serialize_type_is_rejected(kind: int) -> None:
    raw = raw_frame(kind, b"{}")
    with pytest.raises(FrameError, match=f"serialize type {kind};"):
        frame.decode(raw, 0, len(raw))


@pytest.mark.parametrize(
    ("flag", "is_response", "is_oneway"), [(0, False, False), (1, True, False), (2, False, True), (3, True, True)]
)
def test_flags_mark_responses_and_oneway_requests(flag: int, is_response: bool, is_oneway: bool) -> None:
    command = decode_whole(json_frame({"code": 1, "flag": flag}))
    assert (command.is_response, command.is_oneway) == (is_response, is_oneway)


class TestJson:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("x", "x"),
            ("", ""),
            (0, "0"),
            (-5, "-5"),
            (1_800_000_000_250, "1800000000250"),
            (True, "true"),
            (False, "false"),
            (1.5, "1.5"),
        ],
    )
    def test_ext_values_become_texts(self, value: Any, text: str) -> None:
        assert decode_whole(json_frame({"code": 1, "extFields": {"k": value}})).ext == {"k": text}

    def test_a_null_in_ext_is_left_out(self) -> None:
        assert decode_whole(json_frame({"code": 1, "extFields": {"a": None, "b": "x"}})).ext == {"b": "x"}

    def test_null_fields_have_their_defaults(self) -> None:
        command = decode_whole(json_frame({"code": 1, "extFields": None, "remark": None, "language": None}))
        assert command == Command(code=1, ext={}, remark=None, language="OTHER", version=0)

    def test_the_last_value_of_a_repeated_key_counts(self) -> None:
        raw = json_frame('{"code":1,"code":2,"extFields":{"a":"x","a":"y"},"opaque":3,"opaque":4}')
        command = decode_whole(raw)
        assert (command.code, command.opaque, command.ext) == (2, 4, {"a": "y"})

    def test_order_and_space_do_not_matter(self) -> None:
        command = decode_whole(json_frame(' { "opaque" : 9 , "version":1,"code" :\t10\n} '))
        assert (command.code, command.opaque, command.version) == (10, 9, 1)

    def test_missing_fields_are_zero(self) -> None:
        assert decode_whole(json_frame("{}")) == Command(code=0, language="OTHER", version=0)

    def test_numbers_may_come_as_texts_and_texts_stay_texts(self) -> None:
        ext = {"a": "null", "b": "true", "c": "1", "d": "1.0", "e": ""}
        command = decode_whole(json_frame({"code": "10", "opaque": "-3", "flag": "2", "extFields": ext}))
        assert (command.code, command.opaque, command.is_oneway, command.ext) == (10, -3, True, ext)

    def test_unknown_keys_are_ignored(self) -> None:
        assert decode_whole(json_frame({"code": 1, "hashCode": 5, "x": {"y": [1]}})).code == 1

    def test_escapes_are_decoded(self) -> None:
        raw = json_frame(r'{"code":1,"extFields":{"i":"KEYS\u0001k\u0002","u":"\u00fc\ud83d\ude00\/"}}')
        assert decode_whole(raw).ext == {"i": "KEYS\x01k\x02", "u": "ü\U0001f600/"}

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "null",
            "[]",
            "1",
            '{"code":"ten"}',
            '{"code":true}',
            '{"code":1.5}',
            '{"code":null}',
            '{"code":1,"extFields":[]}',
            '{"code":1,"extFields":{"a":{}}}',
            '{"code":1,"extFields":{"a":[1]}}',
            '{"code":1,}',
            '{"code":1} x',
            "{'code':1}",
            '{"code":1,"remark":"\\ud800"}',
        ],
    )
    def test_an_invalid_json_header_is_rejected(self, text: str) -> None:
        with pytest.raises(FrameError, match="JSON header"):
            decode_whole(json_frame(text))

    def test_a_header_that_nests_too_deep_is_rejected(self) -> None:
        with pytest.raises(FrameError, match="JSON header"):
            decode_whole(json_frame('{"x":' + "[" * 100_000))

    def test_a_header_with_invalid_utf8_is_rejected(self) -> None:
        with pytest.raises(FrameError, match="JSON header"):
            decode_whole(raw_frame(0, b'{"code":1,"remark":"\xff"}'))

    def test_answers_have_the_fields_that_every_client_reads(self) -> None:
        raw = frame.encode(Command(code=0, opaque=5, flag=1, ext={"a": "1"}))
        header = json.loads(raw[8:])
        assert header == {
            "code": 0,
            "extFields": {"a": "1"},
            "flag": 1,
            "language": "PYTHON",
            "opaque": 5,
            "serializeTypeCurrentRPC": "JSON",
            "version": 479,
        }
        assert raw[4] == 0  # ali-ons reads the header word as a number, so the type byte must be 0

    def test_ext_is_never_null(self) -> None:
        assert json.loads(frame.encode(Command(code=0))[8:])["extFields"] == {}  # the Java client fails on null


class TestBinary:
    FIXED = struct.Struct(">hbhii")

    def header(self, *, language: int = 0, remark: bytes = b"", pairs: bytes = b"") -> bytes:
        fixed = self.FIXED.pack(310, language, 479, 5, 0)
        return fixed + struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(pairs)) + pairs

    @pytest.mark.parametrize(("code", "name"), list(enumerate(frame.LANGUAGES)))
    def test_languages_are_decoded(self, code: int, name: str) -> None:
        assert decode_whole(raw_frame(1, self.header(language=code))).language == name

    @pytest.mark.parametrize("code", [-1, 14, 127])
    def test_an_unknown_language_is_decoded_as_other(self, code: int) -> None:
        assert decode_whole(raw_frame(1, self.header(language=code))).language == "OTHER"

    def test_an_empty_remark_is_none(self) -> None:
        assert decode_whole(raw_frame(1, self.header())).remark is None
        assert decode_whole(raw_frame(1, self.header(remark=b"r"))).remark == "r"

    def test_the_last_value_of_a_repeated_key_counts(self) -> None:
        pairs = b"\0\x01a\0\0\0\x01x" + b"\0\x01a\0\0\0\x01y"
        assert decode_whole(raw_frame(1, self.header(pairs=pairs))).ext == {"a": "y"}

    def test_a_header_cut_at_any_byte_is_rejected(self) -> None:
        whole = self.header(remark=b"remark", pairs=b"\0\x01k\0\0\0\x05value")
        assert decode_whole(raw_frame(1, whole)).ext == {"k": "value"}
        for cut in range(len(whole)):
            with pytest.raises(FrameError):
                decode_whole(raw_frame(1, whole[:cut]))

    @pytest.mark.parametrize("size", [-1, -(1 << 31), 100, (1 << 31) - 1])
    @pytest.mark.parametrize("at", [13, 17], ids=["remark", "ext"])
    def test_a_wrong_size_is_rejected(self, at: int, size: int) -> None:
        header = bytearray(self.header())
        header[at : at + 4] = struct.pack(">i", size)
        with pytest.raises(FrameError):
            decode_whole(raw_frame(1, bytes(header), b"a body it must not reach into" * 10))

    @pytest.mark.parametrize(
        "pairs",
        [
            b"\0",
            b"\0\x05k",
            b"\xff\xff",
            b"\0\x01k",
            b"\0\x01k\0\0\0\x09v",
            b"\0\x01k\xff\xff\xff\xff",
            b"\0\x01\xff\0\0\0\x01v",
            b"\0\x01k\0\0\0\x01\xff",
        ],
    )
    def test_invalid_pairs_are_rejected(self, pairs: bytes) -> None:
        with pytest.raises(FrameError):
            decode_whole(raw_frame(1, self.header(pairs=pairs)))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    Command,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    flag=st.integers(0, 3),
    ext=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | texts.filter(bool),
    language=st.sampled_from(frame.LANGUAGES),
    version=st.integers(-(1 << 15), (1 << 15) - 1),
)


@settings(max_examples=100, deadline=None)
@given(commands, st.booleans())
def test_any_command_decodes_as_it_was_encoded(command: Command, binary: bool) -> None:
    assert decode_whole(encoded(command, binary)) == command


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_any_bytes_are_decoded_or_rejected(header: bytes, kind: int) -> None:
    raw = raw_frame(kind, header)
    with contextlib.suppress(FrameError):
        decode_whole(raw)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(COMMANDS), st.booleans(), st.data())
def test_a_changed_byte_is_decoded_or_rejected(command: Command, binary: bool, data: st.DataObject) -> None:
    raw = bytearray(encoded(command, binary))
    raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        frame.decode(raw, 0, len(raw))
