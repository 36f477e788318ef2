"""Heartbeats and membership (RocketMQ: ClientManageProcessor, ConsumerManageProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, PeerError, Request, reply
from wheelmq.broker.state.clients import Client
from wheelmq.broker.state.consumer_filters import compiled
from wheelmq.broker.subscriptions import check_is_supported
from wheelmq.filter.expression import ExpressionError
from wheelmq.formats import names
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import ConsumerGroupHeader, UnregisterClientHeader

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker


@serves(RequestCode.HEART_BEAT)
def heart_beat(request: Request, broker: Broker) -> Answer:
    """A client tells which groups it is in; a group that changed by it is told."""
    beat = bodies.read(request.body, bodies.Heartbeat)
    client = Client(
        client_id=beat.client_id,
        connection=request.connection,
        language=request.command.language,
        version=request.command.version,
        last_seen_ms=broker.now_monotonic_ms(),
    )
    for consumer in beat.consumer_data_set:
        if broker.settings.reject_pull_consumer_enable and consumer.consume_type == "CONSUME_ACTIVELY":
            continue
        group = broker.groups.get(consumer.group_name)
        if group is None:
            continue
        broker.topics.create_for_group(names.retry_topic(consumer.group_name), group.retry_queue_nums)
        changed = broker.clients.consumer_beat(client, consumer)
        broker.consumer_filters.register(consumer.group_name, consumer.subscription_data_set)
        if changed and group.notify_consumer_ids_changed_enable:
            broker.member_changes.note_change(consumer.group_name, request.connection)
    for producer in beat.producer_data_set:
        broker.clients.producer_beat(client, producer.group_name)
    return reply(IS_SUPPORT_HEART_BEAT_V2="false", IS_SUB_CHANGE="true")


@serves(RequestCode.UNREGISTER_CLIENT)
def unregister_client(request: Request, broker: Broker) -> Answer:
    """A client leaves a group."""
    header = request.header(UnregisterClientHeader)
    left = broker.clients.leave(
        header.client_id, request.connection, producer=header.producer_group, consumer=header.consumer_group
    )
    for name in left:
        config = broker.groups.get(name)
        broker.member_changes.note_left([name], notify=config is None or config.notify_consumer_ids_changed_enable)
    return reply()


@serves(RequestCode.CHECK_CLIENT_CONFIG)
def check_client_config(request: Request, broker: Broker) -> Answer:
    """Whether the broker filters as a consumer that is about to start subscribes."""
    subscription = bodies.read(request.body, bodies.ClientCheck).subscription_data if request.body else None
    if subscription is None or subscription.is_by_tags:
        return reply()
    check_is_supported(subscription, broker)
    try:
        compiled(str(subscription.expression_type), subscription.sub_string)
    except ExpressionError as error:
        raise PeerError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"no {subscription.expression_type} expression: {error}"
        ) from None
    return reply()


@serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
def get_consumer_list(request: Request, broker: Broker) -> Answer:
    """The ids of a group's clients, of every connection."""
    group = request.header(ConsumerGroupHeader).consumer_group
    found = broker.clients.consumers.get(group)
    if found is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return reply(body=bodies.write({"consumerIdList": found.client_ids()}))
