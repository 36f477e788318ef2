"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE (RocketMQ: SendMessageProcessor)."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, Given, Known, PeerError, when_known
from wheelmq.broker.connection import peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import HandlerTable
from wheelmq.broker.hook_contexts import send_context
from wheelmq.broker.puts import check_writable, recall_handle
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import check_place, when_topic_saved
from wheelmq.broker.transactions.halves import half_of
from wheelmq.delay.blocks.park import SecondsRejected, asked_due_ms
from wheelmq.delay.park import LevelUnreadable
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_MULTI_TAGS, SYS_TRANSACTION, Message
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.disk.origin import block_stream, origin_of
from wheelmq.formats.java import java_boolean, java_int
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import PERM_WRITE, TOPIC_UNIT, TOPIC_UNIT_SUB, TopicConfig
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import VERSION_WITH_MAX_TIMES, SendHeader
from wheelmq.formats.wire.headers.sending import BATCH_HEAD
from wheelmq.system.unique_ids import UniqueIds

HANDLERS: Final[HandlerTable[[Context, UniqueIds]]] = HandlerTable()


@HANDLERS.serves(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
def send(request: Request, context: Context, unique_ids: UniqueIds) -> Answer:
    """Store a message or a batch, and answer with ids and queue offset."""
    code = request.command.code
    header = (
        request.header(SendHeader) if code == RequestCode.SEND_MESSAGE else headers.read_send_v2(request.command.ext)
    )
    if context.hooks.send or context.hooks.authorities:
        return _send_with_hooks(request, context, unique_ids, header)
    return when_topic_saved(request, context, lambda: _send(request, context, unique_ids, header))


def _send_with_hooks(request: Request, context: Context, unique_ids: UniqueIds, header: SendHeader) -> Answer:
    hooks, region = context.hooks, context.settings.broker.region_id
    seen = send_context(request, header, context.store.host, region, context.clock.now_ms())

    def sent(known: Known) -> Command | None:
        """Call the hooks with the answer. Raises the exception of the send, except a PeerError."""
        answer = Command(code=known.code, remark=known.remark) if isinstance(known, PeerError) else known
        hooks.after_send(seen, None if isinstance(answer, Exception) else answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    given: Given
    try:
        hooks.before_send(seen)
        hooks.check_topic(seen.born_host, seen.producer_group, seen.topic)
        given = when_topic_saved(request, context, lambda: _send(request, context, unique_ids, header))
    except Exception as error:
        given = error
    return when_known(given, sent)


def _send(request: Request, context: Context, unique_ids: UniqueIds, header: SendHeader) -> Answer:
    if not request.command.body:
        raise PeerError(ResponseCode.SYSTEM_ERROR, "the message has no body")
    try:
        context.admission.check_open()
        topic = check_topic(request, context, header)
        if header.batch:  # the request code alone does not make a batch
            return _send_batch(request, context, unique_ids, header, topic)
        return _send_one(request, context, unique_ids, header, topic)
    except PutFailed as failed:
        answer = context.failed_puts.answer(failed)
    except PeerError as rejection:
        answer = Command(code=rejection.code, remark=rejection.remark)
    answer.ext = region_and_trace(context)
    return answer


def check_topic(request: Request, context: Context, header: SendHeader) -> TopicConfig:
    """Return the topic of a send, created if that is allowed. Raises PeerError."""
    known = context.topics.get(header.topic)
    if known is not None and known.order:
        check_writable(context.settings)
    problem = names.topic_problem(header.topic)
    if problem is not None:
        raise PeerError(ResponseCode.INVALID_PARAMETER, problem)
    if header.topic in names.NOT_FOR_SENDING:
        raise PeerError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden.")
    topic = known
    is_retry = header.topic.startswith(names.RETRY_PREFIX)
    sys_flag = (TOPIC_UNIT_SUB if is_retry else TOPIC_UNIT) if header.unit_mode else 0
    if topic is None:
        try:
            queues = header.default_topic_queue_nums
            topic = context.topics.create_for_send(header.topic, header.default_topic, queues, sys_flag)
        except ValueError as error:
            raise PeerError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if topic is None and is_retry:
        topic = context.topics.create_for_group(header.topic, 1, sys_flag)
    if topic is None:
        remark = f"topic[{header.topic}] not exist, apply first please!"
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, remark)
    if not topic.perm & PERM_WRITE:
        raise PeerError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] sending message is forbidden")
    if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
        remark = (
            f"request queueId[{header.queue_id}] is illegal, {topic.text()} Producer: {peer_text(request.connection)}"
        )
        raise PeerError(ResponseCode.INVALID_PARAMETER, remark)
    return topic


