"""The parts that producers and consumers share: id, routes, connections, heartbeats (RocketMQ: MQClientInstance)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from wheelmq.client.connections import Answering, Connections
from wheelmq.client.routes import RouteCache
from wheelmq.formats.wire import bodies, headers
from wheelmq.formats.wire.bodies import Heartbeat
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused, Unreachable
from wheelmq.net.rpc_client import RpcClient
from wheelmq.system.clock import Clock
from wheelmq.system.tls_client import Tls, client_tls
from wheelmq.system.unique_ids import UniqueIds

log = logging.getLogger(__name__)

KEEP_ALIVE_MS: Final = 30_000
"""Interval of route refreshes and heartbeats, as in Java. A broker drops a client that is silent for 120 s."""
NAMESRV_PORT: Final = 9876
"""The port of an address without one, as in `localhost`."""
_HOST: Final = re.compile(r"(?![0-9]+$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
UNREGISTER_S = 1.0
"""How long a stopping client waits for a broker to unregister it."""


def server_list(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of a list, or of a text separated by `;` or `,`. Raises ValueError.

    A host without a port gets the usual port of name servers, NAMESRV_PORT.
    """
    written = tuple(filter(None, (part.strip() for part in re.split("[;,]", text)))) if isinstance(text, str) else text
    if not written:
        raise ValueError("the address of a name server is missing: write HOST:PORT")
    servers = tuple(_with_port(server, NAMESRV_PORT) for server in written)
    for server in servers:
        check_address(server, "a name server", NAMESRV_PORT)
    return servers


def _with_port(address: str, port: int) -> str:
    """Return `address` with `port` if it is a host name or an IP address without a port. Others stay as they are."""
    try:
        found = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return f"{address}:{port}" if _HOST.fullmatch(address) else address
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"


def check_address(address: str, whose: str, usual_port: int) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not an address of {whose}: write HOST:PORT, as in 127.0.0.1:{usual_port}")


def at_least_one(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")


class Session:
    """One client as the brokers know it. `beat` returns its heartbeat. It cannot be started again.

    With an `instance` its client id is the same at each start: this machine's address, `@`, and that name. Raises
    TlsError for files of `tls` that cannot be used.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        clock: Clock,
        beat: Callable[[], Heartbeat],
        on_request: Answering | None = None,
        instance: str | None = None,
        keep_alive_ms: int = KEEP_ALIVE_MS,
        timeout_s: float = 3.0,
        randomness: Random | None = None,
        access_key: AccessKey | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.clock = clock
        self.randomness = randomness or Random()
        self.timeout_s = timeout_s
        sign = None if access_key is None else access_key.sign
        chosen = client_tls(tls)
        if chosen is not None:
            chosen.context()  # a bad file is an error of this call, not of each connection
        self.connections = Connections(on_request, self._lost, sign, chosen)
        self._instance = instance
        self._keep_alive_s = keep_alive_ms / 1000
        self.routes = RouteCache(server_list(servers), self.connections, timeout_s=timeout_s)
        self.client_id = ""
        self.unique_ids = UniqueIds(b"\x7f\0\0\1", clock, os.getpid(), self.randomness)
        self._beat = beat
        self._told: set[str] = set()
        self.losses: Counter[str] = Counter()
        """The number of lost connections by address. A broker forgets a client with each of them."""
        self.is_everywhere = False
        """Whether heartbeats go to every registered broker, and not only to those of the topics in use."""
        self._everywhere: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the client id and start the keep-alive task. Raises RuntimeError if it was started before."""
        if self.client_id:
            raise RuntimeError("a client can be started only once: create another one")
        address = await asyncio.to_thread(_own_address, self.routes.servers[0])
        self.unique_ids = UniqueIds(address, self.clock, os.getpid(), self.randomness)
        family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
        self.client_id = f"{socket.inet_ntop(family, address)}@{self._instance or self.unique_ids.next()}"
        self._task = asyncio.create_task(self._keep_alive())

    async def stop(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        header = headers.UnregisterClientHeader(
            client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await asyncio.gather(*(self._unregister(address, header) for address in sorted(self._told)))
        await self.connections.close()

    async def _unregister(self, address: str, header: headers.UnregisterClientHeader) -> None:
        with contextlib.suppress(CallError):
            request = Command(code=RequestCode.UNREGISTER_CLIENT, ext=headers.write(header))
            await self.connections.to(address).call(request, UNREGISTER_S)

    def caller(self, broker_name: str) -> RpcClient:
        address = self.routes.masters().get(broker_name)
        if address is None:
            raise CallError(f"broker {broker_name} is no longer in any route")
        return self.connections.to(address)

    async def beat(self) -> None:
        known = {**self._everywhere, **self.routes.masters()}
        await asyncio.gather(*(self._beat_to(address) for address in sorted(set(known.values()))))

    async def greet_everywhere(self) -> None:
        """Send a heartbeat to every registered broker that has not received one, and later to new ones, too.

        Raises NoNameServer, Refused.
        """
        self.is_everywhere = True
        if not self._everywhere:
            self._everywhere = await self.routes.brokers()
        await asyncio.gather(*map(self.greet, sorted(set(self._everywhere.values()))))

    async def greet(self, address: str) -> None:
        if address not in self._told:
            await self._beat_to(address)

    async def _beat_to(self, address: str) -> None:
        self._told.add(address)
        request = Command(code=RequestCode.HEART_BEAT, body=bodies.write(self._beat()))
        try:
            await self.connections.to(address).ask(request, self.timeout_s)
        except (CallError, Refused) as error:
            if isinstance(error, Unreachable):
                self._told.discard(address)
            log.info("the heartbeat to %s failed: %s", address, error)

    def _lost(self, address: str) -> None:
        """Send a new heartbeat with the next send: a broker forgets its clients when their connections close."""
        self._told.discard(address)
        self.losses[address] += 1

    async def _keep_alive(self) -> None:
        """Send heartbeats and refresh routes, forever.

        Heartbeats come first: brokers drop clients that are late, and a missing name server makes a refresh slow.
        """
        while True:
            await asyncio.sleep(self._keep_alive_s)
            try:
                await self.beat()
                await self.routes.refresh_all()
                if self.is_everywhere:
                    self._everywhere = await self.routes.brokers()
                    await self.greet_everywhere()
            except (CallError, Refused) as error:
                log.warning("some brokers may not know the client %s: %s", self.client_id, error)
            except Exception:
                log.exception("the refresh of routes and the heartbeats failed")


def _own_address(server: str) -> bytes:
    """Return the local address of the route to `server`. No packet is sent."""
    host, _, port = server.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return socket.inet_pton(family, probe.getsockname()[0].partition("%")[0])
    except OSError:
        return b"\x7f\0\0\1"
