"""The brokers that a name server knows, for commands that send requests to single brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from wheelmq.cli.credentials import own_sign

if TYPE_CHECKING:
    from wheelmq.client.routes import RouteCache
    from wheelmq.system.tls_client import TlsOptions


async def find_brokers(namesrv: str, tls: TlsOptions | None) -> dict[str, str]:
    """Return the addresses of masters by broker name. Raises ValueError, NoNameServer, Refused."""
    async with _routes(namesrv, tls) as routes:
        return await routes.brokers()


async def find_masters_and_slaves(namesrv: str, tls: TlsOptions | None) -> list[str]:
    """Return the addresses of all brokers, masters first. Raises ValueError, NoNameServer, Refused."""
    async with _routes(namesrv, tls) as routes:
        return await routes.masters_and_slaves()


async def check_topic_is_known(namesrv: str, topic: str, tls: TlsOptions | None) -> None:
    """Raise TopicUnknown if no broker has `topic`. Raises the errors of `find_brokers` too."""
    async with _routes(namesrv, tls) as routes:
        await routes.get(topic)


@asynccontextmanager
async def _routes(namesrv: str, tls: TlsOptions | None) -> AsyncIterator[RouteCache]:
    from wheelmq.client.connections import Connections
    from wheelmq.client.routes import RouteCache
    from wheelmq.client.session import server_list
    from wheelmq.system.tls_client import client_tls

    connections = Connections(sign=own_sign(), tls=client_tls(tls))
    try:
        yield RouteCache(server_list(namesrv), connections)
    finally:
        await connections.close()
