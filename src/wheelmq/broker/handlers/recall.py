"""RECALL_MESSAGE: cancel a timer by the handle in the answer to its send (RocketMQ: RecallMessageProcessor)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from wheelmq.broker.admission.put_status import PutFailed
from wheelmq.broker.answers import Answer, PeerError, reply
from wheelmq.broker.context import Context
from wheelmq.broker.handler_table import serves
from wheelmq.broker.request import Request
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Message
from wheelmq.formats.disk.parked import delete_key
from wheelmq.formats.java import java_long
from wheelmq.formats.units import LogPosition
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.headers import RecallHeader


class RecallHandle(NamedTuple):
    """The parts of a handle: URL-safe base64 of `v1 topic brokerName deliverMs uniqKey`."""

    topic: str
    broker_name: str
    deliver_ms: str
    unique_key: str


def parse_handle(text: str) -> RecallHandle | None:
    try:
        words = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    return RecallHandle(*words[1:]) if len(words) == 5 and words[0] == "v1" else None


@serves(RequestCode.RECALL_MESSAGE)
def recall(request: Request, context: Context) -> Answer:
    """Park a cancel for the message of the handle. Every answer names the region, like that of a send."""
    header = request.header(RecallHeader)
    try:
        return _recall(request, context, header)
    except PutFailed as failed:
        answer = context.failed_puts.answer(failed)
    except PeerError as rejection:
        answer = reply(rejection.code, rejection.remark)
    answer.ext = {props.MSG_REGION: context.settings.broker.region_id}
    return answer


def _recall(request: Request, context: Context, header: RecallHeader) -> Answer:
    """Park the cancel, and return the answer. Raises PeerError, PutFailed."""
    if not context.settings.timer.recall_enable:
        raise PeerError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if not context.role.is_master:
        raise PeerError(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available")
    if header.topic not in context.topics:
        raise PeerError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
    handle = parse_handle(header.recall_handle)
    if handle is None or props.has_separator(handle.unique_key):
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
    if props.has_separator(header.producer_group):
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "producerGroup has a byte 1 or 2: write the name of a group")
    if handle.topic != header.topic:
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != context.settings.broker.name:
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
    now_ms = context.clock.now_ms()
    left_ms = (java_long(handle.deliver_ms) or 0) - now_ms
    if not 0 < left_ms < context.settings.timer.max_delay_seconds * 1000:
        raise PeerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    message = Message(
        topic=handle.topic,
        queue_id=0,
        body=b"0",
        properties={
            props.TAGS: "_RECALL_TAG_",
            props.TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.unique_key),
            props.UNIQ_KEY: handle.unique_key,
            props.TIMER_DELIVER_MS: handle.deliver_ms,
            "BORN_TIMESTAMP": str(now_ms),
            props.PRODUCER_GROUP: header.producer_group or "none",
        },
        born_ms=now_ms,
        born_host=request.connection.peer,
    )
    appended, cancelled = context.puts.put(message)
    answer = reply(msgId=handle.unique_key, cancelResult=cancelled, MSG_REGION=context.settings.broker.region_id)
    return context.puts.answer_when_stored(request, message, answer, LogPosition(appended.position + appended.size))
