"""Record the results of Apache RocketMQ's filters: `python -m compat.golden.filters`. Needs a JDK and Maven.

It writes `tests/golden/filters.jsonl`: the sets of properties, then one line per expression (FilterTable.java). The
expressions are those below, and as many random ones of the same words. Some of these have a word too many or too few.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from compat.apache.apache import filter_table
from compat.apache.maven import java_and_maven_found

PATH: Final = Path(__file__).parents[2] / "tests" / "golden" / "filters.jsonl"
SEED: Final = 92
BY_CHANCE: Final = 700
BROKEN: Final = 500

NUMBERS: Final = (
    "5", "-3", "0", "-0", "007", "+5", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "1.5", "5.0", "-0.0", "0.0", "1e3", "1E400", "1e-400", ".5", "5.", "5L", "5d", "5f", "1.5D", "NaN", "Infinity",
    "-Infinity", "0x1p3", "0x10", " 5", "5 ", "\t5\n", "1_000", "٥", "", "five", "+", "-", "--5", "1.2.3", "4.9E-324",
    "1e99999999999",
)  # fmt: skip
"""Texts that may parse as numbers."""

TEXTS: Final = (
    "abc", "true", "TRUE", "tRuE", "false", "yes", "it's", "a,b", "ABC", "bc", "naïve", "語", "𝄞", " ", "null",
)  # fmt: skip

PROPERTIES: Final[tuple[dict[str, str], ...]] = (
    {},
    *({"a": text} for text in NUMBERS if text),
    *({"a": text} for text in TEXTS),
    {"a": "5", "b": "7"},
    {"a": "5", "b": "5"},
    {"a": "5", "b": "five"},
    {"b": "5"},
    {"a": "abc", "b": "abc", "c": "x"},
    {"_a": "1", "$b": "2", "TAGS": "t", "not": "x", "A": "upper"},
)

EXPRESSIONS: Final = (
    # words, spaces, comments
    "a=5", " a\t=\n5 ", "a = 5 -- told", "a = 5 -- told\n", "-- told\na = 5", "a /* told */ = 5", "a = /* * ** */ 5",
    "a = 5 /* open", "/**/a = 5", "a = 5 --", "a = --5", "a = -- 5", "a = - -5", "a = +5", "a = + + 5", "a = -+5",
    "a=5 And b=7", "A = 'upper'", "TRUE", "true", "FALSE", "NULL", "null", "a", "NOT a", "not NOT a", "NOT TRUE",
    "NOT NULL", "not = 'x'", "(a)", "((a))", "()", "", " ", "-- nothing", "a b", "a = 5 b", "a = 5 b #", "a = 5 #",
    "a = 5)", "a = 5, 6", "(a = 5", "a = 5 ORDER BY a", "a = 5 LIMIT 1", "a = 5;", "a == 5", "a != 5", "a <> 5",
    "a < > 5", "a => 5", "a =< 5", "a >= 5", "a > = 5", '"a" = 5', "[a] = 5", "a.b = 5", "a-b = 5", "_a = 1",
    "$b = 2", "5a = 1", "TAGS = 't'", "語 = 5", "a = 語", "a + 1 = 5", "a * 2 = 10", "a LIKE 'a%'", "a IS TRUE",
    "a IS 5", "IS NULL", "a IS", "a IS NOT", "a NOT", "a NOT NULL", "a NOT = 5", "a IS NOT NULL NULL", "AND", "a AND",
    "OR a", "a OR OR a",
    # literals
    "a = 0", "a = 00", "a = 007", "a = 0L", "a = 5L", "a = 5l", "a = 5LL", "a = 2147483647", "a = 2147483648",
    "a = -2147483648", "a = 9223372036854775807", "a = 9223372036854775808", "a = -9223372036854775808",
    "a = 99999999999999999999", "a = 5.", "a = .5", "a = .", "a = 5.0", "a = 5e0", "a = 5E+0", "a = 5e", "a = 1.5E3",
    "a = 1e3", "a = 0.0", "a = 0e0", "a = -0.0", "a = 4.9E-324", "a = 1e-400", "a = 1e308", "a = 1e309", "a = 5.0f",
    "a = 5.5.5", "a = 0x10", "a = 0.1e1", "a = 00.5", "a = 'abc'", "a = 'it''s'", "a = ''", "a = ''''", "a = 'abc",
    "a = abc'", "a = 'a' 'b'", "a = 'line\nbreak'", "a = '語'", "a = '𝄞'", "a = 'naïve'", "a = ' '", "a = '/* */'",
    # equality
    "a = b", "a <> b", "b = a", "a = c", "c = d", "c <> d", "5 = 5", "5 = 6", "5 = 5.0", "5 = 5L", "5 = 5000000000",
    "'a' = 'a'", "'5' = 5", "5 = '5'", "'x' = 5", "5 = 'x'", "TRUE = TRUE", "TRUE = FALSE", "a = TRUE", "a = FALSE",
    "a <> TRUE", "TRUE = a", "FALSE = a", "TRUE = 1", "1 = TRUE", "'true' = TRUE", "TRUE = 'true'", "a = NULL",
    "NULL = a", "NULL = NULL", "a <> NULL", "a = 5 = TRUE", "a = 5 = b", "(a = 5) = (b = 7)", "(a = 5) = 5",
    "5 = (a = 5)", "(a = 5) = 'true'", "'true' = (a = 5)", "(a = 5) <> TRUE", "a = -5", "a = -b", "-a = -b",
    "a = (-3)", "-a = 5", "a IS NULL", "a IS NOT NULL", "NOT a IS NULL", "5 IS NULL", "NULL IS NULL",
    "NULL IS NOT NULL", "a = 5 IS NULL", "(a > 5) IS NULL", "a IS NULL IS NULL", "a IS NULL = TRUE", "-a IS NULL",
    "'x' IS NOT NULL", "a IS NULL AND b IS NULL",
    # order
    "a > 5", "a >= 5", "a < 5", "a <= 5", "5 > a", "5 <= a", "a > 2147483648", "a > 1.5", "a < 1.5", "a > -3",
    "a < -3.5", "a > b", "a >= b", "a < b", "a <= b", "b > a", "a > c", "a > 'abc'", "'abc' > a", "a > '5'",
    "a > TRUE", "TRUE > a", "a > NULL", "a > (b > 5)", "a > -b", "-a > 5", "5 > 3", "3 > 5", "5 > 3.5", "5L > 3",
    "-5 < 3", "a > 5 > 3", "a > 5 = TRUE", "a > -(-3)", "a >= 5.0", "a >= 4.9E-324", "a > -4.9E-324", "a < 1e308",
    "a > -1e308", "NOT a > 5", "a > -(b > 1)", "- (a > 5) > 3", "a < 5 b", "a < 5 NOT",
    # between
    "a BETWEEN 1 AND 10", "a NOT BETWEEN 1 AND 10", "a BETWEEN 10 AND 1", "a NOT BETWEEN 10 AND 1",
    "a BETWEEN 5 AND 5", "a BETWEEN -10 AND -1", "a BETWEEN -1 AND -10", "a BETWEEN 1 AND 5.5",
    "a BETWEEN 1.5 AND 5000000000", "a BETWEEN 'a' AND 'c'", "a BETWEEN '1' AND 5", "a BETWEEN 1 AND '5'",
    "a BETWEEN NULL AND 5", "a BETWEEN 1 AND NULL", "a BETWEEN TRUE AND FALSE", "a BETWEEN b AND 10",
    "a BETWEEN 1 AND b", "a BETWEEN b AND b", "a BETWEEN 1", "a BETWEEN", "a BETWEEN 1 AND", "a BETWEEN 1 OR 5",
    "5 BETWEEN 1 AND 10", "5 BETWEEN a AND 10", "'5' BETWEEN 1 AND 10", "a BETWEEN 1 AND 10 AND b = 7",
    "a BETWEEN 1 AND 10 BETWEEN 1 AND 2", "NOT a BETWEEN 1 AND 10", "a NOT BETWEEN b AND 9", "a BETWEEN (1) AND (10)",
    "a BETWEEN a AND a", "a BETWEEN 1 AND 2147483648", "NULL BETWEEN 1 AND 2",
    # sets and texts
    "a IN ('abc')", "a IN ('abc', 'true', '5')", "a NOT IN ('abc', 'true')", "a IN ()", "a IN ('abc',)", "a IN 'abc'",
    "a IN (5)", "a IN ('5', 5)", "a IN (b)", "a NOT IN ('a','b','c','d','e','abc')",
    "a IN ('a','b','c','d','e','abc')", "'abc' IN ('abc')", "5 IN ('5')", "(a) IN ('abc')", "(a = 5) IN ('abc')",
    "-a IN ('5')", "NOT a IN ('abc')", "a IN ('it''s')", "a IN ('abc') = TRUE", "a NOT IN ('abc') AND b = 7",
    "a IN ('abc'", "a IN", "a NOT IN", "c IN ('x') OR a NOT IN ('abc')", "a IN ('')", "a NOT IN ('')",
    "TRUE IN ('true')", "a CONTAINS 'b'", "a NOT CONTAINS 'b'", "a CONTAINS ''", "a NOT CONTAINS ''", "a CONTAINS 5",
    "a CONTAINS b", "a CONTAINS '5'", "5 CONTAINS '5'", "'abc' CONTAINS 'b'", "'abc' NOT CONTAINS 'b'",
    "(a = 5) CONTAINS 'b'", "-5 CONTAINS '5'", "TRUE CONTAINS 'true'", "NULL CONTAINS 'x'", "NULL NOT CONTAINS 'x'",
    "a contains 'ABC'", "a STARTSWITH 'a'", "a NOT STARTSWITH 'a'", "a STARTSWITH ''", "a NOT STARTSWITH ''",
    "a StartsWith '5'", "'abc' STARTSWITH 'ab'", "a STARTSWITH 'abcd'", "a ENDSWITH 'c'", "a NOT ENDSWITH 'c'",
    "a ENDSWITH ''", "a NOT ENDSWITH ''", "'abc' ENDSWITH 'bc'", "a ENDSWITH '5'", "NOT a CONTAINS 'b'",
    "NOT (a CONTAINS 'b')", "a CONTAINS 'b' CONTAINS 'x'", "a CONTAINS 'b' = TRUE", "a CONTAINS ''''",
    "a CONTAINS '語'", "a CONTAINS", "a NOT CONTAINS", "a STARTSWITH", "a CONTAINS ('b')",
    # three values
    "a AND b", "a OR b", "a = 5 AND b = 7", "a = 5 OR b = 7", "NOT (a = 5)", "NOT (a = 5 AND b = 7)",
    "a = 5 AND TRUE", "a = 5 OR TRUE", "TRUE OR a > 5", "FALSE AND a > 5", "a > 5 OR TRUE", "a > 5 AND FALSE",
    "a = 5 AND NULL", "a = 5 OR NULL", "NULL AND a > 5", "NULL OR a > 5", "NOT a = 5", "NOT (NOT (a = 5))",
    "a = 5 OR b = 7 AND c = 'x'", "(a = 5 OR b = 7) AND c = 'x'", "a AND TRUE", "a OR TRUE", "5 AND TRUE",
    "TRUE AND 5", "'x' OR TRUE", "-5 OR TRUE", "-a OR TRUE", "NOT 5", "NOT 'x'", "NOT -a", "5", "'x'", "-a", "-5",
    "(5)", "TRUE AND TRUE AND a = 5", "TRUE OR (a > 5 AND b > 5)", "a IS NULL OR a > 5", "a IS NOT NULL AND a > 5",
    "FALSE OR a > 5 OR b = 7",
)  # fmt: skip

FILTERS: Final = (
    "G#T",
    "group#topic",
    "",
    "x",
    "0123456789abcde#",
    "0123456789abcdef#",
    "gruppe#thema ÄÖÜ 語 𝄞",
    "g#" + "t" * 300,
)

_WORDS: Final = (
    "a", "b", "c", "5", "-3", "1.5", "5L", "3000000000", "'abc'", "'5'", "''", "TRUE", "FALSE", "NULL", "NOT", "AND",
    "OR", "=", "<>", ">", ">=", "<", "<=", "BETWEEN", "IN", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH", "(", ")", ",",
    "+", "-",
)  # fmt: skip


def by_chance(chance: Random, depth: int = 3) -> list[str]:
    """Return the words of a random expression that usually parses."""
    if depth == 0 or chance.random() < 0.15:
        return _comparison(chance)
    kind = chance.randrange(5)
    inner = by_chance(chance, depth - 1)
    if kind < 2:
        return [*inner, chance.choice(("AND", "OR")), *by_chance(chance, depth - 1)]
    return [*(("NOT",) if kind == 2 else ()), "(", *inner, ")"]


def _comparison(chance: Random) -> list[str]:
    left, right, third = (_operand(chance) for _ in range(3))
    negation = ["NOT"] if chance.random() < 0.3 else []
    kind = chance.randrange(7)
    if kind < 3:
        return [left, chance.choice(("=", "<>", ">", ">=", "<", "<=")), right]
    if kind == 3:
        return [left, "IS", *negation, "NULL"]
    if kind == 4:
        return [left, *negation, "BETWEEN", right, "AND", third]
    if kind == 5:
        return [left, *negation, "IN", "(", "'abc'", ",", "'5'", ")"]
    return [
        left,
        *negation,
        chance.choice(("CONTAINS", "STARTSWITH", "ENDSWITH")),
        chance.choice(("'5'", "'abc'", "'b'")),
    ]


def _operand(chance: Random) -> str:
    names, literals = (
        ("a", "b", "a", "b", "c"),
        ("5", "7", "-3", "1.5", "3000000000", "'abc'", "'5'", "TRUE", "NULL", "-b"),
    )
    return chance.choice(names if chance.random() < 0.6 else literals)


def broken(words: list[str], chance: Random) -> list[str]:
    """Return the words with one removed, one added, or two swapped."""
    at = chance.randrange(len(words))
    kind = chance.randrange(3)
    if kind == 0:
        return words[:at] + words[at + 1 :]
    if kind == 1:
        return [*words[:at], chance.choice(_WORDS), *words[at:]]
    other = chance.randrange(len(words))
    swapped = list(words)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    return swapped


def expressions() -> list[str]:
    """Return all expressions, each once."""
    chance = Random(SEED)
    made = [by_chance(chance) for _ in range(BY_CHANCE)]
    made += [broken(by_chance(chance, 1), chance) for _ in range(BROKEN)]
    return list(dict.fromkeys([*EXPRESSIONS, *(" ".join(words) for words in made)]))


def main() -> int:
    if reason := java_and_maven_found():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    asked = {"properties": PROPERTIES, "expressions": expressions(), "filters": FILTERS}
    with tempfile.TemporaryDirectory(prefix="filters-") as folder:
        told = filter_table(msgspec.json.encode(asked), home=Path(folder))
    PATH.write_text(msgspec.json.encode({"properties": PROPERTIES}).decode() + "\n" + told, encoding="utf-8")
    print(f"{PATH}: {PATH.stat().st_size} bytes, {len(told.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
