"""Requests that wait for a reply, and the properties of a reply (RocketMQ: RequestFutureHolder, MessageUtil)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from wheelmq.client.compression import expand
from wheelmq.client.message import ReceivedMessage
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import LogPosition, Millis, QueueOffset
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.client_calls import PushReplyHeader
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError
from wheelmq.system.backports import timeout
from wheelmq.system.clock import Clock

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL_MS: Final = "TTL"
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"


class Replies:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def properties(self, correlation_id: str, client_id: str, within_ms: int) -> dict[str, str]:
        return {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client_id, TTL_MS: str(within_ms)}

    @contextmanager
    def awaited(self, own: Mapping[str, str]) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """Register a request with these properties inside the `with` block. Yields the future of its reply."""
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[own[CORRELATION_ID]] = future
        try:
            yield future
        finally:
            del self._waiting[own[CORRELATION_ID]]

    async def wait(self, reply: asyncio.Future[ReceivedMessage], within_ms: int, topic: str) -> ReceivedMessage:
        """Wait for a reply. Raises CallError after `within_ms`."""
        try:
            async with timeout(within_ms / 1000):
                return await reply
        except TimeoutError:
            raise CallError(f"no consumer of {topic} replied within {within_ms} ms") from None

    def arrived(self, request: Command) -> Command:
        """Resolve the future of the reply in a broker's request. Raises HeaderError, CompressionError."""
        header = headers.read(request.ext, PushReplyHeader)
        properties = props.parse(header.properties)
        future = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if future is not None and not future.done():
            future.set_result(self._message(header, properties, bytes(request.body)))
        return Command(code=ResponseCode.SUCCESS)

    def _message(self, header: PushReplyHeader, properties: dict[str, str], body: bytes) -> ReceivedMessage:
        return ReceivedMessage(
            topic=header.topic,
            body=expand(body, header.sys_flag),
            properties=properties,
            message_id="",
            broker_name="",
            queue_topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=QueueOffset(0),
            log_position=LogPosition(0),
            born_ms=Millis(header.born_timestamp),
            stored_ms=Millis(header.store_timestamp),
            received_ms=self._clock.now_ms(),
            reconsume_times=header.reconsume_times or 0,
            due_ms=None,
        )


def reply_to(request: ReceivedMessage) -> tuple[str, dict[str, str]]:
    """Return the topic and the properties of a reply to `request`. Raises ValueError if it expects no reply."""
    wanted = (props.CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT, TTL_MS)
    missing = [name for name in wanted if name not in request.properties]
    if missing:
        raise ValueError(f"{request.unique_key} is not a request: it has no property {', '.join(missing)}")
    own = {name: request.properties[name] for name in wanted[1:]}
    return names.reply_topic(request.properties[props.CLUSTER]), {**own, MESSAGE_TYPE: REPLY}