def _send_one(
    request: Request, context: Context, unique_ids: UniqueIds, header: SendHeader, topic: TopicConfig
) -> Answer:
    body = request.body
    _check_body(context, body)
    properties = props.parse(header.properties)
    properties.pop(props.POP_CK, None)
    if props.INNER_NUM in properties:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL)
    message = _message(request, context, unique_ids, header, topic, body, properties)
    asked_queue = message.queue_id
    is_dead = message.topic.startswith(names.RETRY_PREFIX) and _redirect_if_spent(request, context, header, message)
    is_half = _is_half(header, message)
    check_place(context, message.topic, message.queue_id, opens_queue=not is_half)
    if is_half:
        return _send_half(request, context, message, asked_queue)
    due_ms = _block_due_ms(context, message, request.waits_since_ms)
    if due_ms is not None:
        return _send_to_block(request, context, message, due_ms)
    appended, cancelled = context.puts.put(message, request.waits_since_ms)
    if is_dead:
        real_topic = message.properties.get(props.RETRY_TOPIC, header.topic)
        context.stats.note_dead_letter(header.topic.removeprefix(names.RETRY_PREFIX), real_topic)
    answer = Command(code=ResponseCode.SUCCESS)
    answer.ext = region_and_trace(context) | headers.texts(
        msgId=offset_message_id(context.store.host, appended.position),
        queueId=asked_queue,
        queueOffset=appended.queue_offset,
        transactionId=message.properties[props.UNIQ_KEY],
        recallHandle=recall_handle(context.settings.broker.name, message),
        cancelResult=cancelled,
    )
    return context.puts.answer_when_stored(request, message, answer, LogPosition(appended.position + appended.size))


def _is_half(header: SendHeader, message: Message) -> bool:
    """Return whether `message` is a half message. One that a consumer sends back is not, even with the property."""
    properties = message.properties
    is_given_back = header.reconsume_times > 0 and (java_int(properties.get(props.DELAY, "0")) or 0) > 0
    return java_boolean(properties.get(props.TRAN_MSG)) and not is_given_back


def _send_half(request: Request, context: Context, message: Message, asked_queue: int) -> Answer:
    """Store `message` as a half message. The answer contains its place. Raises PeerError, PutFailed."""
    if context.settings.transactions.reject:
        remark = f"the broker[{context.settings.broker.ip}] sending transaction message is forbidden"
        raise PeerError(ResponseCode.NO_PERMISSION, remark)
    if _block_due_ms(context, message) is not None:
        raise PeerError(ResponseCode.MESSAGE_ILLEGAL, "a transactional message cannot have delayInSeconds")
    half = half_of(message)
    context.puts.check_delay(message, half)
    appended = context.puts.put_half(half)
    answer = Command(code=ResponseCode.SUCCESS)
    answer.ext = region_and_trace(context) | headers.texts(
        msgId=offset_message_id(context.store.host, appended.position),
        queueId=asked_queue,
        queueOffset=appended.queue_offset,
        transactionId=message.properties[props.UNIQ_KEY],
    )
    return context.puts.answer_when_stored(request, half, answer, LogPosition(appended.position + appended.size))


def _block_due_ms(context: Context, message: Message, asked_ms: Millis | None = None) -> Millis | None:
    """Return the due time by `delayInSeconds`, or None without such a delay or if it passed while the send waited.

    `asked_ms` is the arrival time of the send if it had to wait. Raises PeerError.
    """
    if not context.settings.blocks.enable:
        return None
    now_ms = context.clock.now_ms()
    try:
        due_ms = asked_due_ms(
            message, now_ms if asked_ms is None else asked_ms, context.settings.blocks.max_delay_seconds
        )
        return due_ms if due_ms is not None and due_ms > now_ms else None
    except SecondsRejected as error:
        raise PeerError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    except LevelUnreadable as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None


def _send_to_block(request: Request, context: Context, message: Message, due_ms: Millis) -> Answer:
    """Store a message in a block. The answer contains its origin in place of a log position."""
    waits = context.puts.waits(request, message)
    asked_queue = message.queue_id
    stored = context.puts.put_in_block(message, due_ms)
    answer = Command(code=ResponseCode.SUCCESS)
    answer.ext = region_and_trace(context) | headers.texts(
        msgId=offset_message_id(context.store.host, LogPosition(origin_of(block_stream(stored.number), stored.index))),
        queueId=asked_queue,
        queueOffset=stored.index,
        transactionId=message.properties[props.UNIQ_KEY],
    )
    return context.puts.answer_when_in_block(answer, stored) if waits else answer


