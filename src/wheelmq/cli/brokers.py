"""The brokers that a name server knows, for commands that send requests to single brokers."""

from __future__ import annotations


async def find_brokers(namesrv: str) -> dict[str, str]:
    """Return the addresses of masters by broker name. Raises ValueError, NoNameServer, Refused."""
    from wheelmq.client.connections import Connections
    from wheelmq.client.routes import RouteCache
    from wheelmq.client.session import server_list

    connections = Connections()
    try:
        return await RouteCache(server_list(namesrv), connections).brokers()
    finally:
        await connections.close()


async def check_topic_is_known(namesrv: str, topic: str) -> None:
    """Raise TopicUnknown if no broker has `topic`. Raises the errors of `find_brokers` too."""
    from wheelmq.client.connections import Connections
    from wheelmq.client.routes import RouteCache
    from wheelmq.client.session import server_list

    connections = Connections()
    try:
        await RouteCache(server_list(namesrv), connections).get(topic)
    finally:
        await connections.close()
