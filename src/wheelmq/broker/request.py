"""The requests that handlers get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from wheelmq.broker.connection import Connection
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.frame import Command

H = TypeVar("H", bound=headers.Header)


@dataclass(slots=True)
class Request:
    command: Command
    connection: Connection
    waits_since_ms: Millis | None = None
    """Wall time at which the request came, if it waits for its topic; else None."""

    @property
    def ext(self) -> dict[str, str]:
        return self.command.ext

    @property
    def body(self) -> bytes:
        return bytes(self.command.body)

    def header(self, kind: type[H]) -> H:
        """Return the typed header. Raises HeaderError, which is answered with code 1."""
        return headers.read(self.command.ext, kind)
