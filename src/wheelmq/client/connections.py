"""One connection to each server that the client uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import Unreachable
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.tls_client import ClientTls

Answering = Callable[[str, Command], Command | Awaitable[Command | None] | None]
"""Handler of requests that a server sends on its own. Its first argument is the address of the server."""


class Connections:
    """Connections by server address. The next call reopens a lost connection.

    `on_lost` is called with the address of a lost connection. `sign` signs each request. `tls` encrypts all
    connections.
    """

    def __init__(
        self,
        on_request: Answering | None = None,
        on_lost: Callable[[str], None] | None = None,
        sign: Callable[[Command], None] | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._on_request = on_request
        self._tls = tls
        self._sign = sign
        self._on_lost = on_lost
        self._callers: dict[str, RpcClient] = {}
        self._is_closed = False

    def to(self, address: str) -> RpcClient:
        """Return the connection to the server at `address`. Raises Unreachable after `close`."""
        if self._is_closed:
            raise Unreachable(f"no connection to {address}: the client is stopped")
        caller = self._callers.get(address)
        if caller is None:
            on_request = None if self._on_request is None else partial(self._on_request, address)
            on_lost = None if self._on_lost is None else partial(self._on_lost, address)
            caller = self._callers[address] = RpcClient(address, on_request, on_lost, self._sign, self._tls)
        return caller

    async def close(self) -> None:
        """Close all connections permanently. Calls that wait for an answer fail."""
        self._is_closed = True
        callers, self._callers = self._callers, {}
        await asyncio.gather(*(caller.close() for caller in callers.values()))
