"""Offsets: of a group in a queue, and of the queues themselves (RocketMQ: ConsumerManageProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wheelmq.broker.dispatch import serves
from wheelmq.broker.request import Answer, PeerError, Request, reply
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import (
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from wheelmq.store.consume_queue import ConsumeQueue
from wheelmq.system import memory

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker


IN_MEMORY_SHARE: Final = 0.4
"""Share of the machine's memory that the end of the log is taken to have (RocketMQ: accessMessageInMemoryMaxRatio)."""


@serves(RequestCode.QUERY_CONSUMER_OFFSET)
def query_consumer_offset(request: Request, broker: Broker) -> Answer:
    """How far a group has come in a queue."""
    header = request.header(QueryConsumerOffsetHeader)
    offset = broker.consumer_offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is not None:
        return reply(offset=offset)
    queue = broker.store.queues.find(header.topic, header.queue_id)
    if header.set_zero_if_not_found is not False and _begins_in_memory(broker, queue):
        return reply(offset=0)
    raise PeerError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")


def _begins_in_memory(broker: Broker, queue: ConsumeQueue | None) -> bool:
    """Whether a new group begins at 0: the queue has its first message, and that is near enough to the log's end.

    Near as RocketMQ has it (DefaultMessageStore.checkInMemByConsumeOffset): else the group's client decides where to
    begin. In a queue that never had a message both are the same; RocketMQ has the client ask once more.
    """
    if queue is None or queue.end == 0:
        return True
    if queue.skip_blanks(queue.start) > 0:
        return False
    position = int(queue.read(QueueOffset(0), 1)[0]["position"])
    return broker.store.log.end - position < memory.PHYSICAL_BYTES * IN_MEMORY_SHARE


@serves(RequestCode.UPDATE_CONSUMER_OFFSET)
def update_consumer_offset(request: Request, broker: Broker) -> Answer:
    """A group has come further."""
    header = request.header(UpdateConsumerOffsetHeader)
    if broker.groups.get(header.consumer_group) is None:
        remark = f"Group {header.consumer_group} not exist!"
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if header.topic not in broker.topics:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    broker.consumer_offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return reply()


@serves(RequestCode.GET_MAX_OFFSET)
def get_max_offset(request: Request, broker: Broker) -> Answer:
    """The queue offset that the next message of a queue gets."""
    header = request.header(QueueHeader)
    queue = broker.store.queues.find(header.topic, header.queue_id)
    return reply(offset=queue.end if queue else 0)


@serves(RequestCode.GET_MIN_OFFSET)
def get_min_offset(request: Request, broker: Broker) -> Answer:
    """The first queue offset that is still there."""
    header = request.header(QueueHeader)
    queue = broker.store.queues.find(header.topic, header.queue_id)
    return reply(offset=queue.skip_blanks(queue.start) if queue else 0)


@serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
def search_offset(request: Request, broker: Broker) -> Answer:
    """The first message of a queue stored at or after a time (UPPER: the last one at or before it)."""
    header = request.header(SearchOffsetHeader)
    queue = broker.store.queues.find(header.topic, header.queue_id)
    if queue is None or queue.start == queue.end:
        return reply(offset=0)
    upper = header.boundary_type == "UPPER"
    first = oldest = queue.skip_blanks(queue.start)
    behind = queue.end
    while first < behind:  # the first message stored at or after the time, for UPPER after it
        middle = QueueOffset((first + behind) // 2)
        stored_ms = _store_ms(broker, queue, middle)
        if stored_ms < header.timestamp or (upper and stored_ms == header.timestamp):
            first = QueueOffset(middle + 1)
        else:
            behind = middle
    return reply(offset=max(oldest, first - 1) if upper else first)


def _store_ms(broker: Broker, queue: ConsumeQueue, offset: QueueOffset) -> int:
    unit = queue.read(offset, 1)[0]
    return broker.store.log.record_store_ms(LogPosition(int(unit["position"]))) or 0
