"""CONSUMER_SEND_MSG_BACK: redelivery of a message that a consumer could not process (RocketMQ: same name)."""

from __future__ import annotations

from typing import Final

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.hook_contexts import send_back_context
from wheelmq.broker.puts import check_writable
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import check_place, when_topic_saved
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.bodies import PERM_WRITE, TOPIC_UNIT_SUB
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import VERSION_WITH_MAX_TIMES, SendBackHeader

_FIRST_LEVEL = 3
TIMES_MAX: Final = (1 << 31) - 1
"""Greatest number that fits the record's field. Senders may give any number."""


@serves(RequestCode.CONSUMER_SEND_MSG_BACK)
def send_back(request: Request, context: Context) -> Answer:
    """Store the message again in the group's retry topic, delayed, or in its dead-letter topic."""
    return when_topic_saved(request, context, lambda: _send_back(request, context))


def _send_back(request: Request, context: Context) -> Answer:
    """Raises PeerError, PutFailed, TopicUnsaved and QueueUnopened."""
    header = request.header(SendBackHeader)
    group = context.groups.get(header.group)
    if group is None:
        raise PeerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}")
    check_writable(context.settings)
    if group.retry_queue_nums <= 0:
        return reply()
    sys_flag = TOPIC_UNIT_SUB if header.unit_mode else 0
    topic = context.topics.create_for_group(names.retry_topic(header.group), group.retry_queue_nums, sys_flag)
    if not topic.perm & PERM_WRITE:
        remark = f"the topic[{topic.topic_name}] sending message is forbidden"
        raise PeerError(ResponseCode.NO_PERMISSION, remark)
    record = context.store.log.record_at(LogPosition(header.offset))
    if record is None:
        raise PeerError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    old = record.message
    properties = dict(old.properties)
    properties.setdefault(props.RETRY_TOPIC, old.topic)
    properties.setdefault(props.ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.position))
    for name in (props.TIMER_OUT_MS, *props.TIMER_REQUESTS):
        properties.pop(name, None)  # they asked for the delivery that has happened
    most = group.retry_max_times
    if request.command.version >= VERSION_WITH_MAX_TIMES and header.max_reconsume_times is not None:
        most = header.max_reconsume_times
    queue_id = context.randomness.randrange(group.retry_queue_nums)
    is_dead = old.reconsume_times >= most or header.delay_level < 0
    if is_dead:
        topic = context.topics.create_for_group(names.dead_letter_topic(header.group), 1)
        queue_id = 0
        properties[props.DELAY] = "0"
    else:
        properties[props.DELAY] = str(header.delay_level or _FIRST_LEVEL + old.reconsume_times)
    message = old.again(topic.topic_name, queue_id, properties)
    message.reconsume_times = min(message.reconsume_times + 1, TIMES_MAX)
    try:
        check_place(context, message.topic, queue_id)
    except PutFailed as failed:
        raise _with_status(failed) from None
    is_stored = False
    try:
        appended, _ = context.puts.put(message)
        is_stored = True
    except PutFailed as failed:
        raise _with_status(failed) from None
    finally:
        if context.hooks.consume:
            context.hooks.after_consume(
                send_back_context(request, header, context.store.host, topic.topic_name, is_stored)
            )
    context.stats.note_sent_back(header.group, properties[props.RETRY_TOPIC])
    if is_dead:
        context.stats.note_dead_letter(header.group, properties[props.RETRY_TOPIC])
    late = reply(ResponseCode.SYSTEM_ERROR, PutStatus.FLUSH_DISK_TIMEOUT)
    end = LogPosition(appended.position + appended.size)
    return context.puts.answer_when_stored(request, message, reply(), end, late=late)


def _with_status(failed: PutFailed) -> PutFailed:
    return PutFailed(failed.status, code=ResponseCode.SYSTEM_ERROR, remark=failed.status)
