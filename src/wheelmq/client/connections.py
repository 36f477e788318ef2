"""One connection to each server that a client speaks to."""

from __future__ import annotations

from collections.abc import Callable

from wheelmq.formats.wire.frame import Command
from wheelmq.net.caller import Caller


class Connections:
    """Callers by address. A lost connection is made anew by the next call."""

    def __init__(self, on_request: Callable[[Command], Command | None] | None = None) -> None:
        self._on_request = on_request
        self._callers: dict[str, Caller] = {}

    def to(self, address: str) -> Caller:
        """The connection to the server at `address`."""
        caller = self._callers.get(address)
        if caller is None:
            caller = self._callers[address] = Caller(address, self._on_request)
        return caller

    async def close(self) -> None:
        """Close them all; calls that wait for an answer fail."""
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            await caller.close()
