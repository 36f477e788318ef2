"""The work of a task of the sink: send the rows of a partition, at least once each.

Rows without a delay are sent in batches. Rows with the same sharding key go to one queue, in their order. A delayed row
is a request of its own, because a batch cannot be delayed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from pyspark_rocketmq.cluster import Cluster, TopicGone, access_remedy
from pyspark_rocketmq.errors import BrokerError, OptionError
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.plain_rows import PROPERTIES_BYTES, Entries, PlainRows, plain_rows
from pyspark_rocketmq.retries import BUSY, RETRY_DELAYS_S
from pyspark_rocketmq.rows import Row, RowForm, UniqueKeys
from wheelmq.client.delays import TooFarAhead
from wheelmq.client.outgoing import OutgoingMessage, Selector, batched_bytes
from wheelmq.client.placing import by_hash
from wheelmq.client.producer import Producer, ProducerSettings
from wheelmq.client.results import SendResult, SendStatus
from wheelmq.formats.disk import properties as props
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.codes import ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers.sending import BATCH_HEAD
from wheelmq.net.errors import CallError, Refused
from wheelmq.system.clock import SystemClock

T = TypeVar("T")

BATCH_ROWS: Final = 256
BATCH_BYTES: Final = 512 << 10
"""Bytes of a batch: bodies, properties and heads. A larger message is sent alone."""
REQUESTS_AT_ONCE: Final = 128
_LENGTH_BYTES: Final = 2
"""The length of the properties, in the encoding of a batch."""


def send_partition(options: SinkOptions, form: RowForm, batches: Iterable[pa.RecordBatch], keys: UniqueKeys) -> int:
    """Send all rows and return their number. Raises OptionError, BrokerError."""
    return asyncio.run(_send(options, form, batches, keys))


async def _send(options: SinkOptions, form: RowForm, batches: Iterable[pa.RecordBatch], keys: UniqueKeys) -> int:
    connection, clock = options.connection, SystemClock()
    settings = ProducerSettings(
        group=options.producer_group,
        timeout_ms=round(1000 * connection.timeout_s),
        resend_unanswered=True,
        access_key=connection.access_key,
        body_bytes_max=options.body_bytes_max + (64 << 10),
    )
    async with Producer(connection.namesrv, settings, tls=connection.tls) as producer:
        sender = Sender(producer, min(BATCH_BYTES, options.body_bytes_max))
        known: set[str] = set()
        for batch in batches:
            plain = plain_rows(form, batch, keys)
            rows = [] if plain is not None else list(form.rows(batch, keys, clock.now_ms()))
            topics = ({plain.topic} if plain is not None else {row.topic for row in rows}) - known
            await check_topics(options, topics)
            known |= topics
            await (sender.send_plain(plain) if plain is not None else sender.send(rows))
    return keys.count


class Sender:
    """Sends rows by a producer, with a bounded number of requests at a time."""

    def __init__(self, producer: Producer, batch_bytes_max: int = BATCH_BYTES) -> None:
        self._producer = producer
        self._batch_bytes_max = batch_bytes_max
        self._slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def send(self, rows: list[Row]) -> None:
        """Send rows and wait for all answers. Raises OptionError, BrokerError."""
        plain: dict[str, list[OutgoingMessage]] = defaultdict(list)
        ordered: dict[tuple[str, QueueName], list[OutgoingMessage]] = defaultdict(list)
        work: list[Coroutine[Any, Any, None]] = []
        for topic, message in (row for row in rows if not row.is_delayed):
            if message.order_key is None:
                plain[topic].append(message)
            else:
                ordered[topic, await self._queue(topic, message.order_key)].append(message)
        work += [self._single(row) for row in rows if row.is_delayed]
        work += [self._chunk(topic, chunk) for topic, messages in plain.items() for chunk in self._chunks(messages)]
        work += [self._lane(topic, queue, messages) for (topic, queue), messages in ordered.items()]
        await _all(work)

    async def send_plain(self, rows: PlainRows) -> None:
        """Send rows that have only a body, and wait for all answers. Raises OptionError, BrokerError."""
        entries = batch_entries(rows)
        await _all(
            self._encoded(rows.topic, entries.raw(first, end)) if end - first > 1 else self._single(_row(rows, first))
            for first, end in entries.chunks(BATCH_ROWS, self._batch_bytes_max)
        )

    async def _encoded(self, topic: str, body: bytes) -> None:
        async with self._slots:
            await _stored(topic, lambda: self._producer.send_encoded(topic, body))

    async def _queue(self, topic: str, order_key: str) -> QueueName:
        queues = await _answered(topic, lambda: self._producer.queues(topic))
        if not queues:
            raise BrokerError(f"topic {topic} has no writable queue: check its permission")
        return queues[by_hash(order_key, len(queues))]

    async def _single(self, row: Row) -> None:
        message = row.message
        async with self._slots:
            await _stored(
                row.topic,
                lambda: self._producer.send(
                    row.topic,
                    message.body,
                    keys=message.keys,
                    tags=message.tags,
                    properties=message.properties,
                    order_key=message.order_key,
                    select=message.select,
                    delay_level=message.delay_level,
                    delay_ms=message.delay_ms,
                    deliver_at_ms=message.deliver_at_ms,
                ),
            )

    async def _chunk(self, topic: str, messages: list[OutgoingMessage], select: Selector | None = None) -> None:
        if len(messages) == 1:  # a single message can be compressed
            message = messages[0]
            if select is not None:
                message.order_key, message.select = None, select
            await self._single(Row(topic, message))
            return
        async with self._slots:
            await _stored(topic, lambda: self._producer.send_batch(topic, messages, select=select))

    async def _lane(self, topic: str, queue: QueueName, messages: list[OutgoingMessage]) -> None:
        for chunk in self._chunks(messages):
            await self._chunk(topic, chunk, lambda _: queue)

    def _chunks(self, messages: list[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
        return chunks(messages, self._batch_bytes_max)


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all work. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def batch_entries(rows: PlainRows) -> Entries:
    """Return the rows as messages of a batch (encoding: wheelmq.client.outgoing.encode_batch)."""
    heads = np.zeros((len(rows), 5), ">i4")
    heads[:, 0] = rows.sizes + (BATCH_HEAD.size + _LENGTH_BYTES + PROPERTIES_BYTES)
    heads[:, 4] = rows.sizes
    tails = np.empty((len(rows), _LENGTH_BYTES + PROPERTIES_BYTES), np.uint8)
    tails[:, :_LENGTH_BYTES] = np.frombuffer(PROPERTIES_BYTES.to_bytes(_LENGTH_BYTES, "big"), np.uint8)
    tails[:, _LENGTH_BYTES:] = rows.properties()
    return Entries(heads.view(np.uint8), rows.bodies, tails)


def _row(rows: PlainRows, i: int) -> Row:
    body = rows.bodies[i].as_py()
    return Row(rows.topic, OutgoingMessage(body=body, properties={props.UNIQ_KEY: rows.key(i)}))


def chunks(messages: list[OutgoingMessage], bytes_max: int = BATCH_BYTES) -> Iterator[list[OutgoingMessage]]:
    """Yield the messages in order, in batches of at most BATCH_ROWS messages and `bytes_max` bytes."""
    chunk: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        added = batched_bytes(message)
        if chunk and (len(chunk) == BATCH_ROWS or size + added > bytes_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += added
    if chunk:
        yield chunk


def too_far(error: TooFarAhead, topic: str) -> OptionError:
    """Return the error for a row that is due too late. The sink has no column for blocks, which reach a year."""
    remedy = f"choose an earlier time, or {error.longer_timer}"
    return OptionError(f"column deliverTime or delayMs, topic {topic}: {error.problem}: {remedy}")


async def check_topics(options: SinkOptions, topics: Iterable[str]) -> None:
    """Check that topics exist if option createTopic is false. Raises OptionError, BrokerError.

    The check is repeated, because a name server forgets the topics of a broker that restarts.
    """
    names = sorted(topics)
    if options.creates_topic or not names:
        return
    with Cluster(options.connection) as cluster:
        for topic in names:
            await _check_topic(cluster, topic)


async def _check_topic(cluster: Cluster, topic: str) -> None:
    """Raise OptionError if a topic does not exist."""
    for delay_s in (*RETRY_DELAYS_S, None):
        try:
            await asyncio.to_thread(cluster.writable, topic)
            return
        except TopicGone as error:
            if delay_s is None:
                raise OptionError(f"{error}, or remove option createTopic") from None
            await asyncio.sleep(delay_s)


class _NotSafe(Exception):
    """A broker has stored a message, which can be lost with its disk or its machine. The text names the broker."""


async def _stored(topic: str, send: Callable[[], Awaitable[SendResult | list[SendResult]]]) -> None:
    """Send messages until the broker answers SEND_OK for each. Raises OptionError, BrokerError."""

    async def send_safely() -> None:
        found = await send()
        for one in found if isinstance(found, list) else [found]:
            if one.status is not SendStatus.OK:
                raise _NotSafe(f"broker {one.queue.broker_name} answers {one.status}")

    await _answered(topic, send_safely)


async def _answered(topic: str, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`, which is repeated while brokers are busy or absent.

    The producer has made attempts of its own before.

    Raises OptionError, BrokerError.
    """
    for delay_s in (*RETRY_DELAYS_S, None):
        try:
            return await call()
        except TooFarAhead as error:
            raise too_far(error, topic) from None
        except Refused as error:
            if delay_s is None or error.code not in BUSY:
                raise BrokerError(f"a message for topic {topic} is rejected: {error}{_remedy(error.answer)}") from None
        except CallError as error:
            if delay_s is None:
                raise BrokerError(f"a message for topic {topic} has no answer: {error}") from None
        except _NotSafe as error:
            if delay_s is None:
                raise BrokerError(
                    f"{error} to a message for topic {topic}, so the message may be lost. Look at its disk and its "
                    "slaves. With too few slaves, lower its inSyncReplicas"
                ) from None
        except (ValueError, TypeError) as error:
            raise OptionError(f"a message for topic {topic} cannot be sent: {error}") from None
        await asyncio.sleep(delay_s)
    raise AssertionError("unreachable")


def _remedy(answer: Command) -> str:
    found = access_remedy(answer)
    if answer.code == ResponseCode.MESSAGE_ILLEGAL:
        found = "The broker's maxMessageSize limits a message or a batch: set option maxBodyBytes to it"
    return f". {found}" if found else ""
