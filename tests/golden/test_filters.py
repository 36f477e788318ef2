"""Our filters read expressions and match messages as Apache RocketMQ's own do (compat/golden/filters.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from wheelmq.filter.bloom import BITS, bit_positions
from wheelmq.filter.expression import Condition, ExpressionError, Properties
from wheelmq.filter.grammar import parse
from wheelmq.filter.values import EvaluationError

LINES: list[dict[str, Any]] = [
    msgspec.json.decode(line) for line in (Path(__file__).parent / "filters.jsonl").read_text("utf-8").splitlines()
]
PROPERTIES: list[Properties] = LINES[0]["properties"]
EXPRESSIONS = [line for line in LINES if "expression" in line]
FILTERS = [line for line in LINES if "filter" in line]


def letter(expression: Condition, properties: Properties) -> str:
    try:
        return {True: "T", False: "F", None: "N"}[expression.evaluate(properties)]
    except EvaluationError:
        return "E"


def results(text: str) -> str:
    try:
        expression = parse(text)
    except ExpressionError:
        return ""
    return "".join(letter(expression, properties) for properties in PROPERTIES)


def test_every_expression_evaluates_as_in_apache() -> None:
    wrong = [
        (line["expression"], properties, ours, theirs)
        for line in EXPRESSIONS
        for properties, ours, theirs in zip(
            PROPERTIES, results(line["expression"]) or "-" * 99, line["results"] or "-" * 99, strict=False
        )
        if ours != theirs
    ]
    assert wrong == []


def test_the_table_has_all_results_and_many_invalid_expressions() -> None:
    letters = {letter for line in EXPRESSIONS for letter in line["results"]}
    assert letters == set("TFNE")
    refused = sum(not line["results"] for line in EXPRESSIONS)
    assert min(refused, len(EXPRESSIONS) - refused) > 600


@pytest.mark.parametrize("line", FILTERS, ids=lambda line: line["filter"][:20])
def test_a_filter_sets_the_same_bits_as_in_apache(line: dict[str, Any]) -> None:
    assert line["length"] == BITS
    assert list(bit_positions(line["filter"])) == line["bits"]
