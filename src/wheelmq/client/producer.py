"""The producer: sends, now or for later, and cancels (RocketMQ: DefaultMQProducer)."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Self

import msgspec

from wheelmq.client.outgoing import OutgoingMessage, add_delay, check_topic, encode_batch, properties_of
from wheelmq.client.routes import NoBroker, TopicRoute
from wheelmq.client.session import Session
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.java import java_long
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import Heartbeat, ProducerData, QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import SendHeader
from wheelmq.net.errors import CallError, Refused, Unreachable
from wheelmq.system.clock import Clock, SystemClock

SLOT_MS: Final = 1000
"""What Apache RocketMQ floors a due time to, and so what a recall handle tells."""

CANCEL_AHEAD_MS: Final = 1000
"""A cancel must name a time ahead, though what it cancels may be just out."""

_NOT_STORED: Final = frozenset(
    (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.TOPIC_NOT_EXIST)
)
"""Answers after which another broker may be asked: the message is certainly not stored."""


class SendStatus(StrEnum):
    """How safe a stored message is."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_STATUS: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a send."""

    status: SendStatus
    message_id: str
    unique_key: str
    queue: QueueName
    """The queue that it is meant for."""
    queue_offset: QueueOffset
    """Where it is stored: in that queue, or while it waits in the queue of the waiting."""
    due_ms: Millis | None = None
    """When it is due; None when it is delivered at once. For a delay it is reckoned from the time of sending, kept
    within the second that the broker named."""
    recall_handle: str | None = None


