"""PULL_MESSAGE, LITE_PULL_MESSAGE (RocketMQ: PullMessageProcessor, DefaultMessageStore.getMessage)."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from wheelmq.broker.dispatch import serves
from wheelmq.broker.hook_contexts import pull_context
from wheelmq.broker.request import Answer, Hold, PeerError, Request, reply
from wheelmq.broker.subscriptions import EVERYTHING, MessageFilter, filter_of
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire.bodies import PERM_READ, GroupConfig, TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullHeader
from wheelmq.store.commit_log import CommitLog, NoRecord
from wheelmq.store.consume_queue import Units

if TYPE_CHECKING:
    from wheelmq.broker.broker import Broker

logger = logging.getLogger(__name__)


TAG_CODES_END = 1 << 31
"""A code beyond 32 bits stands for something else than a tag, and passes (RocketMQ: CqUnit.isTagsCodeValid)."""


class Status(StrEnum):
    """How a read of a queue went; the name is the answer's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


_CODES = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    Status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Status.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class Read(NamedTuple):
    """What a read of a queue gave."""

    status: Status
    next_offset: int
    start: int
    end: int
    body: bytes = b""


@serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
def pull(request: Request, broker: Broker) -> Answer:
    """Messages of a queue from an offset on; held when there are none and the client allows that.

    A held pull has passed over the messages that its filter does not want: its last answer names where it stands.
    """
    header = request.header(PullHeader)
    group, topic = _check(header, broker)
    wanted = filter_of(header, broker, group)
    if header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
        broker.consumer_offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    is_held = False

    def attempt(last: bool) -> Command | None:
        found = read_queue(broker, header, wanted)
        code = _code(found.status, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and not last:
            return None
        if found.status == Status.NO_MATCHED_MESSAGE and found.next_offset == found.end and is_held and not last:
            header.queue_offset = found.next_offset
            return None
        if broker.hooks.consume:
            broker.hooks.before_consume(pull_context(request, broker, header, found.status, found.body))
        return _answer(found, code, topic, group)

    now = attempt(False)
    if now is not None:
        return now
    if not header.sys_flag & PULL_SUSPEND:
        return attempt(True)
    timeout_ms = header.suspend_timeout_millis if broker.settings.long_polling else broker.settings.short_polling_ms
    row = broker.store.queues.row(header.topic, header.queue_id)
    is_held = True
    return Hold(row, max(0, timeout_ms), attempt)


def _check(header: PullHeader, broker: Broker) -> tuple[GroupConfig, TopicConfig]:
    if not broker.settings.broker_permission & PERM_READ:
        raise PeerError(
            ResponseCode.NO_PERMISSION, f"the broker[{broker.settings.broker_ip}] pulling message is forbidden"
        )
    group = broker.groups.get(header.consumer_group)
    if group is None:
        remark = f"subscription group [{header.consumer_group}] does not exist"
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group.consume_enable:
        remark = f"subscription group no permission, {header.consumer_group}"
        raise PeerError(ResponseCode.NO_PERMISSION, remark)
    topic = broker.topics.get(header.topic)
    if topic is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
    if not topic.perm & PERM_READ:
        raise PeerError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
        )
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    return group, topic


