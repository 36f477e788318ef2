"""What an expression is made of, and what it says of a message (RocketMQ: filter.expression).

Three values: True, False, and None for unknown, which is what most comparisons with an absent property give. A message
matches when the whole is True. An operand that makes no sense is refused when the expression is built.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, Protocol

from wheelmq.filter.values import EvaluationError, Value, compare, negate, to_double


class Properties(Protocol):
    """A message's properties."""

    def get(self, name: str, /) -> str | None: ...


DEPTH_MAX: Final = 200
"""Operands within operands: evaluating them takes a frame of the stack each."""


class ExpressionError(ValueError):
    """The text is no expression; the message says what is wrong with it."""


class Expression:
    """A part of an expression: a value for each message."""

    __slots__ = ("depth",)

    def __init__(self, *operands: Expression) -> None:
        self.depth: int = 1 + max((one.depth for one in operands), default=0)
        if self.depth > DEPTH_MAX:
            raise ExpressionError(f"it nests more than {DEPTH_MAX} deep")

    def evaluate(self, properties: Properties) -> Value:
        """The value for a message with these properties. Raises EvaluationError."""
        raise NotImplementedError


class Condition(Expression):
    """A part that is True, False or unknown."""

    __slots__ = ()

    def evaluate(self, properties: Properties) -> bool | None:
        raise NotImplementedError

    def matches(self, properties: Properties) -> bool:
        """Whether it is True for a message with these properties. Raises EvaluationError."""
        return self.evaluate(properties) is True


class Property(Expression):
    """The text of a property, None when the message has none of that name."""

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
    """A number with the other sign; None for what is no number, as a property never is."""

    __slots__ = ("operand",)

    def __init__(self, operand: Expression) -> None:
        super().__init__(operand)
        self.operand = operand

    def evaluate(self, properties: Properties) -> Value:
        return negate(self.operand.evaluate(properties))


class Presence(Condition):
    """A property where a condition is asked for: False when it is there, whatever it says, unknown when it is not."""

    __slots__ = ("operand",)

    def __init__(self, operand: Property) -> None:
        super().__init__(operand)
        self.operand = operand

    def evaluate(self, properties: Properties) -> bool | None:
        return None if self.operand.evaluate(properties) is None else False


def condition(operand: Expression) -> Condition:
    """`operand` where a condition is asked for. Raises ExpressionError."""
    if isinstance(operand, Condition):
        return operand
    if isinstance(operand, Property):
        return Presence(operand)
    raise ExpressionError(f"{operand if isinstance(operand, Constant) else 'a number'} is neither true nor false")


class Not(Condition):
    """The opposite; unknown stays unknown."""

    __slots__ = ("operand",)

    def __init__(self, operand: Expression) -> None:
        self.operand = condition(operand)
        super().__init__(self.operand)

    def evaluate(self, properties: Properties) -> bool | None:
        value = self.operand.evaluate(properties)
        return None if value is None else not value


class Joined(Condition):
    """Conditions with AND between them, or with OR: the first that decides does."""

    __slots__ = ("decisive", "operands")

    def __init__(self, operands: list[Expression], *, decisive: bool) -> None:
        self.operands = [condition(one) for one in operands]
        self.decisive = decisive
        """What one of them must be for the whole to be that: False with AND, True with OR."""
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
    """Whether two values are the same. What is absent is equal to what is absent."""

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
    """`left = right`. Raises ExpressionError."""
    for operand in (left, right):
        if isinstance(operand, Truth) and operand.value is None:
            raise ExpressionError("NULL is compared: write IS NULL, or IS NOT NULL")
    if isinstance(left, Truth) and isinstance(right, Constant):
        raise ExpressionError(f"{left} is compared with {right}")
    return Equal(left, right)


def is_null(operand: Expression) -> Equal:
    """`operand IS NULL`."""
    return Equal(operand, Truth(None))


ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Ordered(Condition):
    """Whether two numbers stand as a sign says; unknown when one is absent. Two texts are compared as Doubles."""

    __slots__ = ("holds", "left", "right")

    def __init__(self, left: Expression, sign: str, right: Expression) -> None:
        for operand in (left, right):
            if isinstance(operand, Condition) or (isinstance(operand, Constant) and isinstance(operand.value, str)):
                told = operand if isinstance(operand, Constant | Truth) else "a condition"
                raise ExpressionError(f"{told} is compared by {sign}, which is for numbers and properties")
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
    """`operand BETWEEN low AND high`. Raises ExpressionError, also for two literals of which the first is greater."""
    if isinstance(low, Constant) and isinstance(high, Constant) and _is_less(high, low):
        raise ExpressionError(f"BETWEEN {low} AND {high} holds nothing: the lesser number goes first")
    return Joined([Ordered(operand, ">=", low), Ordered(operand, "<=", high)], decisive=False)


def _is_less(left: Constant, right: Constant) -> bool:
    try:
        return compare(left.value, right.value) < 0
    except EvaluationError:
        return False  # a text, which the comparison refuses


def not_between(operand: Expression, low: Expression, high: Expression) -> Joined:
    """`operand NOT BETWEEN low AND high`. Raises ExpressionError."""
    return Joined([Ordered(operand, "<", low), Ordered(operand, ">", high)], decisive=True)


class Among(Condition):
    """Whether a property is one of some texts, or none of them; unknown when it is absent."""

    __slots__ = ("operand", "texts", "wanted")

    def __init__(self, operand: Expression, texts: list[str], *, wanted: bool) -> None:
        if not isinstance(operand, Property):
            raise ExpressionError("IN asks for the name of a property to its left")
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
    """Whether a text contains another, or begins or ends with it, or does not.

    False for what is absent or no text, and when the other is empty: with NOT as well.
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
