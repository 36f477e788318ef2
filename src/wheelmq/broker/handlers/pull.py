"""PULL_MESSAGE, LITE_PULL_MESSAGE (RocketMQ: PullMessageProcessor, DefaultMessageStore.getMessage)."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any, Final, NamedTuple

from wheelmq.broker.answers import Answer, Deferred, PeerError
from wheelmq.broker.arrivals import is_of_a_tag
from wheelmq.broker.connection import Connection, peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.handlers.offsets import is_in_memory
from wheelmq.broker.holds import Wants
from wheelmq.broker.hook_contexts import pull_context
from wheelmq.broker.parsing import when_parsed
from wheelmq.broker.request import Request
from wheelmq.broker.state.consumer_filters import SQL92
from wheelmq.broker.subscriptions import EVERYTHING, Forbidden, MessageFilter, filter_of, forbidden
from wheelmq.formats.disk.message import RECORD_BYTES_MIN
from wheelmq.formats.disk.queue_unit import BLANK_SIZE, QUEUE_UNIT
from wheelmq.formats.names import may_always_pull
from wheelmq.formats.units import LogPosition, QueueOffset
from wheelmq.formats.wire.bodies import MASTER_ID, PERM_READ, GroupConfig, TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from wheelmq.store.commit_log import CommitLog, NoRecord
from wheelmq.store.consume_queue import Units

logger = logging.getLogger(__name__)

FILTER_S: Final = 0.01
"""Greatest time in seconds in which one pull evaluates an expression."""


class PullStatus(StrEnum):
    """The outcome of a queue read. Its name is the answer's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


_CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class Read(NamedTuple):
    status: PullStatus
    next_offset: int
    start: int
    end: int
    body: bytes = b""
    is_behind: bool = False
    """Whether the read lies before the part of the log that is in memory."""


@serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
def pull(request: Request, context: Context) -> Answer:
    """Return messages of a queue from an offset on. If there are none, hold the pull, if its client allows that.

    A held pull skips the messages that its filter does not match. Its last answer names the next offset.
    """
    text = request.ext.get("subscription", "") if request.ext.get("expressionType") == SQL92 else ""
    return when_parsed(request, context, [text], lambda: _pull(request, context))


def _pull(request: Request, context: Context) -> Answer:
    mine = _Pull(request, context)
    header = mine.header
    offsets = context.consumer_offsets
    if header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0 and not offsets.has_reset(*mine.queue):
        offsets.commit(*mine.queue, header.commit_offset)
    now = mine.attempt(last=not header.sys_flag & PULL_SUSPEND)
    return mine.hold(request) if now is None else now


class _Pull:
    """A pull that has no answer yet.

    Each attempt checks its permissions and its filter again (RocketMQ: processRequest by executeRequestWhenWakeup). The
    object keeps only the header of the request: hundreds of thousands may be held.
    """

    __slots__ = ("_code", "_connection", "_context", "_group", "_held_for", "_passed_to", "_row", "_topic", "_wanted",
                 "header", "queue")  # fmt: skip

    def __init__(self, request: Request, context: Context) -> None:
        self._code, self._connection = request.command.code, request.connection
        self._context = context
        self.header = header = request.header(PullHeader)
        self.queue = header.consumer_group, header.topic, header.queue_id
        self._held_for: MessageFilter | None = None
        """The filter with which the pull is held and found; None before it is held."""
        self._passed_to: int | None = None
        """No message before this queue offset matches that filter."""
        self._row = -1
        self._group, self._topic = _check(self._code, self._connection, header, context)
        self._wanted = filter_of(header, context, self._group)
        _check_is_registered(self._connection, header, context)

    def hold(self, request: Request) -> Deferred:
        """Hold the pull until a matching message comes. Raises PeerError if there is no room."""
        header, settings = self.header, self._context.settings
        self._held_for = self._wanted
        header.subscription = None  # it may be long, and is parsed already
        timeout_ms = (
            header.suspend_timeout_millis if settings.consumers.long_polling else settings.consumers.short_polling_ms
        )
        self._row = self._context.store.queues.row(header.topic, header.queue_id)
        wants = None if self._wanted == EVERYTHING else Wants(*self._wanted, self._go_to)
        return self._context.holds.wait(request, self._row, max(0, timeout_ms), self.attempt, wants)

    def _go_to(self, offset: int | None) -> None:
        if offset is not None:
            self._passed_to = offset
        elif not self._context.store.journal.count:  # else there may be units that no held pull has checked
            self._passed_to = self._context.store.shown_end(self._context.store.queues[self._row])

    def _reread(self) -> None:
        """Check again whether the pull may be answered. Raises PeerError."""
        header = self.header
        self._group, self._topic = _check(self._code, self._connection, header, self._context)
        if not header.sys_flag & PULL_SUBSCRIPTION:
            self._wanted = filter_of(header, self._context, self._group)
        _check_is_registered(self._connection, header, self._context)
        if self._passed_to is not None and self._wanted == self._held_for:
            header.queue_offset = max(header.queue_offset, self._passed_to)
        self._passed_to = None

    def attempt(self, last: bool) -> Command | None:
        """Return the answer, or None to wait. The last attempt always returns an answer."""
        is_held = self._held_for is not None
        if is_held:
            self._reread()
        header, context = self.header, self._context
        offsets = context.consumer_offsets
        reset = offsets.take_reset(*self.queue)
        found = self._read() if reset is None else _reset_to(context, header, reset)
        code = code_of(found.status, header.queue_offset)
        if found.status != PullStatus.FOUND:
            context.stats.note_pull(header.consumer_group, header.topic, 0, 0)
        if code == ResponseCode.PULL_NOT_FOUND and not last:
            return None
        is_at_end = found.status == PullStatus.NO_MATCHED_MESSAGE and found.next_offset == found.end
        if is_at_end and is_held and not last:
            header.queue_offset = found.next_offset
            return None
        if context.hooks.consume:
            context.hooks.before_consume(
                pull_context(self._connection, header, context.store.host, found.status, found.body)
            )
        offsets.note_pull(*self.queue, found.next_offset)
        return _answer(found, code, self._topic, self._group, context)

    def _read(self) -> Read:
        context = self._context
        begin_s = context.clock.monotonic()
        found = read_queue(context, self.header, self._wanted)
        context.stats.put_times.note_read(context.clock.monotonic() - begin_s)
        return found


