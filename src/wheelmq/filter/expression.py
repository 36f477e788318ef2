"""The parts of an expression and their evaluation for a message (RocketMQ: filter.expression).

There are three values: True, False, and None for unknown. Most comparisons with an absent property are unknown. A
message matches if the whole expression is True. An invalid operand is rejected when the expression is built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, Protocol

from wheelmq.filter.values import EvaluationError, Value, compare, negate, to_double


class Properties(Protocol):
    def get(self, name: str, /) -> str | None: ...


DEPTH_MAX: Final = 200
"""Maximum depth of nested operands. The evaluation takes one stack frame per level."""


class ExpressionError(ValueError):
    """The text is not a valid expression. The message gives the error."""


class Expression:
    __slots__ = ("depth",)

    def __init__(self, *operands: Expression) -> None:
        self.depth: int = 1 + max((one.depth for one in operands), default=0)
        if self.depth > DEPTH_MAX:
            raise ExpressionError(f"it nests more than {DEPTH_MAX} deep")

    def evaluate(self, properties: Properties) -> Value:
        """Return the value for a message with these properties. Raises EvaluationError."""
        raise NotImplementedError


class Condition(Expression):
    __slots__ = ()

    def evaluate(self, properties: Properties) -> bool | None:
        raise NotImplementedError

    def matches(self, properties: Properties) -> bool:
        """Return whether the condition is True for a message with these properties. Raises EvaluationError."""
        return self.evaluate(properties) is True


class Property(Expression):
    """The text of a property; None if the message does not have the property."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __str__(self) -> str:
        return self.name

    def evaluate(self, properties: Properties) -> Value:
        return properties.get(self.name)


class Constant(Expression):
    """A literal number or text."""

    __slots__ = ("value",)

    def __init__(self, value: str | int | float) -> None:
        super().__init__()
        self.value = value

    def __str__(self) -> str:
        return f"'{self.value}'" if isinstance(self.value, str) else str(self.value)

    def evaluate(self, properties: Properties) -> Value:
        return self.value


class Truth(Condition):
    """TRUE, FALSE, NULL."""

    __slots__ = ("value",)

    def __init__(self, value: bool | None) -> None:
        super().__init__()
        self.value = value

    def __str__(self) -> str:
        return "NULL" if self.value is None else str(self.value).upper()

    def evaluate(self, properties: Properties) -> bool | None:
        return self.value


class Negative(Expression):
    """A negated number; None for any other value, including every property."""

    __slots__ = ("operand",)

    def __init__(self, operand: Expression) -> None:
        super().__init__(operand)
        self.operand = operand

    def evaluate(self, properties: Properties) -> Value:
        return negate(self.operand.evaluate(properties))


class Presence(Condition):
    """A property used as a condition: False if it is present, with any value, and unknown if it is absent."""

    __slots__ = ("operand",)

    def __init__(self, operand: Property) -> None:
        super().__init__(operand)
        self.operand = operand

    def evaluate(self, properties: Properties) -> bool | None:
        return None if self.operand.evaluate(properties) is None else False


def condition(operand: Expression) -> Condition:
    """Return `operand` as a condition. Raises ExpressionError."""
    if isinstance(operand, Condition):
        return operand
    if isinstance(operand, Property):
        return Presence(operand)
    raise ExpressionError(f"{operand if isinstance(operand, Constant) else 'a number'} is neither true nor false")


class Not(Condition):
    """The negation. Unknown stays unknown."""

    __slots__ = ("operand",)

    def __init__(self, operand: Expression) -> None:
        self.operand = condition(operand)
        super().__init__(self.operand)

    def evaluate(self, properties: Properties) -> bool | None:
        value = self.operand.evaluate(properties)
        return None if value is None else not value


class Joined(Condition):
    """Conditions joined by AND or by OR. The first decisive one ends the evaluation."""

    __slots__ = ("decisive", "operands")

    def __init__(self, operands: list[Expression], *, decisive: bool) -> None:
        self.operands = [condition(one) for one in operands]
        self.decisive = decisive
        """The value of one condition that decides the whole: False for AND, True for OR."""
        super().__init__(*self.operands)

    def evaluate(self, properties: Properties) -> bool | None:
        unknown = False
        for operand in self.operands:
            value = operand.evaluate(properties)
            if value is self.decisive:
                return value
            unknown |= value is None
        return None if unknown else not self.decisive


