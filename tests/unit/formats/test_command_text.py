"""Commands as text for the log."""

from __future__ import annotations

import pytest

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.command_text import FIELD_CHARS_MAX, FIELDS_MAX, HEAD_BYTES, command_text, frame_text
from wheelmq.formats.wire.frame import Command


def test_the_text_has_the_header_and_not_the_body() -> None:
    command = Command(code=310, opaque=7, flag=2, ext={"b": "Orders", "x": ""}, body=b"private", version=479)
    text = command_text(command)
    assert text == "code=310 opaque=7 flag=2 version=479 language=PYTHON fields={b=Orders, x=} body=7 bytes"


@pytest.mark.parametrize("name", ["AccessKey", "Signature", "SecurityToken", "accessKey", "PASSWORD"])
def test_secrets_are_masked(name: str) -> None:
    text = command_text(Command(code=1, ext={name: "s3cret"}))
    assert "s3cret" not in text and f"{name}=***" in text


def test_the_text_is_one_short_line() -> None:
    ext = {f"name{i}\n": "x\n" * 5000 for i in range(1000)}
    text = command_text(Command(code=1, ext=ext, remark="y" * 5000))
    assert len(text) < FIELDS_MAX * 6 * FIELD_CHARS_MAX
    assert text.isprintable() and f"and {1000 - FIELDS_MAX} more" in text


def test_a_frame_is_described_by_its_head() -> None:
    answer = Command(code=0, opaque=9, flag=1, ext={"msgId": "A"}, remark="FOUND", body=bytes(100_000))
    text = frame_text(frame.encode(answer)[:HEAD_BYTES])
    assert text.startswith("code=0 opaque=9 flag=1") and "msgId=A" in text and "remark=FOUND" in text
    assert text.endswith("body=100000 bytes")


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"", "none"),
        (frame.encode(Command(code=0, remark="x" * 1000))[:HEAD_BYTES], "with a long header"),
        (b"\0\0\0\x10\x07\0\0\1x", "serialize type 7"),
    ],
)
def test_an_unreadable_head_is_described(head: bytes, text: str) -> None:
    assert text in frame_text(head)
