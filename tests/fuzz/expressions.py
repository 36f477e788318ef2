"""SQL92 expressions, and their evaluation on messages.

Rules: a text that is no expression raises ExpressionError. A message whose properties do not compare raises
EvaluationError. Neither takes long, even for deeply nested texts. Two parses of one text evaluate to the same.
"""

from __future__ import annotations

import contextlib

from wheelmq.filter import grammar
from wheelmq.filter.expression import ExpressionError
from wheelmq.filter.values import EvaluationError

TOKENS = (
    b" AND ", b" OR ", b" NOT ", b" BETWEEN ", b" IN (", b"TRUE", b"FALSE", b"NULL", b" IS ", b" CONTAINS ",
    b" STARTSWITH ",
    b" ENDSWITH ", b"<>", b">=", b"<=", b"=", b"(", b")", b"'", b"''", b"/*", b"*/", b"--", b"\n",
    b"9223372036854775808", b"1e999",
    b"4.9E-324", b"1L", b"a", b"-", b"+", b",", b"\xef\xbc\x91", b".5", b"0x1p3",
)  # fmt: skip

MESSAGES: tuple[dict[str, str], ...] = (
    {},
    {"a": "1", "b": "text", "c": "2.5", "TAGS": "TagA"},
    {"a": "\uff11\uff12", "b": "", "c": "NaN"},
    {"a": "9" * 5000, "b": "0x1p99999", "c": "1e99999999999"},
    {"a": "-", "b": "TRUE", "c": "\ud800"},
)


def check(data: bytes) -> None:
    """Parse the text and evaluate it on each message."""
    text = data.decode("utf-8", "replace")
    try:
        expression = grammar.parse(text)
    except ExpressionError as error:
        assert str(error)
        return
    grammar._outcomes.clear()
    again = grammar.parse(text)
    for message in MESSAGES:
        said = []
        for one in (expression, again):
            outcome: bool | None = None
            with contextlib.suppress(EvaluationError):
                outcome = one.matches(message)
            said.append(outcome)
        assert said[0] is said[1]
