"""The connections to the controllers, of which one is the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from wheelmq.broker.replication.controller import requests
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.controller import ControllerMetadata
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import HeaderError
from wheelmq.net.errors import CallError, Refused
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.tls_client import ClientTls

TIMEOUT_S: Final = 3.0
FIND_S: Final = 1.0
"""Time for a controller to say whether it is the leader."""


class Controllers:
    """One connection to each controller. A controller that is down or hangs delays no other."""

    def __init__(self, addresses: Sequence[str], sign: Callable[[Command], None] | None, tls: ClientTls | None) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        self._sign = sign
        self._tls = tls
        self._clients = self._connect()
        self._leader: RpcClient | None = None

    def _connect(self) -> dict[str, RpcClient]:
        return {address: RpcClient(address, sign=self._sign, tls=self._tls) for address in self._addresses}

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def ask(self, command: Command) -> Command:
        """Return the answer of the leader with any code but CONTROLLER_NOT_LEADER. Raises CallError."""
        leader = self._leader = self._leader or await self._find_leader()
        try:
            answer = await leader.call(command, TIMEOUT_S)
        except CallError:
            self._leader = None
            raise
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = None
            raise CallError(f"the controller at {leader.address} is not the leader")
        return answer

    async def send(self, address: str, command: Command) -> None:
        """Send a heartbeat to one controller. Raises CallError, Refused."""
        await self._clients[address].ask(command, TIMEOUT_S)

    async def send_to_leader(self, command: Command) -> None:
        """Send a heartbeat to the leader. Raises CallError, Refused."""
        answer = await self.ask(command)
        if answer.code != ResponseCode.SUCCESS:
            raise Refused(answer)

    async def reconnect(self) -> None:
        """Close all connections, and use others from now on. The controllers then count this broker as lost."""
        await self.close()
        self._clients, self._leader = self._connect(), None

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def _find_leader(self) -> RpcClient:
        """Return the connection to the leader, as it says itself. Raises CallError."""
        found = await asyncio.gather(*map(self._is_leader, self._clients.values()), return_exceptions=True)
        for client, is_leader in zip(self._clients.values(), found, strict=True):
            if is_leader is True:
                return client
        problems = [str(one) for one in found if isinstance(one, BaseException)]
        text = problems[0] if problems else "none of them is the leader yet"
        raise CallError(f"no leader among the controllers {', '.join(self._addresses)}: {text}")

    @staticmethod
    async def _is_leader(client: RpcClient) -> bool:
        answer = await client.ask(requests.metadata(), FIND_S)
        try:
            return headers.read(answer.ext, ControllerMetadata).is_leader
        except HeaderError as error:
            raise CallError(f"{client.address}: {error}") from None