class Equal(Condition):
    """Equality of two values. Two absent values are equal."""

    __slots__ = ("left", "right")

    def __init__(self, left: Expression, right: Expression) -> None:
        super().__init__(left, right)
        self.left = left
        self.right = right

    def evaluate(self, properties: Properties) -> bool | None:
        left = self.left.evaluate(properties)
        right = self.right.evaluate(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        if type(left) is type(right) is str:
            return left == right
        return compare(left, right) == 0


def equal(left: Expression, right: Expression) -> Equal:
    """Return `left = right`. Raises ExpressionError."""
    for operand in (left, right):
        if isinstance(operand, Truth) and operand.value is None:
            raise ExpressionError("a comparison with NULL is not possible: write IS NULL, or IS NOT NULL")
    if isinstance(left, Truth) and isinstance(right, Constant):
        raise ExpressionError(f"{left} cannot be compared with {right}")
    return Equal(left, right)


def is_null(operand: Expression) -> Equal:
    return Equal(operand, Truth(None))


ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Ordered(Condition):
    """An order comparison of two numbers; unknown if one is absent. Two texts are compared as Doubles."""

    __slots__ = ("holds", "left", "right")

    def __init__(self, left: Expression, sign: str, right: Expression) -> None:
        for operand in (left, right):
            if isinstance(operand, Condition) or (isinstance(operand, Constant) and isinstance(operand.value, str)):
                told = operand if isinstance(operand, Constant | Truth) else "a condition"
                raise ExpressionError(f"{told} cannot be compared by {sign}, which is for numbers and properties")
        super().__init__(left, right)
        self.left = left
        self.right = right
        self.holds = ORDERS[sign]

    def evaluate(self, properties: Properties) -> bool | None:
        left = self.left.evaluate(properties)
        if left is None:
            return None
        right = self.right.evaluate(properties)
        if right is None:
            return None
        if type(left) is type(right) is str:
            return self.holds(compare(to_double(left), to_double(right)), 0)
        return self.holds(compare(left, right), 0)


def between(operand: Expression, low: Expression, high: Expression) -> Joined:
    """Return `operand BETWEEN low AND high`. Raises ExpressionError, also for literals in the wrong order."""
    if isinstance(low, Constant) and isinstance(high, Constant) and _is_less(high, low):
        raise ExpressionError(f"BETWEEN {low} AND {high} matches nothing: write the smaller number first")
    return Joined([Ordered(operand, ">=", low), Ordered(operand, "<=", high)], decisive=False)


def _is_less(left: Constant, right: Constant) -> bool:
    try:
        return compare(left.value, right.value) < 0
    except EvaluationError:
        return False  # a text, which the comparison rejects


def not_between(operand: Expression, low: Expression, high: Expression) -> Joined:
    """Return `operand NOT BETWEEN low AND high`. Raises ExpressionError."""
    return Joined([Ordered(operand, "<", low), Ordered(operand, ">", high)], decisive=True)


class Among(Condition):
    """`IN` or `NOT IN`: whether a property is one of some texts, or none of them; unknown if it is absent."""

    __slots__ = ("operand", "texts", "wanted")

    def __init__(self, operand: Expression, texts: list[str], *, wanted: bool) -> None:
        if not isinstance(operand, Property):
            raise ExpressionError("IN needs the name of a property to its left")
        super().__init__(operand)
        self.operand = operand
        self.texts = frozenset(texts)
        self.wanted = wanted

    def evaluate(self, properties: Properties) -> bool | None:
        value = self.operand.evaluate(properties)
        return None if value is None else (value in self.texts) is self.wanted


TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Like(Condition):
    """Whether a text contains another, or begins or ends with it, or its negation with NOT.

    False for an absent value, for a value that is not a text, and if the other text is empty, even with NOT.
    """

    __slots__ = ("operand", "test", "text", "wanted")

    def __init__(self, operand: Expression, test: str, text: str, *, wanted: bool) -> None:
        super().__init__(operand)
        self.operand = operand
        self.test = TEXT_TESTS[test]
        self.text = text
        self.wanted = wanted

    def evaluate(self, properties: Properties) -> bool | None:
        if not self.text:
            return False
        value = self.operand.evaluate(properties)
        return isinstance(value, str) and self.test(value, self.text) is self.wanted
