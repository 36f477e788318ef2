"""Texts are read as Java reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.growth import growth
from wheelmq.formats.java import _cached_hash, java_boolean, java_double, java_hash, java_long, java_trim, tag_code


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
def test_hashes_are_those_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text(max_size=20))
def test_hashes_follow_their_definition(text: str) -> None:
    code = 0
    for character in text:
        point = ord(character)
        units = [point] if point < 0x10000 else [0xD800 + (point - 0x10000 >> 10), 0xDC00 + (point - 0x10000 & 0x3FF)]
        for unit in units:
            code = (31 * code + unit + (1 << 31)) % (1 << 32) - (1 << 31)
    assert java_hash(text) == code


def test_hashes_of_long_texts_are_not_cached() -> None:
    """Clients choose these texts: tags of 32 KB in messages, of megabytes in subscriptions."""
    kept = _cached_hash.cache_info().currsize
    assert java_hash("x" * 1000) == java_hash("x" * 1000) != java_hash("y" * 1000)
    assert _cached_hash.cache_info().currsize == kept


def test_the_tag_code_of_no_tag_is_zero() -> None:
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
def test_longs_are_parsed_as_in_java(text: str, value: int | None) -> None:
    assert java_long(text) == value


@given(st.integers(-(1 << 65), 1 << 65))
def test_a_long_has_exactly_64_bits(value: int) -> None:
    expected = value if -(1 << 63) <= value < 1 << 63 else None
    assert java_long(str(value)) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False), (" true", False), (None, False)],
)
def test_booleans_are_parsed_as_in_java(text: str | None, value: bool) -> None:
    assert java_boolean(text) is value


@pytest.mark.parametrize("zeros", [0, 5000])
def test_a_long_may_have_leading_zeros(zeros: int) -> None:
    assert java_long("-" + "0" * zeros + "42") == -42
    assert java_long("9" * (zeros + 20)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        (" \t1.5\x00", 1.5),
        ("-.5e-1D", -0.05),
        ("5.f", 5.0),
        ("1e99999999999", math.inf),
        ("-Infinity", -math.inf),
        ("0x1.8p1", 3.0),
        ("-0X.8P-1d", -0.25),
        ("-0x1p99999", -math.inf),
        ("0x1p-99999", 0.0),
        ("", None),
        ("\xa05", None),
        ("1_0", None),
        ("٥", None),
        ("0x10", None),
        ("inf", None),
        ("nan", None),
        ("5L", None),
    ],
)
def test_doubles_are_parsed_as_in_java(text: str, value: float | None) -> None:
    assert java_double(text) == value


def test_a_double_may_be_nan() -> None:
    assert math.isnan(java_double("+NaN") or 0)


def test_the_time_of_a_long_text_that_is_no_double_is_linear() -> None:
    """The broker's loop parses properties of any client."""
    short, long = "1" * 4000 + "x", "1" * 32_000 + "x"
    assert java_double(long) is None
    assert growth(lambda: java_double(short), lambda: java_double(long)) < 24


def test_trim_takes_spaces_and_control_characters() -> None:
    assert java_trim("\x00 \t a b\xa0\n") == "a b\xa0"
