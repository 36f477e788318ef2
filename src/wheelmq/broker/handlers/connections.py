"""The connected clients: GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.state.clients import Client
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import ConsumerGroupHeader, ProducerGroupHeader


@serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
def get_consumers(request: Request, context: Context) -> Answer:
    """Return the members of a consumer group and their subscriptions."""
    name = request.header(ConsumerGroupHeader).consumer_group
    group = context.clients.consumers.get(name)
    if group is None:
        raise PeerError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
    body = {
        "connectionSet": _connections(group.clients.values()),
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": group.subscriptions,
    }
    return reply(body=bodies.write(body))


@serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
def get_producers(request: Request, context: Context) -> Answer:
    """Return the members of a producer group."""
    name = request.header(ProducerGroupHeader).producer_group
    members = context.clients.producers.get(name)
    if members is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
    return reply(body=bodies.write({"connectionSet": _connections(members.values())}))


@serves(RequestCode.GET_ALL_PRODUCER_INFO)
def get_all_producers(request: Request, context: Context) -> Answer:
    """Return the members of every producer group."""
    behind_ms = context.clock.now_ms() - context.clock.monotonic_ms()
    data = {
        name: [
            {
                "clientId": client.client_id,
                "language": client.language,
                "lastUpdateTimestamp": client.last_seen_ms + behind_ms,
                "remoteIP": f"/{_address(client)}",  # as Java writes an address without a name
                "version": client.version,
            }
            for client in members.values()
        ]
        for name, members in context.clients.producers.items()
    }
    return reply(body=bodies.write({"data": data}))


def _connections(clients: Iterable[Client]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": _address(client),
            "clientId": client.client_id,
            "language": client.language,
            "version": client.version,
        }
        for client in clients
    ]


def _address(client: Client) -> str:
    return peer_text(client.connection)
