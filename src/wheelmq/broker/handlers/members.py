"""Heartbeats and membership (RocketMQ: ClientManageProcessor, ConsumerManageProcessor)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable, serves
from wheelmq.broker.member_changes import MemberChanges
from wheelmq.broker.parsing import when_parsed
from wheelmq.broker.request import Request
from wheelmq.broker.slices import Steps
from wheelmq.broker.state.clients import Client
from wheelmq.broker.state.consumer_filters import compiled
from wheelmq.broker.state.heartbeats import Membership, UnfinishedHeartbeat
from wheelmq.broker.subscriptions import check_is_supported
from wheelmq.filter.expression import ExpressionError
from wheelmq.formats import names
from wheelmq.formats.wire import bodies
from wheelmq.formats.wire.bodies import ConsumerData, Subscription
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import ConsumerGroupHeader, UnregisterClientHeader

ENTRIES_MAX: Final = 10_000
"""Greatest number of groups and subscriptions in a heartbeat. A client has one or a few; a proxy has thousands."""
EXPRESSION_CHARS_MAX: Final = 128 << 10
"""Greatest number of characters of all expressions of a heartbeat. Tag expressions do not count."""
AT_ONCE_MAX: Final = 64
"""Groups and subscriptions up to which a heartbeat is served without slices."""

HANDLERS: Final[HandlerTable[[Context, MemberChanges]]] = HandlerTable()


@HANDLERS.serves(RequestCode.HEART_BEAT)
def heart_beat(request: Request, context: Context, member_changes: MemberChanges) -> Answer:
    """Register a client in its groups, and notify each group that it changes.

    A heartbeat of many groups is served in slices, so that other requests and due messages do not wait for it. Raises
    PeerError for more groups or subscriptions than a client can have.
    """
    beat = bodies.read(request.body, bodies.Heartbeat)
    entries = sum(1 + len(one.subscription_data_set) for one in beat.consumer_data_set) + len(beat.producer_data_set)
    if entries > ENTRIES_MAX:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            f"the heartbeat of {beat.client_id[:200]} has {entries} groups and subscriptions. The limit is "
            f"{ENTRIES_MAX} per client: use more clients",
        )
    texts = [
        subscription.sub_string
        for consumer in beat.consumer_data_set
        for subscription in consumer.subscription_data_set
        if not subscription.is_by_tags
    ]
    chars = sum(map(len, texts))
    if chars > EXPRESSION_CHARS_MAX:
        raise PeerError(
            ResponseCode.INVALID_PARAMETER,
            f"the heartbeat of {beat.client_id[:200]} has expressions of {chars} characters in total. The limit is "
            f"{EXPRESSION_CHARS_MAX}: use shorter expressions, or more clients",
        )
    client = Client(
        client_id=beat.client_id,
        connection=request.connection,
        language=request.command.language,
        version=request.command.version,
        last_seen_ms=context.clock.monotonic_ms(),
    )
    consumers = [Membership(True, one.group_name, beat.client_id) for one in beat.consumer_data_set]
    producers = [Membership(False, one.group_name, beat.client_id) for one in beat.producer_data_set]
    unfinished = context.clients.unfinished.begin(request.connection, [*consumers, *producers])

    def serve() -> Answer:
        steps = _register(beat, client, unfinished, context, member_changes)
        try:
            return context.slices.answer(request, steps) if entries > AT_ONCE_MAX else _finish(steps)
        except PeerError:
            context.clients.unfinished.end(request.connection, unfinished)
            raise

    return when_parsed(request, context, texts, serve)


def _finish(steps: Steps) -> Command:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Command = stop.value
            return answer


def _register(
    beat: bodies.Heartbeat,
    client: Client,
    unfinished: UnfinishedHeartbeat,
    context: Context,
    member_changes: MemberChanges,
) -> Steps:
    """Register the groups, one per step. Skip groups that a later request has named."""
    try:
        for consumer in beat.consumer_data_set:
            if unfinished.registers(Membership(True, consumer.group_name, client.client_id)):
                yield from _register_consumer(consumer, client, context, member_changes)
            yield
        for producer in beat.producer_data_set:
            if unfinished.registers(Membership(False, producer.group_name, client.client_id)):
                context.clients.producer_beat(client, producer.group_name)
            yield
    finally:
        context.clients.unfinished.end(client.connection, unfinished)
    return reply(IS_SUPPORT_HEART_BEAT_V2="false", IS_SUB_CHANGE="true")


def _register_consumer(
    consumer: ConsumerData, client: Client, context: Context, member_changes: MemberChanges
) -> Iterator[None]:
    if context.settings.consumers.reject_pull_enable and consumer.consume_type == "CONSUME_ACTIVELY":
        return
    group = context.groups.get(consumer.group_name)
    if group is None:
        return
    context.topics.create_for_group(names.retry_topic(consumer.group_name), group.retry_queue_nums)
    changed = context.clients.consumer_beat(client, consumer)
    yield from context.consumer_filters.register(consumer.group_name, consumer.subscription_data_set)
    if changed and group.notify_consumer_ids_changed_enable:
        member_changes.note_change(consumer.group_name, client.connection)


@HANDLERS.serves(RequestCode.UNREGISTER_CLIENT)
def unregister_client(request: Request, context: Context, member_changes: MemberChanges) -> Answer:
    """Remove a client from a group."""
    header = request.header(UnregisterClientHeader)
    left = context.clients.leave(
        header.client_id, request.connection, producer=header.producer_group, consumer=header.consumer_group
    )
    for name in left:
        config = context.groups.get(name)
        member_changes.note_left([name], notify=config is None or config.notify_consumer_ids_changed_enable)
    return reply()


@serves(RequestCode.CHECK_CLIENT_CONFIG)
def check_client_config(request: Request, context: Context) -> Answer:
    """Check whether the broker can filter for the subscription of a consumer that is about to start."""
    subscription = bodies.read(request.body, bodies.ClientCheck).subscription_data if request.body else None
    if subscription is None or subscription.is_by_tags:
        return reply()
    return when_parsed(request, context, [subscription.sub_string], lambda: _check_expression(subscription, context))


def _check_expression(subscription: Subscription, context: Context) -> Answer:
    """Check that the broker supports the expression and that it is valid. Raises PeerError."""
    check_is_supported(subscription, context)
    try:
        compiled(str(subscription.expression_type), subscription.sub_string)
    except ExpressionError as error:
        raise PeerError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"invalid {subscription.expression_type} expression: {error}"
        ) from None
    return reply()


@serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
def get_consumer_list(request: Request, context: Context) -> Answer:
    """Return the ids of all clients of a group."""
    group = request.header(ConsumerGroupHeader).consumer_group
    found = context.clients.consumers.get(group)
    if found is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return reply(body=bodies.write({"consumerIdList": found.client_ids()}))