def _check(code: int, connection: Connection, header: PullHeader, context: Context) -> tuple[GroupConfig, TopicConfig]:
    """Return the group and the topic, which both allow reads. Raises PeerError."""
    if not context.settings.broker.permission & PERM_READ:
        raise forbidden(Forbidden.BROKER, f"the broker[{context.settings.broker.ip}] pulling message is forbidden")
    if code == RequestCode.LITE_PULL_MESSAGE and not context.settings.consumers.lite_pull_enable:
        remark = f"the broker[{context.settings.broker.ip}] for lite pull consumer is forbidden"
        raise forbidden(Forbidden.BROKER, remark)
    group = context.groups.get(header.consumer_group)
    if group is None:
        remark = f"subscription group [{header.consumer_group}] does not exist"
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group.consume_enable:
        raise forbidden(Forbidden.GROUP, f"subscription group no permission, {header.consumer_group}")
    topic = context.topics.get(header.topic)
    if topic is None:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!")
    if not topic.perm & PERM_READ:
        raise forbidden(Forbidden.TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < topic.read_queue_nums:
        remark = (
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer_text(connection)}]"
        )
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    return group, topic


def _check_is_registered(connection: Connection, header: PullHeader, context: Context) -> None:
    """Reject pull consumers if the broker serves only push consumers. Raises PeerError."""
    if not context.settings.consumers.reject_pull_enable or may_always_pull(header.consumer_group):
        return
    members = context.clients.consumers.get(header.consumer_group)
    if members is not None and members.consume_type != "CONSUME_ACTIVELY":
        return
    if members is None or all(client.connection is not connection for client in members.clients.values()):
        remark = "the consumer's group info not exist, or the pull consumer is rejected by server."
        raise PeerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)


def _reset_to(context: Context, header: PullHeader, offset: int) -> Read:
    """Return the answer that sends a client to the offset to which its group was reset."""
    queue = context.store.queues.find(header.topic, header.queue_id)
    start, end = (queue.start, queue.end) if queue else (0, 0)
    return Read(PullStatus.OFFSET_RESET, offset, start, end)