class CancelResult(StrEnum):
    """What came of a cancel; of what several brokers say, the first in this order."""

    CANCELLED = "cancelled"
    ALREADY_SETTLED = "already delivered or cancelled"
    ACCEPTED = "accepted"
    """The broker took it and does not tell what came of it: so does Apache RocketMQ."""
    NOT_FOUND = "not found"


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be chosen."""

    group: str = "WHEELMQ_PRODUCER"
    timeout_ms: int = 3000
    retries: int = 2
    """More tries after one that certainly stored nothing. A send without an answer is not tried again: it may be
    stored, and its unique key tells whether it is."""
    new_topic_queues: int = 4


class Producer:
    """`async with Producer("127.0.0.1:9876") as producer: await producer.send("T", b"...", delay_ms=5000)`"""

    def __init__(
        self, namesrv: str | Sequence[str], settings: ProducerSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        self.settings = settings or ProducerSettings()
        self._clock = clock or SystemClock()
        self._timeout_s = self.settings.timeout_ms / 1000
        self._session = Session(namesrv, clock=self._clock, beat=self._heartbeat, timeout_s=self._timeout_s)
        self._turn = 0

    async def start(self) -> None:
        """Begin to keep alive; no server is spoken to before the first send."""
        await self._session.start()
        self._turn = zlib.crc32(self._session.client_id.encode())  # not every producer begins with the same queue

    async def stop(self) -> None:
        """Leave the brokers; sends that wait for an answer fail."""
        await self._session.stop(producer_group=self.settings.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Sending -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        keys: str | Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_in_seconds: int | None = None,
    ) -> SendResult:
        """Send a message, to be delivered at once, after a delay, or at a time.

        A delay in milliseconds is a timer's, as Apache RocketMQ has them; one in seconds goes by way of a block, for up
        to a year, and is known to WheelMQ alone.

        Raises ValueError for what cannot be sent, Refused when the broker will not have it, CallError when there is
        no answer: then it may be stored.
        """
        check_topic(topic)
        block = self._properties(OutgoingMessage(body=body, keys=keys, tags=tags, properties=properties or {}))
        add_delay(block, delay_ms, deliver_at_ms, delay_in_seconds)
        header = self._header(topic, block)
        queue, answer = await self._call(RequestCode.SEND_MESSAGE_V2, header, body, queue_id)
        handle = answer.ext.get("recallHandle")
        asked_ms = delay_ms or 1000 * (delay_in_seconds or 0)
        return SendResult(
            status=_STATUS[answer.code],
            message_id=answer.ext.get("msgId", ""),
            unique_key=block[props.UNIQ_KEY],
            queue=queue,
            queue_offset=QueueOffset(int(answer.ext.get("queueOffset", "0"))),
            due_ms=_due_ms(header.born_timestamp + asked_ms, handle) if asked_ms else _millis(deliver_at_ms),
            recall_handle=handle,
        )

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        keys: str | Sequence[str] = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_in_seconds: int | None = None,
    ) -> str:
        """As `send`, but nobody hears what became of it; the unique key."""
        check_topic(topic)
        block = self._properties(OutgoingMessage(body=body, keys=keys, tags=tags, properties=properties or {}))
        add_delay(block, delay_ms, deliver_at_ms, delay_in_seconds)
        header = self._header(topic, block)
        route = await self._session.routes.get(topic, new_topic_queues=self.settings.new_topic_queues)
        queue = self._pick(route, queue_id, ())
        header.queue_id = queue.queue_id
        ext = headers.write_send_v2(header)
        await self._session.connections.to(route.masters[queue.broker_name]).tell(
            Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)
        )
        return block[props.UNIQ_KEY]

    async def send_batch(
        self, topic: str, messages: Sequence[OutgoingMessage], *, queue_id: int | None = None
    ) -> list[SendResult]:
        """Send messages to one queue, in order, all or none; one result for each. A batch cannot be delayed."""
        check_topic(topic)
        if not messages:
            return []
        blocks = [self._properties(message) for message in messages]
        asks = (*props.TIMER_REQUESTS, props.DELAY, props.DELAY_IN_SECONDS)
        if any(name in block for block in blocks for name in asks):
            raise ValueError("a batch cannot be delayed: send delayed messages one by one")
        body = encode_batch([(message.body, block) for message, block in zip(messages, blocks, strict=True)])
        header = self._header(topic, {})
        header.batch = True
        queue, answer = await self._call(RequestCode.SEND_BATCH_MESSAGE, header, body, queue_id)
        ids = answer.ext.get("msgId", "").split(",")
        first = int(answer.ext.get("queueOffset", "0"))
        return [
            SendResult(
                status=_STATUS[answer.code],
                message_id=ids[i] if i < len(ids) else "",
                unique_key=block[props.UNIQ_KEY],
                queue=queue,
                queue_offset=QueueOffset(first + i),
            )
            for i, block in enumerate(blocks)
        ]

    async def cancel(
        self, topic: str, unique_key: str, deliver_at_ms: int, *, broker_name: str | None = None
    ) -> CancelResult:
        """Cancel the message that was sent to `topic` with `unique_key` and is due at `deliver_at_ms`.

        Without `broker_name` every broker of the topic is asked. WheelMQ finds the message by its key; Apache RocketMQ
        looks only where the time says, so it must be right to the second there. Raises as `send`.
        """
        from wheelmq.formats.disk.parked import delete_key  # brings NumPy, for which no send should wait

        check_topic(topic)
        route = await self._session.routes.get(topic)
        if broker_name is not None and broker_name not in route.masters:
            raise ValueError(f"broker {broker_name} has no queue of {topic}; {', '.join(route.masters)} have")
        outcomes = set()
        for name in [broker_name] if broker_name is not None else route.masters:
            block = self._properties(OutgoingMessage(body=b"0"))
            block[props.TIMER_DEL_UNIQKEY] = delete_key(topic, unique_key)
            block[props.TIMER_DELIVER_MS] = str(max(deliver_at_ms, self._clock.now_ms() + CANCEL_AHEAD_MS))
            header = self._header(topic, block)
            request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.write_send_v2(header), body=b"0")
            answer = await self._session.connections.to(route.masters[name]).call(request, self._timeout_s)
            if answer.code not in _STATUS:
                raise Refused(answer)
            outcomes.add(answer.ext.get("cancelResult", CancelResult.ACCEPTED))
        return next((result for result in CancelResult if result in outcomes), CancelResult.ACCEPTED)

    # How -----------------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        producers = [ProducerData(group_name=self.settings.group)]
        return Heartbeat(client_id=self._session.client_id, producer_data_set=producers)

    def _properties(self, message: OutgoingMessage) -> dict[str, str]:
        return properties_of(message, self._session.unique_ids.next())

    def _header(self, topic: str, properties: dict[str, str]) -> SendHeader:
        return SendHeader(
            producer_group=self.settings.group,
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self.settings.new_topic_queues,
            queue_id=0,
            sys_flag=0,
            born_timestamp=self._clock.now_ms(),
            flag=0,
            properties=props.encode(properties).decode(),
        )

    async def _call(
        self, code: RequestCode, header: SendHeader, body: bytes, queue_id: int | None
    ) -> tuple[QueueName, Command]:
        """Send to one queue after another until one has taken it; that queue, and the answer."""
        routes = self._session.routes
        avoid: list[str] = []
        problem: Exception | None = None
        for _ in range(1 + self.settings.retries):
            route = await routes.get(header.topic, new_topic_queues=self.settings.new_topic_queues)
            queue = self._pick(route, queue_id, avoid)
            address = route.masters[queue.broker_name]
            header.queue_id, header.born_timestamp = queue.queue_id, self._clock.now_ms()
            request = Command(code=code, ext=headers.write_send_v2(header), body=body)
            try:
                answer = await self._session.connections.to(address).call(request, self._timeout_s)
                if answer.code in _STATUS:
                    await self._session.greet(address)
                    return queue, answer
                problem = Refused(answer)
                if answer.code not in _NOT_STORED:
                    break
            except Unreachable as error:
                problem = error
            avoid.append(queue.broker_name)
            await routes.refresh(header.topic)
        assert problem is not None
        raise problem

    def _pick(self, route: TopicRoute, queue_id: int | None, avoid: Sequence[str]) -> QueueName:
        """The next queue in turn, of a broker that is not to be avoided if there is one."""
        queues = [queue for queue in route.writable if queue_id in (None, queue.queue_id)]
        if not queues and route.writable:
            raise ValueError(f"{route.topic} has no queue {queue_id}: its queues are 0 to {_highest(route)}")
        if not queues:
            raise NoBroker(f"no broker takes messages for {route.topic}: its queues may not be written to")
        better = [queue for queue in queues if queue.broker_name not in avoid] or queues
        self._turn += 1
        return better[self._turn % len(better)]


def _highest(route: TopicRoute) -> int:
    return max(queue.queue_id for queue in route.writable)


def _millis(time_ms: int | None) -> Millis | None:
    return None if time_ms is None else Millis(time_ms)


def _due_ms(reckoned_ms: int, handle: str | None) -> Millis:
    """A due time reckoned here, brought into the second that the broker's recall handle names.

    The handle says 1 ms more than the time of the slot, and the slot holds the SLOT_MS behind its time.
    """
    slot_ms = _handle_ms(handle) if handle else None
    if slot_ms is None:
        return Millis(reckoned_ms)
    return Millis(min(max(reckoned_ms, slot_ms), slot_ms + SLOT_MS - 1))


def _handle_ms(handle: str) -> int | None:
    """The time in a recall handle: URL-safe base64 of `v1 topic broker time key`; None when it is another one."""
    try:
        words = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    except (binascii.Error, ValueError):
        return None
    return java_long(words[3]) if len(words) == 5 and words[0] == "v1" else None


__all__ = ["CallError", "CancelResult", "Producer", "ProducerSettings", "SendResult", "SendStatus"]
