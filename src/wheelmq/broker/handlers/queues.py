"""GET_TOPIC_STATS_INFO, QUERY_CONSUME_QUEUE: the content of queues."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.slices import Steps
from wheelmq.formats.disk.queue_unit import BLANK_SIZE
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.formats.wire import bodies, queue_tables
from wheelmq.formats.wire.bodies import QueueName, TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import ConsumeQueueHeader, TopicHeader
from wheelmq.store.consume_queue import ConsumeQueue

UNITS_MAX: Final = 1024
"""Greatest number of units in one answer."""


def topic_of(context: Context, topic: str) -> TopicConfig:
    config = context.topics.get(topic)
    if config is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    return config


def queue_name(context: Context, topic: str, queue_id: int) -> QueueName:
    return QueueName(broker_name=context.settings.broker.name, queue_id=queue_id, topic=topic)


def bounds(context: Context, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]:
    """Return the offsets of a queue's first message and of its next one, without the messages hidden after a start."""
    queue = context.store.queues.find(topic, queue_id)
    if queue is None:
        return QueueOffset(0), QueueOffset(0)
    return queue.skip_blanks(queue.start), context.store.shown_end(queue)


def stored_ms(context: Context, topic: str, queue_id: int, offset: int) -> Millis | None:
    queue = context.store.queues.find(topic, queue_id)
    if queue is None or not queue.start <= offset < queue.end:
        return None
    unit = queue.read(QueueOffset(offset), 1)[0]
    if unit["size"] == BLANK_SIZE:
        return None
    return context.store.log.record_store_ms(LogPosition(int(unit["position"])))


@serves(RequestCode.GET_TOPIC_STATS_INFO)
def get_topic_stats(request: Request, context: Context) -> Answer:
    """Return the bounds and the last store time of each queue of a topic, and the topic's messages per second."""
    config = topic_of(context, request.header(TopicHeader).topic)

    def steps() -> Steps:
        table = []
        for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
            first, end = bounds(context, config.topic_name, queue_id)
            last_ms = stored_ms(context, config.topic_name, queue_id, end - 1) or 0
            figures = {"lastUpdateTimestamp": last_ms, "maxOffset": end, "minOffset": first}
            table.append((queue_name(context, config.topic_name, queue_id), figures))
            yield
        tps = context.stats.put_tps(config.topic_name)
        return reply(body=queue_tables.write(topicPutTps=tps, offsetTable=dict(table)))

    return context.slices.answer(request, steps())


@serves(RequestCode.QUERY_CONSUME_QUEUE)
def query_queue(request: Request, context: Context) -> Answer:
    """Return units of a queue from an offset on, and the subscription of a connected group."""
    header = request.header(ConsumeQueueHeader)
    queue = context.store.queues.find(header.topic, header.queue_id)
    if queue is None or header.topic not in context.topics:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
    body: dict[str, Any] = {"minQueueIndex": queue.skip_blanks(queue.start), "maxQueueIndex": queue.end}
    if header.consumer_group is not None:
        body |= _wanted(context, header.consumer_group, header.topic)
    remark = None
    if queue.start <= header.index < queue.end:
        body["queueData"] = _units(queue, header)
    else:
        remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!"
        if header.index != queue.end:
            return reply(remark=remark)
    return reply(remark=remark, body=bodies.write(body))


def _wanted(context: Context, group: str, topic: str) -> dict[str, Any]:
    members = context.clients.consumers.get(group)
    subscription = members.subscriptions.get(topic) if members else None
    if subscription is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    known = context.consumer_filters.find(topic, group)
    data = "null" if known is None else msgspec.json.format(msgspec.json.encode(known.data)).decode()
    return {"subscriptionData": subscription, "filterData": data}


def _units(queue: ConsumeQueue, header: ConsumeQueueHeader) -> list[dict[str, Any]]:
    count = max(0, min(header.count, UNITS_MAX))
    return [
        {"eval": False, "physicOffset": position, "physicSize": size, "tagsCode": code}
        for position, size, code in queue.read(QueueOffset(header.index), count).tolist()
    ]
