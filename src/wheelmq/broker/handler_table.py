"""Tables of handlers by request code. The handlers of a table take the same parts, after the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec

from wheelmq.broker.answers import Answer
from wheelmq.broker.context import Context
from wheelmq.broker.request import Request
from wheelmq.formats.wire.codes import RequestCode

P = ParamSpec("P")


class BoundHandler(NamedTuple):
    """A handler, and the parts that it takes after the request."""

    handle: Callable[..., Answer]
    parts: tuple[Any, ...]


class HandlerTable(Generic[P]):
    """Handlers by request code. `P` names the parts that each of them takes."""

    def __init__(self) -> None:
        self.by_code: Final[dict[int, Callable[Concatenate[Request, P], Answer]]] = {}

    def serves(
        self, *codes: RequestCode
    ) -> Callable[[Callable[Concatenate[Request, P], Answer]], Callable[Concatenate[Request, P], Answer]]:
        def register(handler: Callable[Concatenate[Request, P], Answer]) -> Callable[Concatenate[Request, P], Answer]:
            for code in codes:
                assert code not in self.by_code, code
                self.by_code[code] = handler
            return handler

        return register

    def bind(self, *parts: P.args, **named: P.kwargs) -> dict[int, BoundHandler]:
        assert not named, "handlers take their parts by position"
        return {code: BoundHandler(handler, parts) for code, handler in self.by_code.items()}


COMMON: Final[HandlerTable[[Context]]] = HandlerTable()
serves: Final = COMMON.serves
