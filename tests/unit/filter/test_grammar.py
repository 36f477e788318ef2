"""Errors and limits of filter expressions. tests/golden compares the meaning of expressions with Apache."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.growth import growth
from wheelmq.filter.expression import DEPTH_MAX, ExpressionError
from wheelmq.filter.grammar import BRACKETS_MAX, CHARS_MAX, parse
from wheelmq.filter.values import EvaluationError, Long, compare


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it ends too early"),
        ("a = ", "it ends too early"),
        ("(a = 5", "it ends too early"),
        ("a # 5", "'#' is not expected at character 3"),
        ("a = 'open", '"\'" is not expected at character 5'),
        ("a IN (5)", "'5' is not expected at character 7"),
        ("a = NULL", "a comparison with NULL is not possible: write IS NULL, or IS NOT NULL"),
        ("TRUE = 5", "TRUE cannot be compared with 5"),
        ("a > 'x'", "'x' cannot be compared by >, which is for numbers and properties"),
        ("a < TRUE", "TRUE cannot be compared by <"),
        ("(a = 5) > 3", "a condition cannot be compared by >"),
        ("5 AND a = 3", "5 is neither true nor false"),
        ("-a", "a number is neither true nor false"),
        ("5 IN ('5')", "IN needs the name of a property to its left"),
        ("a BETWEEN 9 AND 1.5", "BETWEEN 9 AND 1.5 matches nothing"),
        ("a = 9223372036854775808", "9223372036854775808 is greater than 9223372036854775807"),
        ("a = 1e309", "1e309 is not a Double from"),
    ],
)
def test_the_error_of_a_wrong_expression_names_the_reason(text: str, told: str) -> None:
    for _ in range(2):  # parsed once, then read from the cache
        with pytest.raises(ExpressionError) as rejection:
            parse(text)
        assert str(rejection.value).startswith(told)


def test_an_expression_is_parsed_only_once() -> None:
    assert parse("read = 'once'") is parse("read = 'once'")


def test_the_longest_expression_is_parsed_and_a_longer_one_rejected() -> None:
    text = "a = 5" + " OR a = 5" * ((CHARS_MAX - 5) // 9)
    text += " " * (CHARS_MAX - len(text))
    assert parse(text).matches({"a": "5"})
    with pytest.raises(ExpressionError, match=f"at most {CHARS_MAX} characters, this one has {CHARS_MAX + 1}"):
        parse(text + " ")


@pytest.mark.parametrize(("before", "behind"), [("NOT ", "TRUE"), ("-", "5 = 5"), ("TRUE OR (FALSE OR ", "a")])
def test_the_nesting_of_an_expression_is_limited(before: str, behind: str) -> None:
    closed = ")" if "(" in before else ""

    def nested(count: int) -> str:
        return before * count + behind + closed * count

    assert parse(nested(DEPTH_MAX // 2 - 3)).evaluate({}) is not None
    with pytest.raises(ExpressionError, match=f"it nests more than {DEPTH_MAX} deep"):
        parse(nested(DEPTH_MAX + 1))


def test_parentheses_alone_do_not_count_as_nesting() -> None:
    assert parse("(" * BRACKETS_MAX + "a = 5" + ")" * BRACKETS_MAX).matches({"a": "5"})


@pytest.mark.parametrize("piece", ["(", "-", "NOT ", "- -", "--\n"])
def test_the_time_of_a_repetitive_text_is_linear_at_most(piece: str) -> None:
    """The parser stops at the limit, and does not search for a line end from each sign."""

    ends = itertools.count()

    def reject(count: int) -> None:
        with pytest.raises(ExpressionError):
            parse(f"{piece * count} {next(ends)}")  # a new text each time, because the parser keeps outcomes

    count = (CHARS_MAX - 5) // len(piece)
    assert growth(lambda: reject(count // 8), lambda: reject(count)) < 24


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a = 5 -- and so on\n", "5"),
        ("a = '--' -- '\n OR a = '5'", "5"),
        ("a -- = 4\n -- = 3\r\n = 5", "5"),
        ("a = /* -- */ 5", "5"),
        ("a = /* -- \n */ 5 --", "5"),
        ("a = --5", "5"),
        ("a = '\n--'", "\n--"),
        ("a = '-- \n'", "-- \n"),
    ],
)
def test_comments_are_ignored(text: str, value: str) -> None:
    assert parse(text).matches({"a": value}) and not parse(text).matches({"a": "4"})


def test_an_error_shows_only_a_part_of_a_long_text() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("a IN (" + "c" * 10_000 + ")")
    assert len(str(caught.value)) < 400


WORDS = (
    "a", "b", "5", "-", "+", "1.5", "5L", "0", "'x'", "''", "'", "(", ")", ",", "=", "<>", ">", "<=", "--", "\n", "/*",
    "*/", "NOT", "and", "Or", "IS", "NULL", "BETWEEN", "IN", "CONTAINS", "STARTSWITH", "TRUE", "e", ".", "#", "\ud83d",
    "語",
)  # fmt: skip
values = st.text("05.-+eEdLxNaIfinty \ud83d語", max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.sampled_from(("", " ")), values, values)
def test_any_text_is_evaluated_or_rejected(words: list[str], between: str, a: str, b: str) -> None:
    with contextlib.suppress(ExpressionError, EvaluationError):
        assert parse(between.join(words)).evaluate({"a": a, "b": b}) in (True, False, None)


def test_a_text_is_compared_as_the_kind_of_the_other_number() -> None:
    with pytest.raises(EvaluationError, match="'3000000000' is not a whole number of 32 bits"):
        compare("3000000000", 5)
    assert compare("3000000000", Long(5_000_000_000)) < 24
    assert compare("3000000000", 5.0) > 0
    with pytest.raises(EvaluationError, match="'five' is not a number"):
        parse("a > b").matches({"a": "5", "b": "five"})
