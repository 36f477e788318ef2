"""Parses filter expressions with RocketMQ's grammar (RocketMQ: SelectorParser.jj).

As in Apache's parser, parsing stops one token after the end of the expression and ignores the rest: `a = 1 ORDER BY b`
is `a = 1`. NOT binds closer than any comparison: `NOT a = 1` is `(NOT a) = 1`.
"""

from __future__ import annotations

import math
import re
from typing import Final

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.parsers.lalr_interactive_parser import InteractiveParser

from wheelmq.filter import expression as parts
from wheelmq.filter.expression import Condition, Constant, Expression, ExpressionError, Joined, Property, Truth
from wheelmq.filter.values import Long
from wheelmq.formats.java import java_double, java_long

CHARS_MAX: Final = 16_384
"""Maximum length of an expression. Apache RocketMQ has no limit."""
CACHED: Final = 1000
"""Number of expressions whose parse result is kept (RocketMQ: PARSE_CACHE, 100)."""
SHOWN_CHARS: Final = 200
"""Maximum number of characters of an expression in an error text."""

BRACKETS_MAX: Final = 1000
"""Maximum number of open brackets and signs. Apache's parser overflows its stack at some thousands."""

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_GRAMMAR: Final = r"""
start: or_

?or_: and_ (OR and_)*
?and_: equality (AND equality)*

?equality: comparison
    | equality "=" comparison       -> equal
    | equality UNEQUAL comparison   -> not_equal
    | equality IS NULL              -> is_null
    | equality IS NOT NULL          -> is_not_null

?comparison: unary
    | comparison ORDER unary                            -> ordered
    | comparison _like TEXT                             -> like
    | comparison NOT _like TEXT                         -> not_like
    | comparison BETWEEN unary AND unary                -> between
    | comparison NOT BETWEEN unary AND unary            -> not_between
    | comparison IN "(" TEXT ("," TEXT)* ")"            -> among
    | comparison NOT IN "(" TEXT ("," TEXT)* ")"        -> not_among

_like: CONTAINS | STARTSWITH | ENDSWITH

?unary: "+" unary
    | "-" unary     -> negative
    | NOT unary     -> not_
    | primary

?primary: TEXT      -> text
    | DECIMAL       -> decimal
    | FLOAT         -> float_
    | TRUE          -> true
    | FALSE         -> false
    | NULL          -> null
    | NAME          -> name
    | "(" or_ ")"

UNEQUAL.3: "<>"
ORDER.2: /[<>]=?/

%declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH

NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
TEXT: /'(?:''|[^'])*'/
FLOAT.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL: /0|[1-9][0-9]*[lL]?/

SPACES: /[ \t\n\r\f]+/
BLOCK_COMMENT: /\/\*[^*]*\*+(?:[^*\/][^*]*\*+)*\//
%ignore SPACES
%ignore BLOCK_COMMENT
"""


@v_args(inline=True)
class _Builder(Transformer[Token, Expression]):
    """Builds the parts of the expression during parsing. Keyword tokens among the arguments are ignored."""

    def start(self, whole: Expression) -> Condition:
        return parts.condition(whole)

    def or_(self, *operands: Expression | Token) -> Expression:
        return Joined([one for one in operands if isinstance(one, Expression)], decisive=True)

    def and_(self, *operands: Expression | Token) -> Expression:
        return Joined([one for one in operands if isinstance(one, Expression)], decisive=False)

    def equal(self, left: Expression, right: Expression) -> Expression:
        return parts.equal(left, right)

    def not_equal(self, left: Expression, _: Token, right: Expression) -> Expression:
        return parts.Not(parts.equal(left, right))

    def is_null(self, operand: Expression, *_: Token) -> Expression:
        return parts.is_null(operand)

    def is_not_null(self, operand: Expression, *_: Token) -> Expression:
        return parts.Not(parts.is_null(operand))

    def ordered(self, left: Expression, sign: Token, right: Expression) -> Expression:
        return parts.Ordered(left, sign.value, right)

    def like(self, operand: Expression, test: Token, text: Token) -> Expression:
        return parts.Like(operand, test.value.upper(), _unquoted(text), wanted=True)

    def not_like(self, operand: Expression, _: Token, test: Token, text: Token) -> Expression:
        return parts.Like(operand, test.value.upper(), _unquoted(text), wanted=False)

    def between(self, operand: Expression, _: Token, low: Expression, __: Token, high: Expression) -> Expression:
        return parts.between(operand, low, high)

    def not_between(self, operand: Expression, *rest: Expression | Token) -> Expression:
        low, high = (one for one in rest if isinstance(one, Expression))
        return parts.not_between(operand, low, high)

    def among(self, operand: Expression, *rest: Token) -> Expression:
        return parts.Among(operand, [_unquoted(one) for one in rest if one.type == "TEXT"], wanted=True)

    def not_among(self, operand: Expression, *rest: Token) -> Expression:
        return parts.Among(operand, [_unquoted(one) for one in rest if one.type == "TEXT"], wanted=False)

    def negative(self, operand: Expression) -> Expression:
        return parts.Negative(operand)

    def not_(self, _: Token, operand: Expression) -> Expression:
        return parts.Not(operand)

    def text(self, token: Token) -> Expression:
        return Constant(_unquoted(token))

    def decimal(self, token: Token) -> Expression:
        value = java_long(token.value.rstrip("lL"))
        if value is None:
            raise ExpressionError(f"{token} is greater than {(1 << 63) - 1}")
        return Constant(value if value < 1 << 31 else Long(value))

    def float_(self, token: Token) -> Expression:
        value = java_double(token.value)
        if not value or math.isinf(value):
            raise ExpressionError(f"{token} is not a Double from 4.9E-324 to 1.7976931348623157E308")
        return Constant(value)

    def true(self, _: Token) -> Expression:
        return Truth(True)

    def false(self, _: Token) -> Expression:
        return Truth(False)

    def null(self, _: Token) -> Expression:
        return Truth(None)

    def name(self, token: Token) -> Expression:
        return Property(token.value)


