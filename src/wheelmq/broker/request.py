"""What a handler gets and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from wheelmq.broker.connection import Connection
from wheelmq.filter.expression import Properties
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

H = TypeVar("H", bound=headers.Header)


@dataclass(slots=True)
class Request:
    """A command and who sent it."""

    command: Command
    connection: Connection
    waits_since_ms: Millis | None = None
    """Wall time at which a request that waits for its topic came; None for a request that does not wait."""

    @property
    def ext(self) -> dict[str, str]:
        return self.command.ext

    @property
    def body(self) -> bytes:
        return bytes(self.command.body)

    def header(self, kind: type[H]) -> H:
        """The typed header. Raises HeaderError, which is answered with code 1."""
        return headers.read(self.command.ext, kind)


class PeerError(Exception):
    """The request cannot be granted: `code` and text are the answer."""

    def __init__(self, code: ResponseCode, remark: str, **fields: object) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = headers.texts(**fields)
        """Header of the answer, where more than code and text are told."""


@dataclass(slots=True)
class Durable:
    """An answer that waits until the log is on disk up to `position`.

    `late` takes its place when that takes too long; without it, the answer says FLUSH_DISK_TIMEOUT.
    """

    reply: Command
    position: LogPosition
    late: Command | None = None


@dataclass(slots=True)
class DurableInBlock:
    """An answer that waits until so many messages of blocks are on disk; FLUSH_DISK_TIMEOUT when that takes long."""

    reply: Command
    put_count: int


@dataclass(slots=True)
class Hold:
    """No answer yet: ask again when something happens to `key`, for the last time at the deadline."""

    key: object
    timeout_ms: int
    again: Callable[[bool], Command | None]
    """Called with whether it is the last time; None goes on waiting (the last time it means no answer at all)."""
    wants: Wants | None = None
    """Of a pull that filters, whose key is a queue; None wants whatever comes."""
    gone: Callable[[], object] | None = None
    """Called when its connection is gone: there is no answer any more."""


Matches = Callable[[Properties], bool]
"""Whether a message with these properties passes. Those that are equal pass the same messages."""


@dataclass(slots=True)
class Wants:
    """What a hold wants of its queue, by tag codes or else by properties: it is asked again only when that has come."""

    codes: frozenset[int] | None
    matches: Matches | None
    go_to: Callable[[int | None], None]
    """Called before it is asked again, with the queue offset of the first message it may want; None: of all that was
    appended to the queue since it is held, it wants nothing."""


Give = Callable[[Callable[[], "Answer"]], None]
"""Takes what makes an answer; what that raises becomes the answer, as with a handler."""


@dataclass(slots=True)
class LaterAnswer:
    """An answer that depends on what somebody else says: `begin` is called once, with what takes the answer once."""

    begin: Callable[[Give], None]


Answer = Command | Durable | DurableInBlock | Hold | LaterAnswer | None
Handler = Callable[[Request, "Broker"], Answer]


def reply(
    code: ResponseCode = ResponseCode.SUCCESS, remark: str | None = None, body: bytes = b"", **fields: object
) -> Command:
    """An answer; `fields` go into its header as texts."""
    return Command(code=int(code), remark=remark, body=body, ext=headers.texts(**fields))
