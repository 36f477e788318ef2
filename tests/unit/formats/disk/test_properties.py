"""Property blocks, by Apache's rules (RocketMQ: MessageDecoder.string2messageProperties)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmq.formats.disk import properties as props


def apache_parse(text: str) -> dict[str, str]:
    """Parse as the Java code of 5.3.3 does, line by line."""
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        end = text.find("\x02", index)
        if end < 0:
            end = len(text)
        if end - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < end - 1:
                found[text[index:separator]] = text[separator + 1 : end]
        index = end + 1
    return found


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),  # the last \x02 may be missing
        ("a\x01b\x02c\x01d\x02", {"a": "b", "c": "d"}),
        ("junk", {}),
        ("junk\x02a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02junk", {"a": "b"}),
        ("\x01b\x02", {}),  # no name
        ("a\x01\x02", {}),  # no value: so TIMER_DELAY_SEC without one is a plain message
        ("\x01\x02", {}),
        ("\x02\x02\x02", {}),
        ("\x01\x01\x01", {}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("\x01a\x01b\x02", {}),
        ("a\x01\x01\x02", {"a": "\x01"}),
        (" \x01 \x02", {" ": " "}),
    ],
)
def test_a_block_is_parsed_as_by_apache(text: str, pairs: dict[str, str]) -> None:
    assert props.parse(text) == pairs == apache_parse(text)


def test_the_last_value_of_a_repeated_name_counts_and_comes_last() -> None:
    assert list(props.parse("a\x01x\x02b\x01y\x02a\x01z\x02").items()) == [("b", "y"), ("a", "z")]
    assert list(props.parse("a\x01x\x02b\x01y\x02a\x01\x02").items()) == [("a", "x"), ("b", "y")]


@given(st.text(st.sampled_from("ab\x01\x02"), max_size=30))
def test_any_block_is_parsed_as_by_apache(text: str) -> None:
    assert props.parse(text) == apache_parse(text)


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1, max_size=8)


@given(st.dictionaries(names, values, max_size=6))
def test_encoded_properties_are_parsed_back(pairs: dict[str, str]) -> None:
    raw = props.encode(pairs)
    assert list(props.parse(raw.decode()).items()) == list(pairs.items())
    assert raw == b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs.items())


@given(st.text("ab\x01\x02", max_size=24))
def test_a_lookup_in_the_stored_form_finds_the_parsed_value(text: str) -> None:
    stored, parsed = props.StoredProperties(text), props.parse(text)
    for name in ("a", "b", "ab", "aa", "ba", "aab"):
        assert stored.get(name) == parsed.get(name)


def test_half_a_surrogate_pair_is_encoded_as_in_java() -> None:
    assert props.encode({"a": "\ud800"}) == b"a\x01?\x02"


def test_the_timer_properties_have_their_order_of_precedence() -> None:
    assert props.TIMER_REQUESTS == ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
    assert props.OWN == ("__WMQ_DUE", "__WMQ_ORIGIN")
