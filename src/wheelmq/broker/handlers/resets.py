"""INVOKE_BROKER_TO_RESET_OFFSET: move a group's offsets in a topic (RocketMQ: AdminBrokerProcessor.resetOffset).

By default the broker records the new offsets, as Apache RocketMQ 5 does. The answer to its next pull moves a client to
them, and its earlier commits are ignored. With useServerSideResetOffset=false the broker notifies the clients, as those
before 5.0 expect. Then at least one must be connected.
"""

from __future__ import annotations

import logging

import msgspec

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.handlers.offsets import offset_at
from wheelmq.broker.handlers.relay import VERSION_WITH_OFFSETS, check_versions
from wheelmq.broker.request import Request
from wheelmq.formats.wire import queue_tables
from wheelmq.formats.wire.bodies import QueueName, TopicConfig
from wheelmq.formats.wire.client_calls import ResetOffsetHeader
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import texts

log = logging.getLogger(__name__)


@serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
def reset_offset(request: Request, context: Context) -> Answer:
    """Reset the offsets of a group. The answer has the new offsets."""
    header = request.header(ResetOffsetHeader)
    log.info("%s resets offsets: %s", peer_text(request.connection), header)
    topic = context.topics.get(header.topic)
    if topic is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
    if context.settings.consumers.reset_on_broker:
        offsets = _reset_here(context, header, topic)
    else:
        offsets = _notify_clients(context, header, topic, in_cpp=request.command.language == "CPP")
    name = context.settings.broker.name
    table = {QueueName(broker_name=name, queue_id=i, topic=header.topic): offset for i, offset in offsets.items()}
    return reply(body=queue_tables.write(offsetTable=table))


def _reset_here(context: Context, header: ResetOffsetHeader, topic: TopicConfig) -> dict[int, int]:
    if not context.role.is_master:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
    if context.groups.known(header.group) is None:
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist")
    if header.queue_id >= topic.read_queue_nums:
        remark = f"queueId is {header.queue_id}: the topic {header.topic} has {topic.read_queue_nums} read queues"
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    if header.queue_id < 0:
        offsets = {i: _offset_by_time(context, header, i) for i in range(topic.read_queue_nums)}
    elif header.offset in (None, -1):
        offsets = {header.queue_id: _offset_by_time(context, header, header.queue_id)}
    else:
        offsets = {header.queue_id: _checked(context, header)}
    if not offsets:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
    for queue_id, offset in offsets.items():
        context.consumer_offsets.reset(header.group, header.topic, queue_id, offset)
        context.holds.wake(context.store.queues.row(header.topic, queue_id))
    return offsets


def _checked(context: Context, header: ResetOffsetHeader) -> int:
    """Return the requested queue offset. Raises PeerError if the queue does not have it."""
    offset = header.offset or 0
    queue = context.store.queues.find(header.topic, header.queue_id)
    first, end = (queue.skip_blanks(queue.start), queue.end) if queue else (0, 0)
    if not first <= offset <= end:
        remark = f"Target offset {offset} not in consume queue range [{first}-{end}]"
        raise PeerError(ResponseCode.SYSTEM_ERROR, remark)
    return offset


def _offset_by_time(context: Context, header: ResetOffsetHeader, queue_id: int) -> int:
    if header.timestamp < 0:
        return context.store.queues.end(header.topic, queue_id)
    return offset_at(context, header.topic, queue_id, header.timestamp)


def _notify_clients(context: Context, header: ResetOffsetHeader, topic: TopicConfig, *, in_cpp: bool) -> dict[int, int]:
    """Notify the clients of the group to set their offsets. The answer does not wait for them."""
    offsets = {}
    for queue_id in range(topic.write_queue_nums):
        committed = context.consumer_offsets.get(header.group, header.topic, queue_id)
        if committed is None:
            raise PeerError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        wanted = _offset_by_time(context, header, queue_id)
        offsets[queue_id] = wanted if header.is_force else min(wanted, committed)
    group = context.clients.consumers.get(header.group)
    if group is None:
        remark = (
            f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic} "
            f"Timestamp: {header.timestamp}"
        )
        raise PeerError(ResponseCode.CONSUMER_NOT_ONLINE, remark)
    clients = list(group.clients.values())
    check_versions(clients, VERSION_WITH_OFFSETS)
    ext = texts(topic=header.topic, group=header.group, timestamp=header.timestamp, queueId=-1, isForce=False)
    body = _body(context, header.topic, offsets, in_cpp=in_cpp)
    for connection in {id(client.connection): client.connection for client in clients}.values():
        context.calls.send_oneway(
            connection, Command(code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext=dict(ext), body=body)
        )
    return offsets


def _body(context: Context, topic: str, offsets: dict[int, int], *, in_cpp: bool) -> bytes:
    """Return the offsets in the form that clients read. C++ clients read a list (RocketMQ: ResetOffsetBodyForC)."""
    name = context.settings.broker.name
    if in_cpp:
        listed = [
            {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": topic}
            for queue_id, offset in offsets.items()
        ]
        return msgspec.json.encode({"offsetTable": listed})
    table = {QueueName(broker_name=name, queue_id=i, topic=topic): offset for i, offset in offsets.items()}
    return queue_tables.write(offsetTable=table)
