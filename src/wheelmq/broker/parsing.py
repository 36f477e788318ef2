"""Parse long expressions off the loop, before the request that contains them is served."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from wheelmq.broker.answers import Answer, run_on_worker
from wheelmq.broker.context import Context
from wheelmq.broker.request import Request
from wheelmq.filter.expression import ExpressionError

AT_ONCE_CHARS: Final = 256
"""A shorter expression is parsed on the loop, in 2 ms at most."""


def when_parsed(request: Request, context: Context, texts: Iterable[str], serve: Callable[[], Answer]) -> Answer:
    """Serve a request once the long expressions among `texts` are parsed, unless its connection is closed by then."""
    wanted = {text for text in texts if len(text) > AT_ONCE_CHARS}
    if not wanted or not context.settings.consumers.filter_by_properties:
        return serve()
    from wheelmq.filter.grammar import is_parsed, parse

    missing = [text for text in wanted if not is_parsed(text)]
    if not missing:
        return serve()

    def work() -> None:
        for text in missing:
            with contextlib.suppress(ExpressionError):  # the request then raises it again
                parse(text)

    def serve_if_open(result: object) -> Answer:
        return serve() if request.connection.is_open else None

    return run_on_worker(context.workers.reading, work, serve_if_open)
