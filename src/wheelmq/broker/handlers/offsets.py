"""Offsets of groups in queues, and of the queues themselves (RocketMQ: ConsumerManageProcessor)."""

from __future__ import annotations

from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.broker.state.topics import QUEUES_MAX
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


@serves(RequestCode.QUERY_CONSUMER_OFFSET)
def query_consumer_offset(request: Request, context: Context) -> Answer:
    """Return the offset of a group in a queue."""
    header = request.header(QueryConsumerOffsetHeader)
    offset = context.consumer_offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is not None:
        return reply(offset=offset)
    queue = context.store.queues.find(header.topic, header.queue_id)
    if header.set_zero_if_not_found is not False and _begins_in_memory(context, queue):
        return reply(offset=0)
    remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    if header.set_zero_if_not_found is False:
        remark = "Not found, do not set to zero, maybe this group boot first"
    raise PeerError(ResponseCode.QUERY_NOT_FOUND, remark)


def _begins_in_memory(context: Context, queue: ConsumeQueue | None) -> bool:
    """Return whether a new group begins at 0: the queue has its first message, and it is near the end of the log.

    RocketMQ: DefaultMessageStore.checkInMemByConsumeOffset. Otherwise the client chooses its start. Both give the same
    offset in a queue that never had a message. RocketMQ makes the client ask again there.
    """
    if queue is None or queue.end == 0:
        return True
    if queue.skip_blanks(queue.start) > 0:
        return False
    position = int(queue.read(QueueOffset(0), 1)[0]["position"])
    return is_in_memory(context, position)


def is_in_memory(context: Context, position: int) -> bool:
    """Return whether a log position is near enough to the end of the log to count as in memory."""
    share = context.settings.consumers.in_memory_percent / 100
    return context.store.log.end - position <= memory.PHYSICAL_BYTES * share


@serves(RequestCode.UPDATE_CONSUMER_OFFSET)
def update_consumer_offset(request: Request, context: Context) -> Answer:
    """Commit the offset of a group in a queue."""
    header = request.header(UpdateConsumerOffsetHeader)
    if context.groups.known(header.consumer_group) is None:
        remark = f"Group {header.consumer_group} not exist!"
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if header.topic not in context.topics:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    if header.queue_id is None or header.commit_offset is None:
        missing = "QueueId" if header.queue_id is None else "Offset"
        raise PeerError(ResponseCode.INVALID_PARAMETER, f"{missing} is null, topic is {header.topic}")
    if not 0 <= header.queue_id < QUEUES_MAX:
        remark = f"queueId is {header.queue_id}: the highest queue of a topic is {QUEUES_MAX - 1}"
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    if context.consumer_offsets.has_reset(header.consumer_group, header.topic, header.queue_id):
        return reply(remark="Offset has been previously reset")
    context.consumer_offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return reply()


@serves(RequestCode.GET_MAX_OFFSET)
def get_max_offset(request: Request, context: Context) -> Answer:
    """Return the queue offset of the next message of a queue."""
    header = request.header(QueueHeader)
    queue = context.store.queues.find(header.topic, header.queue_id)
    return reply(offset=context.store.shown_end(queue) if queue else 0)


@serves(RequestCode.GET_MIN_OFFSET)
def get_min_offset(request: Request, context: Context) -> Answer:
    """Return the first queue offset that still exists."""
    header = request.header(QueueHeader)
    queue = context.store.queues.find(header.topic, header.queue_id)
    return reply(offset=queue.skip_blanks(queue.start) if queue else 0)


@serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
def get_earliest_store_time(request: Request, context: Context) -> Answer:
    """Return the store time of the first existing message of a queue, or -1 if there is none."""
    header = request.header(QueueHeader)
    return reply(timestamp=earliest_ms(context, header.topic, header.queue_id))


@serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
def search_offset(request: Request, context: Context) -> Answer:
    """Return the offset of the first message of a queue stored at or after a time (UPPER: of the last one at or
    before it)."""
    header = request.header(SearchOffsetHeader)
    upper = header.boundary_type.upper() == "UPPER"
    return reply(offset=offset_at(context, header.topic, header.queue_id, header.timestamp, upper=upper))


def offset_at(context: Context, topic: str, queue_id: int, at_ms: int, *, upper: bool = False) -> int:
    """Return the queue offset of the first message stored at or after a time, or the queue's end if all are older.

    With `upper`, return the last one stored at or before it, or the first one of the queue if all are younger.
    """
    queue = context.store.queues.find(topic, queue_id)
    if queue is None or queue.start == queue.end:
        return 0
    first = oldest = queue.skip_blanks(queue.start)
    behind = queue.end
    while first < behind:  # the first message stored at or after the time, or after it with `upper`
        middle = QueueOffset((first + behind) // 2)
        stored_ms = _store_ms(context, queue, middle)
        if stored_ms < at_ms or (upper and stored_ms == at_ms):
            first = QueueOffset(middle + 1)
        else:
            behind = middle
    return max(oldest, first - 1) if upper else first


def earliest_ms(context: Context, topic: str, queue_id: int) -> int:
    """Return the store time of a queue's first message in epoch milliseconds, or -1 without a message."""
    queue = context.store.queues.find(topic, queue_id)
    return -1 if queue is None else store_ms_at(context, topic, queue_id, queue.skip_blanks(queue.start))


def store_ms_at(context: Context, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time of a message in epoch milliseconds, or -1 without a message."""
    queue = context.store.queues.find(topic, queue_id)
    if queue is None or not queue.start <= offset < queue.end:
        return -1
    return _store_ms(context, queue, QueueOffset(offset)) or -1


def _store_ms(context: Context, queue: ConsumeQueue, offset: QueueOffset) -> int:
    unit = queue.read(offset, 1)[0]
    return context.store.log.record_store_ms(LogPosition(int(unit["position"]))) or 0