def read_queue(context: Context, header: PullHeader, wanted: MessageFilter) -> Read:
    """Read from a queue the whole records that pass the filter."""
    queue = context.store.queues.find(header.topic, header.queue_id)
    asked = header.queue_offset
    if queue is None:
        return Read(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)  # Apache creates a queue when one is requested
    start, end = queue.start, context.store.shown_end(queue)
    if queue.end == 0:
        return Read(PullStatus.NO_MESSAGE_IN_QUEUE, 0, start, end)
    if asked < start:
        return Read(PullStatus.OFFSET_TOO_SMALL, queue.skip_blanks(start), start, end)
    if asked == end or end < asked <= queue.end:  # the rest is hidden after a start
        return Read(PullStatus.OFFSET_OVERFLOW_ONE, asked, start, end)
    if asked > end:
        return Read(PullStatus.OFFSET_OVERFLOW_BADLY, end, start, end)
    limits = context.settings.requests
    requested = max(1, header.max_msg_nums)
    count_max = min(requested, limits.transfer_count_max)
    bytes_max = min(header.max_msg_bytes or limits.transfer_bytes_max, limits.transfer_bytes_max)
    copied_max = count_max
    """The most messages that the kernel copies. It costs little for each; the plain code below keeps the limit."""
    if header.wmq_bytes_only and wanted == EVERYTHING:
        copied_max = max(count_max, min(requested, bytes_max // RECORD_BYTES_MIN))
    units = queue.read(QueueOffset(asked), min(_units_max(context, wanted, copied_max), end - asked))
    if units["size"][0] == BLANK_SIZE:
        return Read(PullStatus.OFFSET_TOO_SMALL, queue.skip_blanks(QueueOffset(asked)), start, end)
    log = context.store.log
    taken, body = log.gather_units(units, copied_max, bytes_max) if wanted == EVERYTHING else (0, b"")
    if taken:
        context.stats.note_pull(header.consumer_group, header.topic, taken, len(body))
        return Read(PullStatus.FOUND, asked + taken, start, end, body, _is_behind(context, units[taken - 1]))
    found, looked_at, removed = _select(context, units, wanted, count_max, bytes_max)
    next_offset = asked + looked_at
    is_behind = _is_behind(context, units[looked_at - 1])
    if not found:
        status = PullStatus.MESSAGE_WAS_REMOVING if removed else PullStatus.NO_MATCHED_MESSAGE
        return Read(status, next_offset, start, end, is_behind=is_behind)
    try:
        body = log.gather(found)
    except NoRecord:
        found = _readable(log, header, found)
        if not found:
            return Read(PullStatus.NO_MATCHED_MESSAGE, next_offset, start, end, is_behind=is_behind)
        body = log.gather(found)
    context.stats.note_pull(header.consumer_group, header.topic, len(found), len(body))
    return Read(PullStatus.FOUND, next_offset, start, end, body, is_behind)


def _is_behind(context: Context, unit: Any) -> bool:
    """Return whether the last unit lies before the log's part in memory. False unless slave reads are on."""
    return context.settings.consumers.slave_read_enable and not is_in_memory(context, int(unit["position"]))


def _units_max(context: Context, wanted: MessageFilter, count_max: int) -> int:
    """Return the number of units to check. With a filter it may exceed `count_max`, because most may not match."""
    if wanted == EVERYTHING:
        return count_max
    return max(count_max, -(-context.settings.consumers.filter_unit_bytes_max // QUEUE_UNIT.size))


def _select(
    context: Context, units: Units, wanted: MessageFilter, count_max: int, bytes_max: int
) -> tuple[list[tuple[LogPosition, int]], int, bool]:
    """Return the matching records, the number of checked units, and whether one names a record no longer in the log.

    Expressions and properties may be long. After `FILTER_S` the client must ask again.
    """
    log, clock = context.store.log, context.clock
    log_start, damaged = log.start, log.damaged
    codes, matches = wanted
    until_s = clock.monotonic() + FILTER_S
    found: list[tuple[LogPosition, int]] = []
    size_total = looked_at = 0
    removed = False
    for position, size, code in units.tolist():
        if size == BLANK_SIZE or (found and (size_total + size > bytes_max or len(found) == count_max)):
            break
        if matches is not None and looked_at and clock.monotonic() > until_s:
            break
        looked_at += 1
        if codes is not None and code not in codes and is_of_a_tag(code):
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


def _readable(
    log: CommitLog, header: PullHeader, units: list[tuple[LogPosition, int]]
) -> list[tuple[LogPosition, int]]:
    """Return the units that name a record. Log and skip the others."""
    good = [unit for unit in units if log.is_record(*unit)]
    logger.critical(
        "%d units of queue %d of topic %s, at or after queue offset %d, do not point to a record. Stop the broker "
        "and remove the queue's folder: the next start writes the queue again from the log",
        len(units) - len(good),
        header.queue_id,
        header.topic,
        header.queue_offset,
    )
    return good


def code_of(status: PullStatus, asked: int) -> ResponseCode:
    """Return the response code of a status. For a queue without messages it depends on the requested offset."""
    if status in (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_NOT_FOUND if asked == 0 else ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


def _answer(found: Read, code: ResponseCode, topic: TopicConfig, group: GroupConfig, context: Context) -> Command:
    broker_id = MASTER_ID
    if context.settings.consumers.slave_read_enable:
        broker_id = group.which_broker_when_consume_slowly if found.is_behind else group.broker_id
    ext = {
        "suggestWhichBrokerId": str(broker_id),
        "nextBeginOffset": str(found.next_offset),
        "minOffset": str(found.start),
        "maxOffset": str(found.end),
        "topicSysFlag": str(topic.topic_sys_flag),
        "groupSysFlag": str(group.group_sys_flag),
    }
    return Command(code=int(code), ext=ext, remark=found.status.value, body=found.body)
