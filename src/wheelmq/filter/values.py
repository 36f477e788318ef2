"""The values of expressions and their comparison (RocketMQ: ComparisonExpression).

A property is a text or absent. A literal is a text, a number or a Boolean. Java has three kinds of numbers, and so does
a text that is compared with a number: `int` is an Integer of 32 bits, `Long` a Long of 64 bits, `float` a Double.
"""

from __future__ import annotations

from wheelmq.formats.java import java_boolean, java_double, java_int, java_long


class Long(int):
    """An integer that needs more than 32 bits."""


Value = str | bool | int | float | None

UNLIKE = -1
"""Result for two values of kinds that cannot be compared: the left one counts as less."""


class EvaluationError(ValueError):
    """A property has no value of the kind that the expression compares it with. The message does not match."""


def compare(left: Value, right: Value) -> int:
    """Return a number less than, equal to or greater than 0, as `left` is to `right`. Neither may be None.

    A text is converted to the kind of the other operand, a number or a Boolean. Raises EvaluationError if the text has
    no such value, and for a Boolean to the left of a text.
    """
    if isinstance(left, str):
        return _sign(left, right) if isinstance(right, str) else compare(_read(left, right), right)
    if isinstance(right, str):
        if isinstance(left, bool):
            raise EvaluationError(f"{left} is to the left of the text {right!r}: put it to the right")
        return compare(left, _read(right, left))
    if isinstance(left, bool) or isinstance(right, bool):
        return _sign(left, right) if isinstance(left, bool) and isinstance(right, bool) else UNLIKE
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(_double(left), _double(right))
    return _sign(left, right)


def negate(value: Value) -> Value:
    if isinstance(value, bool | str) or value is None:
        return None
    return Long(-value) if isinstance(value, Long) else -value


def to_double(text: str) -> float:
    value = java_double(text)
    if value is None:
        raise EvaluationError(f"{text!r} is not a number")
    return value


def _read(text: str, like: Value) -> bool | int | float:
    """Return the text as a value of the kind of `like`. Raises EvaluationError."""
    if isinstance(like, bool):
        return java_boolean(text)
    if isinstance(like, float):
        return to_double(text)
    value = java_long(text) if isinstance(like, Long) else java_int(text)
    if value is None:
        raise EvaluationError(f"{text!r} is not a whole number of {64 if isinstance(like, Long) else 32} bits")
    return Long(value) if isinstance(like, Long) else value


def _double(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _compare_doubles(left: float, right: float) -> int:
    """Compare as Double.compareTo: NaN equals itself and is greater than all else, and 0.0 is greater than -0.0."""
    if left != left or right != right:
        return (left != left) - (right != right)
    if left == right == 0:
        return _negative_zero(right) - _negative_zero(left)
    return _sign(left, right)


def _negative_zero(value: float) -> bool:
    return str(value) == "-0.0"


def _sign(left: Value, right: Value) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]