def _send_batch(
    request: Request, context: Context, unique_ids: UniqueIds, header: SendHeader, topic: TopicConfig
) -> Answer:
    if header.topic.startswith(names.RETRY_PREFIX):
        remark = f"batch request does not support retry group {header.topic}"
        raise PeerError(ResponseCode.MESSAGE_ILLEGAL, remark)
    body = request.body
    _check_body(context, body)
    shared = props.parse(header.properties)
    level = java_int(shared.get(props.DELAY, "0"))
    if level is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"{props.DELAY} is {shared[props.DELAY]!r}: write a whole number")
    if level > 0 or header.sys_flag & SYS_TRANSACTION:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL, "a batch cannot be delayed or transactional")
    queue_id = _pick_queue(context, header, topic)
    messages = []
    try:
        inner = split_batch(body)
    except ValueError as error:
        raise PeerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    for flag, inner_body, inner_properties in inner:
        properties = {**inner_properties, **shared}
        message = _message(request, context, unique_ids, header, topic, inner_body, properties)
        message.flag, message.queue_id = flag, queue_id
        for name in (*props.OWN, *props.TIMER_REQUESTS, props.DELAY, props.DELAY_IN_SECONDS):
            message.properties.pop(name, None)  # a batch is never delayed
        messages.append(message)
    check_place(context, header.topic, queue_id)
    appended = context.puts.put_batch(messages)
    answer = Command(code=ResponseCode.SUCCESS)
    answer.ext = region_and_trace(context) | headers.texts(
        msgId=",".join(offset_message_id(context.store.host, one.position) for one in appended),
        queueId=queue_id,
        queueOffset=appended[0].queue_offset,
        transactionId=shared.get(props.UNIQ_KEY),
    )
    end = LogPosition(appended[-1].position + appended[-1].size)
    return context.puts.answer_when_stored(request, messages[0], answer, end)


def split_batch(body: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
    """Return flag, body and properties of each message in a batch. Raises ValueError if a size is wrong.

    Each message is: size 4, magic 4, body crc 4, flag 4, body length 4, body, properties length 2, properties. The size
    is ignored, as in Apache RocketMQ: the inner lengths define the end of the message.
    """
    found = []
    at = 0
    while at < len(body):
        if at + BATCH_HEAD.size + 2 > len(body):
            raise ValueError(f"batch: {len(body) - at} bytes remain at byte {at}, too few for a message")
        _, _, _, flag, body_size = BATCH_HEAD.unpack_from(body, at)
        properties_at = at + BATCH_HEAD.size + body_size
        if body_size < 0 or properties_at + 2 > len(body):
            raise ValueError(f"batch: the message at byte {at} has a body of {body_size} bytes")
        properties_size = int.from_bytes(body[properties_at : properties_at + 2], "big", signed=True)
        end = properties_at + 2 + properties_size
        if properties_size < 0 or end > len(body):
            raise ValueError(f"batch: the message at byte {at} has {properties_size} bytes of properties")
        text = body[properties_at + 2 : end].decode("utf-8", "replace")
        found.append((flag, body[at + BATCH_HEAD.size : properties_at], props.parse(text)))
        at = end
    return found


def _message(
    request: Request,
    context: Context,
    unique_ids: UniqueIds,
    header: SendHeader,
    topic: TopicConfig,
    body: bytes,
    properties: dict[str, str],
) -> Message:
    settings = context.settings
    properties[props.MSG_REGION] = settings.broker.region_id
    properties[props.TRACE_ON] = "true" if settings.broker.trace_on else "false"
    if not properties.get(props.UNIQ_KEY):
        properties[props.UNIQ_KEY] = unique_ids.next()
    properties[props.CLUSTER] = settings.broker.cluster
    return Message(
        topic=header.topic,
        queue_id=_pick_queue(context, header, topic),
        body=body,
        properties=properties,
        flag=header.flag,
        sys_flag=header.sys_flag | (SYS_MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0),
        born_ms=Millis(header.born_timestamp),
        born_host=request.connection.peer,
        reconsume_times=header.reconsume_times,
    )


def _pick_queue(context: Context, header: SendHeader, topic: TopicConfig) -> int:
    return header.queue_id if header.queue_id >= 0 else context.randomness.randrange(max(1, topic.write_queue_nums))


def _redirect_if_spent(request: Request, context: Context, header: SendHeader, message: Message) -> bool:
    """Make a message a dead letter if it was retried too often or its group consumes in order.

    Returns whether it is one now. Raises PeerError.
    """
    group_name = header.topic.removeprefix(names.RETRY_PREFIX)
    group = context.groups.get(group_name)
    if group is None:
        remark = f"subscription group not exist, {group_name}"
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    most = group.retry_max_times
    if request.command.version >= VERSION_WITH_MAX_TIMES and header.max_reconsume_times is not None:
        most = header.max_reconsume_times
    in_order = context.locks.any_held(group_name, context.clock.monotonic_ms())
    is_dead = header.reconsume_times > most or in_order
    if is_dead:
        dead = context.topics.create_for_group(names.dead_letter_topic(group_name), 1)
        message.topic, message.queue_id = dead.topic_name, 0
        message.properties[props.DELAY] = "-1"
    return is_dead


def _check_body(context: Context, body: bytes) -> None:
    if len(body) > context.settings.requests.body_bytes_max:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL)


def region_and_trace(context: Context) -> dict[str, str]:
    return {
        props.MSG_REGION: context.settings.broker.region_id,
        props.TRACE_ON: "true" if context.settings.broker.trace_on else "false",
    }
