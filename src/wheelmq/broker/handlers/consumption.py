"""The progress of groups: GET_CONSUME_STATS, GET_BROKER_CONSUME_STATS, QUERY_TOPIC_CONSUME_BY_WHO and others."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final

from wheelmq.broker.answers import Answer, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.handlers.queues import bounds, queue_name, stored_ms, topic_of
from wheelmq.broker.request import Request
from wheelmq.broker.slices import Steps
from wheelmq.formats.wire import bodies, queue_tables
from wheelmq.formats.wire.bodies import QueueName, TopicConfig
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.headers import (
    BrokerConsumeStatsHeader,
    CloneHeader,
    ConsumeStatsHeader,
    CorrectionHeader,
    GroupHeader,
    TopicAndGroupHeader,
    TopicHeader,
)

NEVER: Final = (1 << 63) - 1
"""The offset that means "no correction is needed" (RocketMQ: Long.MAX_VALUE)."""

Progress = tuple[QueueName, dict[str, int]]


@serves(RequestCode.GET_CONSUME_STATS)
def get_consume_stats(request: Request, context: Context) -> Answer:
    """Return the offsets of a group in each queue of a topic, or of all topics that it consumes."""
    header = request.header(ConsumeStatsHeader)
    group = header.consumer_group

    def steps() -> Steps:
        table: list[Progress] = []
        tps = 0.0
        for topic in _topics(context, header):
            config = context.topics.get(topic)
            if config is not None:
                table += yield from _progress(context, group, config, config.read_queue_nums)
                tps += context.stats.get_tps(group, topic)
        return reply(body=queue_tables.write(consumeTps=tps, offsetTable=dict(table)))

    return context.slices.answer(request, steps())


def _topics(context: Context, header: ConsumeStatsHeader) -> Iterable[str]:
    """Return the topics of a request: its list, or its topic, or all topics that the group subscribes to."""
    chosen = [topic for topic in (header.topic_list or "").split(";") if topic]
    if chosen:
        return chosen
    topics = [header.topic] if header.topic else context.consumer_offsets.topics_of(header.consumer_group)
    return [topic for topic in topics if is_subscribed(context, header.consumer_group, topic)]


def is_subscribed(context: Context, group: str, topic: str) -> bool:
    """Return whether the members of a group subscribe to the topic. True if no member is connected."""
    members = context.clients.consumers.get(group)
    return members is None or not members.subscriptions or topic in members.subscriptions


def _progress(context: Context, group: str, config: TopicConfig, count: int) -> Generator[None, None, list[Progress]]:
    topic = config.topic_name
    offsets, pulled = context.consumer_offsets.of(group, topic), context.consumer_offsets.pulled(group, topic)
    found = []
    for queue_id in range(count):
        offset = offsets.get(queue_id, 0)
        figures = {
            "brokerOffset": context.store.queues.end(topic, queue_id),
            "consumerOffset": offset,
            "lastTimestamp": (stored_ms(context, topic, queue_id, offset - 1) or 0) if offset else 0,
            "pullOffset": max(offset, pulled.get(queue_id, 0)),
        }
        found.append((queue_name(context, topic, queue_id), figures))
        yield
    return found


@serves(RequestCode.GET_BROKER_CONSUME_STATS)
def get_broker_consume_stats(request: Request, context: Context) -> Answer:
    """Return the offsets of every group in every topic that it consumes."""
    header = request.header(BrokerConsumeStatsHeader)

    def steps() -> Steps:
        topics = context.consumer_offsets.by_group()
        listed: list[bytes] = []
        behind = in_flight = 0
        for group in list(context.groups.table().subscription_group_table):
            of_group = []
            for topic in topics.get(group, ()):
                config = context.topics.get(topic)
                if config is None or (header.is_order and not config.order) or not is_subscribed(context, group, topic):
                    continue
                table = yield from _progress(context, group, config, config.write_queue_nums)
                behind += sum(figures["brokerOffset"] - figures["consumerOffset"] for _, figures in table)
                in_flight += sum(figures["pullOffset"] - figures["consumerOffset"] for _, figures in table)
                tps = context.stats.get_tps(group, topic)
                of_group.append(queue_tables.write(consumeTps=tps, offsetTable=dict(table)))
            listed.append(b"{" + bodies.write(group) + b":[" + b",".join(of_group) + b"]}")
        address = context.settings.broker.address
        head = bodies.write({"brokerAddr": address, "totalDiff": behind, "totalInflightDiff": in_flight})
        return reply(body=head[:-1] + b',"consumeStatsList":[' + b",".join(listed) + b"]}")

    return context.slices.answer(request, steps())


@serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
def query_time_span(request: Request, context: Context) -> Answer:
    """Return for each queue the store times of its messages, and of the last message that a group consumed."""
    header = request.header(TopicAndGroupHeader)
    config = topic_of(context, header.topic)

    def steps() -> Steps:
        offsets = context.consumer_offsets.of(header.group, header.topic)
        spans = []
        for queue_id in range(config.write_queue_nums):
            spans.append(_span(context, header.topic, queue_id, offsets.get(queue_id, -1)))
            yield
        return reply(body=bodies.write({"consumeTimeSpanSet": spans}))

    return context.slices.answer(request, steps())


def _span(context: Context, topic: str, queue_id: int, consumed: int) -> dict[str, Any]:
    """Return the times of one queue, -1 where no message has one. `consumed` is -1 without an offset."""
    first, end = bounds(context, topic, queue_id)

    def when(offset: int) -> int:
        found = stored_ms(context, topic, queue_id, offset)
        return -1 if found is None else found

    oldest_ms = when(first)
    waiting_ms = when(max(consumed, 0)) if consumed < end else -1
    return {
        "messageQueue": queue_name(context, topic, queue_id),
        "minTimeStamp": oldest_ms,
        "maxTimeStamp": when(end - 1),
        "consumeTimeStamp": when(consumed - 1) if consumed > 0 else oldest_ms,
        "delayTime": 0 if waiting_ms < 0 else context.clock.now_ms() - waiting_ms,
    }


@serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
def query_groups(request: Request, context: Context) -> Answer:
    """Return the groups that consume a topic, or consumed it before."""
    topic = request.header(TopicHeader).topic
    connected = {name for name, group in context.clients.consumers.items() if topic in group.subscriptions}
    return reply(body=bodies.write({"groupList": sorted(connected.union(context.consumer_offsets.groups_of(topic)))}))


@serves(RequestCode.QUERY_TOPICS_BY_CONSUMER)
def query_topics(request: Request, context: Context) -> Answer:
    """Return the topics in which a group has offsets."""
    topics = context.consumer_offsets.topics_of(request.header(GroupHeader).group)
    address = context.settings.broker.address
    return reply(body=bodies.write({"brokerAddr": address, "topicList": topics}))


@serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
def query_subscription(request: Request, context: Context) -> Answer:
    """Return the subscription of a connected group to a topic."""
    header = request.header(TopicAndGroupHeader)
    members = context.clients.consumers.get(header.group)
    subscription = members.subscriptions.get(header.topic) if members else None
    body: dict[str, Any] = {"group": header.group, "topic": header.topic}
    return reply(body=bodies.write(body if subscription is None else body | {"subscriptionData": subscription}))


@serves(RequestCode.QUERY_CORRECTION_OFFSET)
def query_correction(request: Request, context: Context) -> Answer:
    """Return for each queue id the least offset of the remaining groups. It is the greatest number if the offset of the
    compared group is lower.
    """
    header = request.header(CorrectionHeader)
    left_out = set((header.filter_groups or "").split(","))
    offsets = context.consumer_offsets
    least: dict[int, int] = {}
    for group in offsets.groups_of(header.topic):
        if group not in left_out:
            for queue_id, offset in offsets.of(group, header.topic).items():
                end = context.store.queues.end(header.topic, queue_id)
                if offset <= end:
                    least[queue_id] = min(offset, least.get(queue_id, NEVER))
    for queue_id, offset in offsets.of(header.compare_group, header.topic).items():
        if least.get(queue_id, NEVER) > offset:
            least[queue_id] = NEVER
    return reply(
        body=bodies.write({"correctionOffsets": {str(queue_id): offset for queue_id, offset in least.items()}})
    )


@serves(RequestCode.CLONE_GROUP_OFFSET)
def clone_offsets(request: Request, context: Context) -> Answer:
    """Copy the offsets of one group to another one, for a topic or for all topics."""
    header = request.header(CloneHeader)
    topics = [header.topic] if header.topic else context.consumer_offsets.topics_of(header.src_group)
    for topic in topics:
        if topic in context.topics and (header.offline or is_subscribed(context, header.src_group, topic)):
            context.consumer_offsets.clone(header.src_group, header.dest_group, topic)
    return reply()


@serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
def get_all_offsets(request: Request, context: Context) -> Answer:
    """Return the offsets of all groups in the form of consumerOffset.json."""
    return reply(body=bodies.write(context.consumer_offsets.table()))
