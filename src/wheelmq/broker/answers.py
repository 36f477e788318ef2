"""The kinds of answers that handlers return, and the exception that is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wheelmq.filter.expression import Properties
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command


class PeerError(Exception):
    """The request cannot be granted. The code and the remark are the answer."""

    def __init__(self, code: ResponseCode, remark: str, **fields: object) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = headers.texts(**fields)
        """Header of the answer, if it has more than code and remark."""


@dataclass(slots=True)
class Durable:
    """An answer that waits until the log is on disk up to `position`.

    If that takes too long, `late` replaces it. Without `late`, the answer then says FLUSH_DISK_TIMEOUT.
    """

    reply: Command
    position: LogPosition
    late: Command | None = None


@dataclass(slots=True)
class DurableInBlock:
    """An answer that waits until `put_count` messages of blocks are on disk.

    If that takes too long, it says FLUSH_DISK_TIMEOUT.
    """

    reply: Command
    put_count: int


@dataclass(slots=True)
class Hold:
    """No answer yet. `again` is called at each event of `key`, and for the last time at the deadline."""

    key: object
    timeout_ms: int
    again: Callable[[bool], Command | None]
    """Called with True the last time. None means that the request waits further, or finally that it has no answer."""
    wants: Wants | None = None
    """Filter of a pull, whose key is a queue; None wants every message."""
    gone: Callable[[], object] | None = None
    """Called when the connection is gone, so that there is no answer any more."""


Matches = Callable[[Properties], bool]
"""Returns whether a message with these properties passes. Equal functions pass the same messages."""


@dataclass(slots=True)
class Wants:
    """The messages of a queue that a hold wants, by tag codes or else by properties.

    The hold is checked again only when one of them has come.
    """

    codes: frozenset[int] | None
    matches: Matches | None
    go_to: Callable[[int | None], None]
    """Called before `again`, with the queue offset of the first message that the hold may want. None: it wants none
    of the messages that the queue got since the hold began."""


Give = Callable[[Callable[[], "Answer"]], None]
"""Takes a function that creates the answer. Its exception becomes the answer, as for a handler."""


@dataclass(slots=True)
class LaterAnswer:
    """An answer that depends on another part. `begin` is called once, with a function that takes the answer once."""

    begin: Callable[[Give], None]


Answer = Command | Durable | DurableInBlock | Hold | LaterAnswer | None


def reply(
    code: ResponseCode = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **fields: object
) -> Command:
    """Return an answer. `fields` go into its header as texts."""
    return Command(code=int(code), remark=remark, body=body, ext=headers.texts(**fields))
