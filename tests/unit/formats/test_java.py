"""What Java makes of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.formats.java import java_boolean, java_hash, java_long, tag_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),  # seen in a queue unit that Apache RocketMQ wrote
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -2147483648),
        ("hello world", 1794106052),
        ("ü", 252),
        ("标签", 857175),
        ("\U0001f600", 1772899),  # two UTF-16 units: d83d de00
        ("\ud83d", 0xD83D),  # half of a pair is a unit as well
        ("\ufffd", 0xFFFD),
    ],
)
def test_hash_is_javas(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text(max_size=20))
def test_hash_follows_its_definition(text: str) -> None:
    code = 0
    for character in text:
        point = ord(character)
        units = [point] if point < 0x10000 else [0xD800 + (point - 0x10000 >> 10), 0xDC00 + (point - 0x10000 & 0x3FF)]
        for unit in units:
            code = (31 * code + unit + (1 << 31)) % (1 << 32) - (1 << 31)
    assert java_hash(text) == code


def test_tag_code_of_no_tag_is_zero() -> None:
    assert tag_code(None) == tag_code("") == 0
    assert tag_code("TagA") == 2598919


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+1", 1),
        ("-1", -1),
        ("007", 7),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("12345678901234567890", None),
        ("\uff11\uff12", 12),  # full-width digits are digits to Java
        ("\u0661", 1),  # and so are Arabic ones
        ("", None),
        ("+", None),
        ("-", None),
        ("+-1", None),
        (" 1", None),
        ("1 ", None),
        ("1\n", None),
        ("1_000", None),  # a number to Python
        ("1.5", None),
        ("1e3", None),
        ("0x10", None),
        ("abc", None),
        ("1L", None),
        ("\u00b2", None),  # superscript two is no digit
    ],
)
def test_long_is_javas(text: str, value: int | None) -> None:
    assert java_long(text) == value


@given(st.integers(-(1 << 65), 1 << 65))
def test_long_takes_exactly_64_bits(value: int) -> None:
    expected = value if -(1 << 63) <= value < 1 << 63 else None
    assert java_long(str(value)) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False), (" true", False), (None, False)],
)
def test_boolean_is_javas(text: str | None, value: bool) -> None:
    assert java_boolean(text) is value
