"""The work of a task of the sink with guarantee exactly-once: upload the rows of a partition to files of brokers.

Rows go to each broker in chunks, for each topic. They become messages when the driver commits the batch (commits.py).
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_rocketmq.brokers import BUSY, accepted, answered, refresh_addresses
from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.errors import BrokerError, OptionError, SilentBroker
from pyspark_rocketmq.layouts import SinkLayout, Topics, find_layout
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.plain_rows import PROPERTIES_BYTES, Array, Entries, PlainRows, plain_rows
from pyspark_rocketmq.rows import Row, RowForm, UniqueKeys
from pyspark_rocketmq.sending import too_far
from wheelmq.client import delays, outgoing
from wheelmq.client.delays import TooFarAhead
from wheelmq.client.outgoing import OutgoingMessage
from wheelmq.formats.disk.batch import CHUNK_ROWS_MAX, BatchId, BatchPart, UploadedRow, encode_row
from wheelmq.formats.units import Millis
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import BatchUploadHeader
from wheelmq.net.errors import CallError
from wheelmq.system.clock import Clock, SystemClock

CHUNK_ROWS: Final = 256
"""Rows of a chunk, unless they have only a body. A broker checks a chunk at once, between other requests."""
CHUNK_BYTES: Final = 512 << 10
"""Bytes from which a chunk is full."""
_ROW: Final = np.dtype([("queue_id", ">i4"), ("body_bytes", ">i4"), ("properties_bytes", ">u2")])
"""The head of a row (wheelmq.formats.disk.batch.ROW)."""


class SinkBatch(msgspec.Struct, frozen=True):
    """The batch that a task works for."""

    id: BatchId
    is_repeatable: bool
    """Whether another run can have the same batch: one of a query, or of a named job."""


class PartitionUpload(msgspec.Struct, frozen=True):
    """The uploads of one task attempt, which the driver commits if the attempt wins."""

    batch: SinkBatch
    topics: Topics
    """The layout of the batch, as far as the task used it."""
    parts: dict[str, list[BatchPart]]
    """The parts for each broker."""
    rows: int


def upload_partition(
    options: SinkOptions,
    form: RowForm,
    batches: Iterable[pa.RecordBatch],
    keys: UniqueKeys,
    batch: SinkBatch,
    partition: int,
    attempt: int,
) -> PartitionUpload:
    """Upload all rows. No other attempt may have the number `attempt`. Raises OptionError, BrokerError, TopicGone."""
    clock = SystemClock()
    with Cluster(options.connection) as cluster:
        known = find_layout(cluster, batch.id) if batch.is_repeatable else {}
        uploader = Uploader(cluster, batch, (partition, attempt), SinkLayout(cluster, known), clock)
        for rows in batches:
            plain = plain_rows(form, rows, keys, body_bytes_min=1)
            if plain is not None:
                uploader.add_plain(plain)
                continue
            for row in form.rows(rows, keys, clock.now_ms()):
                uploader.add(row)
        return uploader.finish()


class _Stream:
    """The chunks of an attempt for one topic at one broker."""

    def __init__(self, broker: str, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.pending: list[bytes] = []
        """The bytes of the next chunk."""
        self.pending_rows = self.pending_bytes = 0
        self.delay_ms = 0
        """The longest delay of a row in the next chunk."""
        self.chunks = self.rows = self.crc = 0

    def has_room(self, row: bytes) -> bool:
        return not self.pending or (self.pending_rows < CHUNK_ROWS and self.pending_bytes + len(row) <= CHUNK_BYTES)

    def add(self, raw: bytes, delay_ms: int, rows: int = 1) -> None:
        self.pending.append(raw)
        self.pending_rows += rows
        self.pending_bytes += len(raw)
        self.delay_ms = max(self.delay_ms, delay_ms)

    def take(self) -> tuple[int, bytes]:
        """Return the number and the bytes of the next chunk, and begin another one."""
        number, raw = self.chunks, b"".join(self.pending)
        self.chunks, self.rows, self.crc = number + 1, self.rows + self.pending_rows, zlib.crc32(raw, self.crc)
        self.pending, self.pending_rows, self.pending_bytes, self.delay_ms = [], 0, 0, 0
        return number, raw


class _Sent(msgspec.Struct, frozen=True):
    """A chunk whose answer is pending."""

    number: int | None
    """The number of the request at the connection; None if it was not sent."""
    command: Command
    topic: str
    delay_ms: int


class Uploader:
    """Uploads rows in chunks. One chunk for each broker is on its way, while the next one is filled."""

    def __init__(
        self, cluster: Cluster, batch: SinkBatch, attempt: tuple[int, int], layout: SinkLayout, clock: Clock
    ) -> None:
        """`attempt` is the number of the partition, and that of the attempt."""
        self._cluster, self._batch, self._layout, self._clock = cluster, batch, layout, clock
        self._partition, self._attempt = attempt
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._sent: dict[str, _Sent] = {}

    def add(self, row: Row) -> None:
        """Add a row to its chunk. Raises OptionError, BrokerError, TopicGone."""
        queue = self._layout.queue(row)
        now_ms = self._clock.now_ms()
        raw = encode_row(_uploaded(row, queue.number, now_ms))
        stream = self._stream(queue.broker, row.topic)
        if not stream.has_room(raw):
            self._send(stream)
        stream.add(raw, _delay_ms(row.message, now_ms))

    def add_plain(self, rows: PlainRows) -> None:
        """Upload rows that have only a body. Raises OptionError, BrokerError, TopicGone."""
        queues, places = self._layout.queues(rows.topic), self._layout.places(rows)
        heads = np.zeros(len(rows), _ROW)
        heads["queue_id"] = np.array([queue.number for queue in queues])[places]
        heads["body_bytes"], heads["properties_bytes"] = rows.sizes, PROPERTIES_BYTES
        tails = rows.properties()
        for broker in dict.fromkeys(queue.broker for queue in queues):
            own = np.flatnonzero(np.array([queue.broker == broker for queue in queues])[places])
            if not len(own):
                continue
            entries = Entries(_bytes_of(heads[own]), rows.bodies.take(pa.array(own)), tails[own])
            stream = self._stream(broker, rows.topic)
            if stream.pending:
                self._send(stream)
            for first, end in entries.chunks(CHUNK_ROWS_MAX, CHUNK_BYTES):  # the check of such rows is quick
                stream.add(entries.raw(first, end), 0, end - first)
                self._send(stream)

    def _stream(self, broker: str, topic: str) -> _Stream:
        stream = self._streams.get((broker, topic))
        if stream is None:
            stream = self._streams[broker, topic] = _Stream(broker, topic)
        return stream

    def finish(self) -> PartitionUpload:
        """Upload the rest and wait for all answers. Raises OptionError, BrokerError."""
        parts: dict[str, list[BatchPart]] = {}
        for stream in self._streams.values():
            if stream.pending:
                self._send(stream)
            part = BatchPart(
                part=self._partition,
                attempt=self._attempt,
                topic=stream.topic,
                chunks=stream.chunks,
                rows=stream.rows,
                crc=stream.crc,
            )
            parts.setdefault(stream.broker, []).append(part)
        for broker in list(self._sent):
            self._settle(broker)
        rows = sum(part.rows for own in parts.values() for part in own)
        return PartitionUpload(self._batch, self._layout.topics, parts, rows)

    def _send(self, stream: _Stream) -> None:
        """Send the next chunk of a stream, once the broker has answered the last one."""
        self._settle(stream.broker)
        delay_ms = stream.delay_ms
        chunk, raw = stream.take()
        header = BatchUploadHeader(
            job=self._batch.id.job,
            batch=self._batch.id.number,
            part=self._partition,
            attempt=self._attempt,
            topic=stream.topic,
            chunk=chunk,
        )
        command = Command(code=RequestCode.WMQ_BATCH_UPLOAD, ext=headers.write(header), body=raw)
        number = None
        with contextlib.suppress(CallError, SilentBroker):
            number = self._cluster.link(stream.broker).begin(command)
        self._sent[stream.broker] = _Sent(number, command, stream.topic, delay_ms)

    def _settle(self, broker: str) -> None:
        """Wait until the broker has saved the chunk that is on its way. Raises OptionError, BrokerError."""
        sent = self._sent.pop(broker, None)
        if sent is None:
            return
        answer = None
        if sent.number is not None:
            with contextlib.suppress(CallError):
                answer = self._cluster.link(broker).finish(sent.number)
        try:
            if answer is None or answer.code in BUSY:
                refresh_addresses(self._cluster)
                answered(self._cluster, broker, sent.command)
            else:
                accepted(answer, broker)
        except BrokerError as error:
            raise _explained(error, sent) from None


def _bytes_of(heads: Array) -> Array:
    return heads.view(np.uint8).reshape(len(heads), -1)


def _uploaded(row: Row, queue_id: int, now_ms: Millis) -> UploadedRow:
    message = row.message
    if not message.content:
        raise OptionError(
            f"column body is empty, topic {row.topic}, and guarantee is exactly-once: filter such rows out, or give "
            "them a body"
        )
    try:
        properties = outgoing.properties_of(message, "", now_ms)  # the form gives each message its unique key
        return UploadedRow(queue_id, message.content, outgoing.encode_properties(properties))
    except (ValueError, TypeError) as error:
        raise OptionError(f"a message for topic {row.topic} cannot be sent: {error}") from None


def _delay_ms(message: OutgoingMessage, now_ms: Millis) -> int:
    due_ms = message.asked_time_ms
    return (message.asked_delay_ms or 0) if due_ms is None else due_ms - now_ms


def _explained(error: BrokerError, sent: _Sent) -> Exception:
    """Return the error for a chunk that a broker rejects. It names the column or the option if it can."""
    answer = error.answer
    if answer is None:
        return error
    found = delays.refused(answer, sent.delay_ms, is_in_block=False)
    if isinstance(found, TooFarAhead):
        return too_far(found, sent.topic)
    remedy = ""
    if answer.code == ResponseCode.MESSAGE_ILLEGAL and "maxMessageSize" in (answer.remark or ""):
        remedy = ". The broker's maxMessageSize limits a body: set option maxBodyBytes to it"
    return BrokerError(f"rows for topic {sent.topic} are rejected: {error}{remedy}", answer)