def read_queue(broker: Broker, header: PullHeader, wanted: MessageFilter) -> Read:
    """Read a queue: whole records, end to end, that pass the filter."""
    queue = broker.store.queues.find(header.topic, header.queue_id)
    asked = header.queue_offset
    if queue is None:
        return Read(Status.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    start, end = queue.start, queue.end
    if end == 0:
        return Read(Status.NO_MESSAGE_IN_QUEUE, 0, start, end)
    if asked < start:
        return Read(Status.OFFSET_TOO_SMALL, queue.skip_blanks(start), start, end)
    if asked == end:
        return Read(Status.OFFSET_OVERFLOW_ONE, asked, start, end)
    if asked > end:
        return Read(Status.OFFSET_OVERFLOW_BADLY, end, start, end)
    count_max = min(max(1, header.max_msg_nums), broker.settings.transfer_count_max)
    bytes_max = min(header.max_msg_bytes or broker.settings.transfer_bytes_max, broker.settings.transfer_bytes_max)
    units = queue.read(QueueOffset(asked), _units_max(broker, wanted, count_max))
    if units["size"][0] == BLANK_SIZE:
        return Read(Status.OFFSET_TOO_SMALL, queue.skip_blanks(QueueOffset(asked)), start, end)
    log = broker.store.log
    taken, body = log.gather_units(units, count_max, bytes_max) if wanted == EVERYTHING else (0, b"")
    if taken:
        broker.transferred += taken
        return Read(Status.FOUND, asked + taken, start, end, body)
    found, looked_at, removed = _select(log, units, wanted, count_max, bytes_max)
    next_offset = asked + looked_at
    if not found:
        status = Status.MESSAGE_WAS_REMOVING if removed else Status.NO_MATCHED_MESSAGE
        return Read(status, next_offset, start, end)
    try:
        body = log.gather(found)
    except NoRecord:
        found = _told(log, header, found)
        if not found:
            return Read(Status.NO_MATCHED_MESSAGE, next_offset, start, end)
        body = log.gather(found)
    broker.transferred += len(found)
    return Read(Status.FOUND, next_offset, start, end, body)


def _units_max(broker: Broker, wanted: MessageFilter, count_max: int) -> int:
    """How many units are looked at: with a filter more than are given, as most may not match."""
    if wanted == EVERYTHING:
        return count_max
    return max(count_max, -(-broker.settings.max_filter_message_size // QUEUE_UNIT.size))


def _select(
    log: CommitLog, units: Units, wanted: MessageFilter, count_max: int, bytes_max: int
) -> tuple[list[tuple[LogPosition, int]], int, bool]:
    """The records that pass; how many units were looked at; whether one names a record that is gone from the log."""
    log_start, damaged = log.start, log.damaged
    codes, matches = wanted
    found: list[tuple[LogPosition, int]] = []
    size_total = looked_at = 0
    removed = False
    for position, size, code in units.tolist():
        if size == BLANK_SIZE or (found and (size_total + size > bytes_max or len(found) == count_max)):
            break
        looked_at += 1
        if codes is not None and code not in codes and -TAG_CODES_END <= code < TAG_CODES_END:
            continue
        if position < log_start:
            removed = True
            continue
        if damaged and position in damaged:
            continue
        if matches is not None:
            properties = log.properties_at(position, size)
            if properties is not None and not matches(properties):
                continue
        found.append((position, size))
        size_total += size
    return found, looked_at, removed


def _told(log: CommitLog, header: PullHeader, units: list[tuple[LogPosition, int]]) -> list[tuple[LogPosition, int]]:
    """The units that name a record; the others are told of and passed over."""
    good = [unit for unit in units if log.is_record(*unit)]
    logger.critical(
        "%d units of queue %d of topic %s, at or behind queue offset %d, name no record: stop the broker and remove "
        "the queue's folder, it is made anew from the log",
        len(units) - len(good),
        header.queue_id,
        header.topic,
        header.queue_offset,
    )
    return good


def _code(status: Status, asked: int) -> ResponseCode:
    if status in (Status.NO_MATCHED_LOGIC_QUEUE, Status.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_NOT_FOUND if asked == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def _answer(found: Read, code: ResponseCode, topic: TopicConfig, group: GroupConfig) -> Command:
    return reply(
        code,
        found.status.value,
        found.body,
        suggestWhichBrokerId=0,
        nextBeginOffset=found.next_offset,
        minOffset=found.start,
        maxOffset=found.end,
        topicSysFlag=topic.topic_sys_flag,
        groupSysFlag=group.group_sys_flag,
    )
