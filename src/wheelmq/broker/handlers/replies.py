"""SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2 (RocketMQ: ReplyMessageProcessor): relay a reply to the waiting producer.

The broker pushes the reply at once to the client that the request named (PUSH_REPLY_MESSAGE_TO_CLIENT), and stores it.
The sender of the reply gets the outcome of the push.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from wheelmq.broker.admission.put_status import PutFailed, PutStatus
from wheelmq.broker.answers import Answer, Deferred, PeerError
from wheelmq.broker.calls import Unanswered
from wheelmq.broker.connection import Connection, host_text, peer_text
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.handlers.send import check_topic, region_and_trace
from wheelmq.broker.request import Request
from wheelmq.broker.saved_answers import when_topic_saved
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import SYS_TRANSACTION, Message
from wheelmq.formats.disk.message_id import offset_message_id
from wheelmq.formats.units import LogPosition, Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import SendHeader
from wheelmq.store.store import Appended

log = logging.getLogger(__name__)

_NO_ID: Final = "0"
"""Replaces the message id if nothing is stored, because clients decode this field."""


@dataclass(slots=True)
class _Reply:
    header: SendHeader
    message: Message
    request: Request


@serves(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
def send_reply(request: Request, context: Context) -> Answer:
    """Push a reply to the waiting client, store it, and answer whether the client accepted it."""
    return when_topic_saved(request, context, lambda: _send_reply(request, context))


def _send_reply(request: Request, context: Context) -> Answer:
    """Relay the reply to its client, and answer its sender. Raises TopicUnsaved."""
    if request.command.code == RequestCode.SEND_REPLY_MESSAGE:
        header = request.header(SendHeader)
    else:
        header = headers.read_send_v2(request.command.ext)
    try:
        context.admission.check_open()
        reply = _Reply(header, _message(request, context, header), request)
    except PutFailed as failed:
        answer = context.failed_puts.answer(failed)
        answer.ext = region_and_trace(context)
        return answer
    except PeerError as rejection:
        return Command(code=rejection.code, remark=rejection.remark, ext=region_and_trace(context))
    client_id = reply.message.properties.get(props.REPLY_TO_CLIENT)
    if client_id is None:
        return _answer(context, reply, f"reply message properties[{props.REPLY_TO_CLIENT}] is null")
    connection = context.clients.find_producer(client_id)
    if connection is None:
        return _answer(context, reply, f"push reply message fail, channel of <{client_id}> not found.")
    return _passed_on(context, reply, connection, _push(request, context, reply), client_id)


def _message(request: Request, context: Context, header: SendHeader) -> Message:
    topic = check_topic(request, context, header)
    context.topics.check_saved(topic.topic_name)
    body = request.body
    if len(body) > context.settings.requests.body_bytes_max:
        raise PutFailed(PutStatus.MESSAGE_ILLEGAL)
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = context.randomness.randrange(max(1, topic.write_queue_nums))
    return Message(
        topic=header.topic,
        queue_id=queue_id,
        body=body,
        properties={**props.parse(header.properties), **region_and_trace(context)},
        flag=header.flag,
        sys_flag=header.sys_flag & ~SYS_TRANSACTION,
        born_ms=Millis(header.born_timestamp),
        born_host=request.connection.peer,
        reconsume_times=header.reconsume_times,
    )


def _push(request: Request, context: Context, reply: _Reply) -> Command:
    header, message = reply.header, reply.message
    properties = {**message.properties, props.PUSH_REPLY_TIME: str(context.clock.now_ms())}
    ext = headers.texts(
        producerGroup=header.producer_group,
        topic=header.topic,
        defaultTopic=header.default_topic,
        defaultTopicQueueNums=header.default_topic_queue_nums,
        queueId=header.queue_id,
        sysFlag=header.sys_flag,
        bornTimestamp=header.born_timestamp,
        flag=header.flag,
        properties=props.encode(properties).decode(),
        reconsumeTimes=header.reconsume_times,
        unitMode=header.unit_mode,
        bornHost=peer_text(request.connection),
        storeHost=host_text(context.store.host),
        storeTimestamp=context.clock.now_ms(),
    )
    return Command(code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=ext, body=message.body)


def _passed_on(context: Context, reply: _Reply, connection: Connection, push: Command, client_id: str) -> Answer:
    def done(outcome: Command | Unanswered) -> Answer:
        if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
            return _answer(context, reply, None)
        why = outcome if isinstance(outcome, Unanswered) else f"code {outcome.code}: {outcome.remark}"
        log.warning("the client %s did not accept a reply: %s", client_id, why)
        return _answer(context, reply, f"push reply message to {client_id}fail.")

    answer = Deferred()
    deadline_ms = context.clock.monotonic_ms() + context.settings.requests.response_timeout_ms
    context.calls.ask(connection, push, deadline_ms, answer.callback(done))
    return answer


def _answer(context: Context, reply: _Reply, failure: str | None) -> Answer:
    """Store the reply if the settings say so, and return its sender's answer. A failed store has no effect on it."""
    message = reply.message
    answer = Command(code=ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR, remark=failure)
    answer.ext = region_and_trace(context)
    if failure is None:
        answer.ext |= headers.texts(msgId=_NO_ID, queueId=message.queue_id, queueOffset=0)
    if not context.settings.consumers.store_replies:
        return answer
    appended = _stored(context, reply)
    if appended is None:
        return answer
    answer.ext |= headers.texts(
        msgId=offset_message_id(context.store.host, appended.position),
        queueId=message.queue_id,
        queueOffset=appended.queue_offset,
    )
    end = LogPosition(appended.position + appended.size)
    return context.puts.answer_when_stored(reply.request, message, answer, end, late=answer)


def _stored(context: Context, reply: _Reply) -> Appended | None:
    """Store the reply, and return its place. Returns None, and logs the reason, if it cannot be stored."""
    why: str | None
    try:
        appended, _ = context.puts.put(reply.message, reply.request.waits_since_ms)
        return appended
    except PutFailed as failed:
        why = context.failed_puts.answer(failed).remark
    except PeerError as rejection:
        why = rejection.remark
    log.warning("the broker could not store a reply: %s", why)
    return None