def _unquoted(token: Token) -> str:
    return str(token.value)[1:-1].replace("''", "'")


def _keyword(token: Token) -> Token:
    upper = token.value.upper()
    return Token.new_borrow_pos(upper, token.value, token) if upper in KEYWORDS else token


_LARK: Final = Lark(
    _GRAMMAR,
    parser="lalr",
    lexer="basic",
    transformer=_Builder(),
    lexer_callbacks={"NAME": _keyword},
    maybe_placeholders=False,
)


_END: Final = Token("$END", "")


_outcomes: dict[str, Condition | ExpressionError] = {}
"""Parse results by text, the oldest first. Errors are kept too, so that a wrong expression is parsed only once."""

_LINE_COMMENT: Final = re.compile(r"--[^\n\r]*[\n\r]")
_NO_COMMENT: Final = re.compile(r"'(?:''|[^'])*'|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/|[^'/-]+|-(?!-)|/")
"""Matches a quoted text, a block comment, or characters that begin neither of them nor a line comment."""


def parse(text: str) -> Condition:
    """Return the expression that `text` begins with. Raises ExpressionError."""
    if len(text) > CHARS_MAX:
        raise ExpressionError(f"an expression has at most {CHARS_MAX} characters, this one has {len(text)}")
    outcome = _outcomes.get(text)
    if outcome is None:
        try:
            outcome = _read(text)
        except ExpressionError as error:
            outcome = ExpressionError(str(error))
        while len(_outcomes) >= CACHED:
            _outcomes.pop(next(iter(_outcomes)), None)
        _outcomes[text] = outcome
    if isinstance(outcome, ExpressionError):
        raise ExpressionError(str(outcome))
    return outcome


def is_parsed(text: str) -> bool:
    """Return whether `parse` knows the result for `text`."""
    return text in _outcomes or len(text) > CHARS_MAX


def _without_line_comments(text: str) -> str:
    """Return `text` with spaces in place of its line comments, which need a line end.

    The grammar cannot look for the line end from each sign: a text of 16,384 signs would take seconds.
    """
    comments_end = max(text.rfind("\n"), text.rfind("\r"))
    parts, at = [], 0
    while at < comments_end:
        comment = _LINE_COMMENT.match(text, at)
        found = comment or _NO_COMMENT.match(text, at)
        if found is None:
            break  # an unterminated text, which the grammar rejects
        parts.append(" " * len(found[0]) if comment else found[0])
        at = found.end()
    return "".join(parts) + text[at:]


def _read(text: str) -> Condition:
    parser = _LARK.parse_interactive(_without_line_comments(text))
    try:
        _feed(parser)
        whole = parser.feed_token(_END)
    except UnexpectedToken as error:
        try:
            whole = parser.feed_token(_END)
        except UnexpectedToken:
            raise ExpressionError(_message(error)) from None
    except UnexpectedInput as error:
        raise ExpressionError(_message(error)) from None
    assert isinstance(whole, Condition)
    return whole


def _feed(parser: InteractiveParser) -> None:
    """Feed all tokens to the parser. Raises ExpressionError as soon as the nesting is too deep."""
    open_brackets = signs = 0
    for token in parser.iter_parse():
        open_brackets += (token.type == "LPAR") - (token.type == "RPAR")
        signs = signs + 1 if token.type in ("NOT", "MINUS") else 0
        if open_brackets + signs > BRACKETS_MAX:
            raise ExpressionError(f"it nests more than {BRACKETS_MAX} deep")


def _message(error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "it ends too early"
    found = error.token.value if isinstance(error, UnexpectedToken) else getattr(error, "char", "")
    found = found if len(found) <= SHOWN_CHARS else found[:SHOWN_CHARS] + "..."
    return f"{found!r} is not expected at character {(error.pos_in_stream or 0) + 1}"
