"""Contexts of hooks, created from requests if a registered hook needs them."""

from __future__ import annotations

from wheelmq.broker.connection import Connection, host_text, peer_text
from wheelmq.broker.hooks import ConsumeMessageContext, MessageKind, SendMessageContext
from wheelmq.broker.request import Request
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import Host
from wheelmq.formats.java import java_boolean
from wheelmq.formats.wire.headers import PullHeader, SendBackHeader, SendHeader

_DELAYS = (props.DELAY, props.DELAY_IN_SECONDS, props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS)


def send_context(request: Request, header: SendHeader, host: Host, region: str, now_ms: int) -> SendMessageContext:
    """Return the context of a send before it is served. `host` and `region` are those of the broker."""
    properties = props.parse(header.properties)
    return SendMessageContext(
        producer_group=header.producer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        properties=header.properties,
        unique_key=properties.get(props.UNIQ_KEY, ""),
        kind=_kind(properties),
        is_batch=header.batch,
        body_bytes=len(request.command.body),
        born_host=peer_text(request.connection),
        born_ms=header.born_timestamp,
        request_ms=now_ms,
        broker_address=host_text(host),
        region=region,
    )


def pull_context(
    connection: Connection, header: PullHeader, host: Host, status: str, body: bytes
) -> ConsumeMessageContext:
    """Return the context of a pull from the broker at `host`, whose answer has the records of `body`."""
    count = at = 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        count += 1
    return ConsumeMessageContext(
        consumer_group=header.consumer_group,
        topic=header.topic,
        queue_id=header.queue_id,
        client_host=peer_text(connection),
        store_host=host_text(host),
        status=status,
        message_count=count,
        body_bytes=len(body),
        is_success=count > 0,
    )


def send_back_context(
    request: Request, header: SendBackHeader, host: Host, goes_to: str, is_stored: bool
) -> ConsumeMessageContext:
    """Return the context of a message that was sent back to the broker at `host`, for the topic `goes_to`."""
    is_dead = goes_to.startswith(names.DEAD_LETTER_PREFIX)
    return ConsumeMessageContext(
        consumer_group=header.group,
        topic=request.ext.get("originTopic", ""),
        queue_id=None,
        client_host=peer_text(request.connection),
        store_host=host_text(host),
        status="SEND_BACK_TO_DLQ" if is_dead else "SEND_BACK",
        message_count=1,
        body_bytes=0,
        is_success=is_stored,
    )


def _kind(properties: dict[str, str]) -> MessageKind:
    """Return the kind of a send, with checks in the order of Apache's AbstractSendMessageProcessor."""
    if props.SHARDING_KEY in properties:
        return MessageKind.ORDER
    if any(name in properties for name in _DELAYS):
        return MessageKind.DELAY
    if java_boolean(properties.get(props.TRAN_MSG)):
        return MessageKind.HALF
    return MessageKind.NORMAL
