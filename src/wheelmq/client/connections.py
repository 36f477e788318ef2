"""One connection to each server that a client speaks to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from wheelmq.formats.wire.frame import Command
from wheelmq.net.caller import Caller

Answering = Callable[[str, Command], Command | Awaitable[Command | None] | None]
"""What answers the requests that servers make of their own accord, from the address of the one that asks."""


class Connections:
    """Callers by address. A lost connection is made anew by the next call; `on_lost` hears its address."""

    def __init__(self, on_request: Answering | None = None, on_lost: Callable[[str], None] | None = None) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._callers: dict[str, Caller] = {}

    def to(self, address: str) -> Caller:
        """The connection to the server at `address`."""
        caller = self._callers.get(address)
        if caller is None:
            on_request = None if self._on_request is None else partial(self._on_request, address)
            on_lost = None if self._on_lost is None else partial(self._on_lost, address)
            caller = self._callers[address] = Caller(address, on_request, on_lost)
        return caller

    async def close(self) -> None:
        """Close them all; calls that wait for an answer fail."""
        callers, self._callers = self._callers, {}
        await asyncio.gather(*(caller.close() for caller in callers.values()))
