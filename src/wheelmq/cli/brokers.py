"""The brokers that a name server knows, for commands that send requests to single brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wheelmq.system.tls_client import TlsOptions


async def find_brokers(namesrv: str, tls: TlsOptions | None) -> dict[str, str]:
    """Return the addresses of masters by broker name. Raises ValueError, NoNameServer, Refused."""
    from wheelmq.client.connections import Connections
    from wheelmq.client.routes import RouteCache
    from wheelmq.client.session import server_list
    from wheelmq.system.tls_client import client_tls

    connections = Connections(tls=client_tls(tls))
    try:
        return await RouteCache(server_list(namesrv), connections).brokers()
    finally:
        await connections.close()


async def check_topic_is_known(namesrv: str, topic: str, tls: TlsOptions | None) -> None:
    """Raise TopicUnknown if no broker has `topic`. Raises the errors of `find_brokers` too."""
    from wheelmq.client.connections import Connections
    from wheelmq.client.routes import RouteCache
    from wheelmq.client.session import server_list
    from wheelmq.system.tls_client import client_tls

    connections = Connections(tls=client_tls(tls))
    try:
        await RouteCache(server_list(namesrv), connections).get(topic)
    finally:
        await connections.close()
