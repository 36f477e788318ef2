"""The producer: sends messages with or without a delay, and cancels them (RocketMQ: DefaultMQProducer)."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from wheelmq.client import delays, outgoing, results
from wheelmq.client.compression import compress
from wheelmq.client.delays import TimeMs
from wheelmq.client.message import ReceivedMessage
from wheelmq.client.outgoing import MessageOptions, OutgoingMessage, Selector, check_group, check_topic
from wheelmq.client.placing import Placing
from wheelmq.client.replies import Replies, reply_to
from wheelmq.client.results import STATUS, CancelResult, SendResult
from wheelmq.client.session import KEEP_ALIVE_MS, Session, at_least_one
from wheelmq.formats import names
from wheelmq.formats.disk import properties as props
from wheelmq.formats.units import Millis, QueueOffset
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import Heartbeat, ProducerData, QueueName
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import FRAME_BYTES_MAX, Command
from wheelmq.formats.wire.headers import SendHeader
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.net.errors import CallError, Refused, Unreachable
from wheelmq.system.clock import Clock, SystemClock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

CANCEL_NEAR_MS: Final = 1000
CANCEL_AHEAD_MS: Final = 10_000
"""A broker rejects a cancel whose due time is past when it arrives, although its message may still be pending.

So a due time less than `CANCEL_NEAR_MS` from now is replaced by one `CANCEL_AHEAD_MS` from now. WheelMQ finds the
message by its key. For Apache RocketMQ such a cancel is too late.
"""

HEADER_BYTES_MAX: Final = 256 << 10
"""Bytes of a frame reserved for the header: properties of 32 KiB are up to six times as long in JSON."""

_NOT_STORED: Final = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )
)
"""Answers that prove that the message was not stored, so another broker may be tried."""


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    group: str = "WHEELMQ_PRODUCER"
    timeout_ms: int = 3000
    """Timeout of each attempt."""
    retries: int = 2
    """Number of further attempts after one that certainly stored nothing. They use another broker if there is one."""
    resend_unanswered: bool = False
    """Whether a send without an answer is retried. If the message was stored, consumers may receive it twice."""
    keep_alive_ms: int = KEEP_ALIVE_MS
    """Interval at which routes are refreshed and heartbeats sent."""
    access_key: AccessKey | None = None
    """Signs the requests, for brokers with access control."""
    new_topic_queues: int = 4
    body_bytes_max: int = 4 << 20
    """A longer body or batch is rejected before it is sent. Brokers have this limit by default."""
    compress_over_bytes: int | None = 4096
    """Longer bodies, but no batches, are compressed with zlib if this makes them shorter. None disables it."""

    def __post_init__(self) -> None:
        at_least_one(self, "timeout_ms", "keep_alive_ms", "new_topic_queues", "body_bytes_max")


class Parcel(NamedTuple):
    """A request that can be sent to any queue selected for `message`."""

    code: RequestCode
    header: SendHeader
    body: bytes
    message: OutgoingMessage
    unique_key: str


class Producer:
    """`async with Producer("127.0.0.1:9876") as producer: await producer.send("T", b"...", delay_ms=5000)`

    `tls` encrypts the connections: True, an `ssl.SSLContext` or `TlsOptions`. Raises ValueError for an invalid name
    server address or group name, and TlsError for a bad file.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        settings: ProducerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or ProducerSettings()
        check_group(self.settings.group)
        self._clock = clock or SystemClock()
        self._timeout_s = self.settings.timeout_ms / 1000
        self._session = Session(
            namesrv,
            clock=self._clock,
            beat=self._heartbeat,
            on_request=self._asked,
            keep_alive_ms=self.settings.keep_alive_ms,
            timeout_s=self._timeout_s,
            access_key=self.settings.access_key,
            tls=tls,
        )
        self._placing = Placing(self._clock)
        self._replies = Replies(self._clock)

    async def start(self) -> None:
        """Start the keep-alive task. No server is contacted before the first send."""
        await self._session.start()
        self._placing.begin_at(zlib.crc32(self._session.client_id.encode()))

    async def stop(self) -> None:
        """Unregister from the brokers and close all connections. Sends that wait for an answer fail."""
        await self._session.stop(producer_group=self.settings.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Sending -------------------------------------------------------------------------------------------------------

    async def send(self, topic: str, body: bytes | str, **options: Unpack[MessageOptions]) -> SendResult:
        """Send a message that is delivered at once, after a delay, or at a due time.

        A delay in milliseconds uses a timer, as in Apache RocketMQ. A delay in seconds uses a block, reaches up to a
        year, and works with WheelMQ's brokers only.

        Raises ValueError for a message that cannot be sent, and TypeError for a field of a wrong type. Raises Refused
        when the broker rejects the message, and TooFarAhead if its due time is the reason. Raises CallError when there
        is no answer: then the message may be stored.
        """
        parcel = self._pack(topic, OutgoingMessage(body=body, **options))
        return self._result(parcel, *await self._deliver(parcel))

    async def send_oneway(self, topic: str, body: bytes | str, **options: Unpack[MessageOptions]) -> str:
        """Send a message without waiting for an answer. Returns the unique key. The options are those of `send`."""
        parcel = self._pack(topic, OutgoingMessage(body=body, **options))
        route = await self._session.routes.get(topic, new_topic_queues=self.settings.new_topic_queues)
        queue = self._placing.pick(route, parcel.message)
        request = self._request(parcel, queue)
        await self._session.connections.to(route.masters[queue.broker_name]).send_oneway(request, self._timeout_s)
        return parcel.unique_key

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int | None = None,
        order_key: str | None = None,
        select: Selector | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue, in order, all or none. Returns one result for each. Raises the same as `send`.

        A batch cannot be delayed. The queue options of the batch apply; those of its messages are ignored.
        """
        check_topic(topic)
        if not messages:
            return []
        now_ms = self._clock.now_ms()
        blocks = [outgoing.properties_of(message, self._session.unique_ids.next(), now_ms) for message in messages]
        if any(map(outgoing.is_delayed, blocks)):
            raise ValueError("a batch cannot be delayed: send delayed messages one by one")
        body = outgoing.encode_batch(
            [(message.content, block) for message, block in zip(messages, blocks, strict=True)]
        )
        queue, answer = await self._deliver_batch(topic, body, queue_id, order_key, select)
        ids = answer.ext.get("msgId", "").split(",")
        first = int(answer.ext.get("queueOffset", "0"))
        return [
            SendResult(
                status=STATUS[answer.code],
                message_id=ids[i] if i < len(ids) else "",
                unique_key=block[props.UNIQ_KEY],
                queue=queue,
                queue_offset=QueueOffset(first + i),
            )
            for i, block in enumerate(blocks)
        ]

    async def send_encoded(self, topic: str, body: bytes) -> SendResult:
        """Send a batch whose messages are encoded already, as by `encode_batch`. They have unique keys and no delay.

        Returns the result for the first message. Raises the same as `send`.
        """
        check_topic(topic)
        queue, answer = await self._deliver_batch(topic, body)
        return SendResult(
            status=STATUS[answer.code],
            message_id=answer.ext.get("msgId", "").partition(",")[0],
            unique_key="",
            queue=queue,
            queue_offset=QueueOffset(int(answer.ext.get("queueOffset", "0"))),
        )

    async def queues(self, topic: str) -> tuple[QueueName, ...]:
        """Return the writable queues of `topic`, in the order that `select` gets. Raises the same as `send`."""
        check_topic(topic)
        return (await self._session.routes.get(topic, new_topic_queues=self.settings.new_topic_queues)).writable

    # Cancelling ----------------------------------------------------------------------------------------------------

    async def cancel(
        self, topic: str, unique_key: str, deliver_at_ms: TimeMs, *, broker_name: str | None = None
    ) -> CancelResult:
        """Cancel the message that was sent to `topic` with `unique_key` and is due at `deliver_at_ms`.

        Without `broker_name` the cancel goes to every broker of the topic. WheelMQ finds the message by its key. Apache
        RocketMQ looks only in the second of `deliver_at_ms`, and its versions expect different forms of the key. So an
        Apache broker gets both forms. Raises the same as `send`.
        """
        check_topic(topic)
        due_ms = delays.whole("deliver_at_ms", deliver_at_ms)
        route = await self._session.routes.get(topic)
        if broker_name is not None and broker_name not in route.masters:
            raise ValueError(
                f"broker {broker_name} has no queue of {topic}; the brokers of the topic are {', '.join(route.masters)}"
            )
        outcomes, key = set(), names.delete_key(topic, unique_key)
        for name in [broker_name] if broker_name is not None else route.masters:
            result = await self._send_cancel(route.masters[name], topic, key, due_ms)
            if result is None:  # Apache RocketMQ of unknown version; since 5.4.0 it expects the key alone
                await self._send_cancel(route.masters[name], topic, unique_key, due_ms)
            outcomes.add(result or CancelResult.ACCEPTED)
        return next((result for result in CancelResult if result in outcomes), CancelResult.ACCEPTED)

    async def _send_cancel(self, address: str, topic: str, key: str, deliver_at_ms: int) -> str | None:
        """Send a cancel with the delete key `key`. Returns the broker's `cancelResult`, or None without one."""
        block = outgoing.properties_of(OutgoingMessage(body=b"0"), self._session.unique_ids.next(), 0)
        block[props.TIMER_DEL_UNIQKEY] = key
        now_ms = self._clock.now_ms()
        is_near = deliver_at_ms < now_ms + CANCEL_NEAR_MS
        block[props.TIMER_DELIVER_MS] = str(now_ms + CANCEL_AHEAD_MS if is_near else deliver_at_ms)
        header = self._header(topic, block)
        request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=headers.write_send_v2(header), body=b"0")
        answer = await self._session.connections.to(address).call(request, self._timeout_s)
        if answer.code not in STATUS:
            raise Refused(answer)
        return answer.ext.get("cancelResult")

    async def recall(self, topic: str, handle: str) -> str:
        """Cancel the message with the `recall_handle` of a send. Returns its unique key. Raises the same as `send`."""
        check_topic(topic)
        words = results.handle_words(handle)
        route = await self._session.routes.get(topic)
        if words is None or words[2] not in route.masters:
            raise ValueError(f"{handle!r} is not a recall handle of a broker of {topic}")
        header = headers.RecallHeader(topic=topic, recall_handle=handle, producer_group=self.settings.group)
        request = Command(code=RequestCode.RECALL_MESSAGE, ext=headers.write(header))
        answer = await self._session.connections.to(route.masters[words[2]]).ask(request, self._timeout_s)
        return answer.ext.get("msgId", words[4])

    # Asking and replying -------------------------------------------------------------------------------------------

    async def request(
        self, topic: str, body: bytes | str, *, reply_within_ms: int = 3000, **options: Unpack[MessageOptions]
    ) -> ReceivedMessage:
        """Send a message and wait for the reply of its consumer. Raises as `send`, and CallError without a reply."""
        await self._session.greet_everywhere()  # any broker may deliver the reply: the consumer chooses it
        own = self._replies.properties(self._session.unique_ids.next(), self._session.client_id, reply_within_ms)
        message = OutgoingMessage(body=body, **options)
        message.properties = {**(message.properties or {}), **own}
        parcel = self._pack(topic, message)
        with self._replies.awaited(own) as reply:
            await self._deliver(parcel)
            return await self._replies.wait(reply, reply_within_ms, topic)

    async def reply(self, request: ReceivedMessage, body: bytes | str) -> SendResult:
        """Reply to a message that was sent with `request`. Raises ValueError for any other; else the same as `send`."""
        topic, own = reply_to(request)
        parcel = self._pack(topic, OutgoingMessage(body=body, properties=own))
        parcel = parcel._replace(code=RequestCode.SEND_REPLY_MESSAGE_V2)
        return self._result(parcel, *await self._deliver(parcel))

    # How -----------------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        producers = [ProducerData(group_name=self.settings.group)]
        return Heartbeat(client_id=self._session.client_id, producer_data_set=producers)

    def _asked(self, address: str, request: Command) -> Command | Awaitable[Command | None] | None:
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._replies.arrived(request)
        remark = f" request type {request.code} not supported"
        return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def _pack(self, topic: str, message: OutgoingMessage, extra: dict[str, str] | None = None) -> Parcel:
        """Build the request for a message. Raises ValueError for a message that cannot be sent."""
        check_topic(topic)
        block = outgoing.properties_of(message, self._session.unique_ids.next(), self._clock.now_ms()) | (extra or {})
        header = self._header(topic, block)
        body, header.sys_flag = compress(message.content, self.settings.compress_over_bytes)
        return self._checked(Parcel(RequestCode.SEND_MESSAGE_V2, header, body, message, block[props.UNIQ_KEY]))

    def _checked(self, parcel: Parcel) -> Parcel:
        """Return `parcel` if it can be sent. Raises ValueError for a body that is too long.

        Raises RuntimeError before `start`: without a client id and heartbeats, no broker knows the producer.
        """
        if not self._session.client_id:
            raise RuntimeError("start the producer before it sends, or use it in `async with`")
        most = min(self.settings.body_bytes_max, FRAME_BYTES_MAX - HEADER_BYTES_MAX)
        size = len(parcel.message.content)
        if size > most:
            raise ValueError(f"a body of {size} bytes: the limit is {most} (body_bytes_max)")
        return parcel

    def _header(self, topic: str, properties: dict[str, str], *, batch: bool = False) -> SendHeader:
        return SendHeader(
            producer_group=self.settings.group,
            topic=topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self.settings.new_topic_queues,
            queue_id=0,
            sys_flag=0,
            born_timestamp=self._clock.now_ms(),
            flag=0,
            properties=outgoing.encode_properties(properties).decode(),
            batch=batch,
        )

    def _request(self, parcel: Parcel, queue: QueueName) -> Command:
        parcel.header.queue_id, parcel.header.born_timestamp = queue.queue_id, self._clock.now_ms()
        return Command(code=parcel.code, ext=headers.write_send_v2(parcel.header), body=parcel.body)

    async def _deliver(self, parcel: Parcel) -> tuple[QueueName, Command]:
        """Send to one queue after another until a broker stores the message. Returns that queue and the answer.

        A message placed by `order_key` or `select` stays with its first queue: another queue would break its order.
        """
        topic, routes = parcel.header.topic, self._session.routes
        tried: list[str] = []
        problem: Exception | None = None
        kept: QueueName | None = None
        for i in range(1 + self.settings.retries):
            if i:
                await routes.refresh(topic)
            route = await routes.get(topic, new_topic_queues=self.settings.new_topic_queues)
            queue = kept or self._placing.pick(route, parcel.message, tried)
            kept = queue if parcel.message.is_placed else None
            address = route.masters.get(queue.broker_name)
            if address is None:
                break
            try:
                answer = await self._session.connections.to(address).call(self._request(parcel, queue), self._timeout_s)
                self._placing.worked(queue.broker_name)
                if answer.code in STATUS:
                    await self._session.greet(address)
                    return queue, answer
                problem = self._refused(parcel, answer)
                if answer.code not in _NOT_STORED:
                    break
            except CallError as error:
                problem = error
                self._placing.failed(queue.broker_name)
                if not isinstance(error, Unreachable) and not self.settings.resend_unanswered:
                    break
            tried.append(queue.broker_name)
        assert problem is not None
        raise problem

    async def _deliver_batch(
        self,
        topic: str,
        body: bytes,
        queue_id: int | None = None,
        order_key: str | None = None,
        select: Selector | None = None,
    ) -> tuple[QueueName, Command]:
        """Send the encoded messages of a batch. Returns their queue and the answer."""
        header = self._header(topic, {}, batch=True)
        whole = OutgoingMessage(body=body, queue_id=queue_id, order_key=order_key, select=select)
        parcel = self._checked(Parcel(RequestCode.SEND_BATCH_MESSAGE, header, body, whole, ""))
        return await self._deliver(parcel)

    def _refused(self, parcel: Parcel, answer: Command) -> Refused:
        message = parcel.message
        asked_ms, due_ms = message.asked_delay_ms, message.asked_time_ms
        if due_ms is not None:
            asked_ms = due_ms - self._clock.now_ms()
        return delays.refused(answer, asked_ms, is_in_block=message.delay_in_seconds is not None)

    def _result(self, parcel: Parcel, queue: QueueName, answer: Command) -> SendResult:
        handle, message = answer.ext.get("recallHandle"), parcel.message
        asked_ms, time_ms = message.asked_delay_ms, message.asked_time_ms
        due_ms = None if time_ms is None else Millis(time_ms)
        if asked_ms:
            due_ms = results.due_ms(parcel.header.born_timestamp + asked_ms, handle)
        return SendResult(
            status=STATUS[answer.code],
            message_id=answer.ext.get("msgId", ""),
            unique_key=parcel.unique_key,
            queue=queue,
            queue_offset=QueueOffset(int(answer.ext.get("queueOffset", "0"))),
            due_ms=due_ms,
            recall_handle=handle,
            transaction_id=answer.ext.get("transactionId"),
        )
