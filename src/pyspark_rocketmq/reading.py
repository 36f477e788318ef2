"""The work of a task: pull the ranges of a partition, and yield them as Arrow batches.

Pulls without a filter are pipelined: a broker returns at most 32 messages per pull by default, so one pull at a time
would wait for the network most of the time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.cluster import RETRY_DELAYS_S, Cluster, rejected
from pyspark_rocketmq.columns import arrow_schema
from pyspark_rocketmq.errors import BrokerError, DataLossError
from pyspark_rocketmq.mapped_store import BATCH_BYTES, MappedStore, NotInStore
from pyspark_rocketmq.offsets import Queue
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.ranges import OffsetRange
from pyspark_rocketmq.records import Records
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError
from wheelmq.formats.wire import headers
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.codes import RequestCode, ResponseCode
from wheelmq.formats.wire.frame import Command
from wheelmq.net.errors import CallError

log = logging.getLogger(__name__)

PIPELINED_PULLS: Final = 16
PULLED_MESSAGES: Final = 1024
"""Messages that a pull requests at most. The broker returns fewer: 32 by default."""
FULL_ANSWERS: Final = 16
"""Complete answers after which pulls request more messages again."""
BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch: Spark's own limit (spark.sql.execution.arrow.maxRecordsPerBatch)."""
_REMOVING: Final = "MESSAGE_WAS_REMOVING"


class PulledRecords(NamedTuple):
    """The records in an answer, and the queue offset after them."""

    body: bytes
    end: int


def read_ranges(
    options: SourceOptions, columns: Sequence[str], ranges: Sequence[OffsetRange]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges` as batches. Raises BrokerError, DataLossError, RecordError."""
    with Cluster(options.connection) as cluster:
        for one in ranges:
            cluster.locate(one.queue.topic, one.queue.broker)
            first = one.first
            if options.store_path is not None:
                first = yield from _read_files(cluster, options, tuple(columns), one)
            if first < one.end:
                rest = one._replace(first=first)
                yield from _read(options, tuple(columns), Pulls(cluster, options, rest))


def _read_files(
    cluster: Cluster, options: SourceOptions, columns: tuple[str, ...], one: OffsetRange
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the messages that the files of the store have. Returns the queue offset after them."""
    assert options.store_path is not None
    root = Path(options.store_path.replace("{broker}", one.queue.broker))
    at, subscription = one.first, options.filter.subscription(one.queue.topic)
    try:
        store = MappedStore(root)
        _check_same_store(cluster, options, store, one)
        while at < one.end:
            end = min(at + BATCH_ROWS, one.end)
            for records in store.records(one.queue, store.units(one.queue, at, end), at):
                yield to_batch(records, columns, one, subscription)
                at += len(records)
    except (NotInStore, RecordError) as problem:
        log.warning("%s: the task pulls queue %s from offset %d on from its broker", problem, one.queue, at)
    return at


def _check_same_store(cluster: Cluster, options: SourceOptions, store: MappedStore, one: OffsetRange) -> None:
    """Raise NotInStore unless the store is that of the broker.

    The first and the last record of the range must have the same bytes. They include the log position, the times and
    the address of the broker.
    """
    everything = Subscription.of_tags(one.queue.topic, "*")
    for offset in dict.fromkeys((one.first, one.end - 1)):
        answer = cluster.call(one.queue.broker, pull_request(options.group, one.queue, offset, 1, everything))
        if answer.code != ResponseCode.SUCCESS:
            raise NotInStore(f"the broker does not return offset {offset} (code {answer.code}: {answer.remark})")
        if bytes(answer.body) != store.record(one.queue, offset):
            raise NotInStore(f"the broker has another message at offset {offset} than its store")


def _read(options: SourceOptions, columns: tuple[str, ...], pulls: Pulls) -> Iterator[pa.RecordBatch]:
    bodies: list[bytes] = []
    size, first = 0, pulls.range.first
    for pulled in pulls:
        if pulled.body:
            bodies.append(pulled.body)
            size += len(pulled.body)
        if size >= BATCH_BYTES or (bodies and pulled.end - first >= BATCH_ROWS):
            yield from batches(b"".join(bodies), columns, pulls.range, pulls.subscription)
            bodies, size, first = [], 0, pulled.end
    if bodies:
        yield from batches(b"".join(bodies), columns, pulls.range, pulls.subscription)


def batches(
    raw: bytes, columns: tuple[str, ...], one: OffsetRange, subscription: Subscription
) -> Iterator[pa.RecordBatch]:
    """Yield the records in `raw` that belong to the range and have one of the tags. Raises RecordError."""
    batch = to_batch(Records(raw), columns, one, subscription)
    for at in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(at, BATCH_ROWS)


def to_batch(
    records: Records, columns: tuple[str, ...], one: OffsetRange, subscription: Subscription
) -> pa.RecordBatch:
    """Return the chosen columns of the records of a queue. Raises RecordError."""
    properties = records.properties() if subscription.tags_set or _needs_properties(columns) else None
    count = len(records)

    def column(name: str) -> pa.Array:
        match name:
            case "body":
                return records.bodies()
            case "topic" | "broker":
                return pa.repeat(pa.scalar(getattr(one.queue, name), pa.string()), count)
            case "queueId":
                return pa.repeat(pa.scalar(one.queue.number, pa.int32()), count)
            case "queueOffset":
                return pa.array(records.queue_offsets)
            case "bornTimestamp":
                return _times(pa.array(records.born_ms))
            case "storeTimestamp":
                return _times(pa.array(records.store_ms))
            case "reconsumeTimes":
                return pa.array(records.reconsume_times)
        assert properties is not None
        match name:
            case "tags":
                return properties.values_of(props.TAGS)
            case "keys":
                return properties.values_of(props.KEYS)
            case "properties":
                return properties.maps()
            case "msgId":
                return records.message_ids(properties)
        assert name == "deliverTime", name
        return _times(records.due_times_ms(properties))

    batch = pa.RecordBatch.from_arrays([column(name) for name in columns], schema=arrow_schema(columns))
    is_kept = (records.queue_offsets >= one.first) & (records.queue_offsets < one.end)
    if subscription.tags_set and properties is not None:  # the broker compares only the hashes of tags
        tags = pa.array(subscription.tags_set, pa.string())
        is_kept &= pc.is_in(properties.values_of(props.TAGS), tags).to_numpy(zero_copy_only=False)
    return batch if is_kept.all() else batch.filter(pa.array(is_kept))


def _needs_properties(columns: Sequence[str]) -> bool:
    return not {"tags", "keys", "properties", "msgId", "deliverTime"}.isdisjoint(columns)


def _times(ms: pa.Array) -> pa.Array:
    return pc.multiply(ms, 1000).cast(pa.timestamp("us", tz="UTC"))


def pull_request(group: str, queue: Queue, first: int, count: int, subscription: Subscription) -> Command:
    """Return the request for at most `count` messages from offset `first` on. It does not wait for new messages."""
    header = headers.PullHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.number,
        queue_offset=first,
        max_msg_nums=count,
        sys_flag=headers.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=subscription.sub_string,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=headers.write(header))


class Pulls:
    """The pulls of a range, in the order of their offsets."""

    def __init__(self, cluster: Cluster, options: SourceOptions, one: OffsetRange) -> None:
        self._cluster = cluster
        self._options = options
        self.range = one
        self.subscription = options.filter.subscription(one.queue.topic)
        self._window = PULLED_MESSAGES
        """Messages of the next pull. It follows from the answers, so that a pull usually has one answer."""
        self._depth = 1
        """Pulls at a time: one, until the first answer has shown how many messages the broker returns."""
        self._most = 0
        """The most messages of an answer."""
        self._full = 0
        """Complete answers since the last change of the window."""
        self._failures = 0

    def __iter__(self) -> Iterator[PulledRecords]:
        """Yield the answers. Raises BrokerError, DataLossError."""
        at = self.range.first
        while at < self.range.end:
            try:
                for pulled in self._pipelined(at):
                    self._failures = 0
                    at = pulled.end
                    yield pulled
            except CallError as error:
                if self._failures == len(RETRY_DELAYS_S):
                    raise BrokerError(f"broker {self.range.queue.broker} does not answer: {error}") from None
                threading.Event().wait(RETRY_DELAYS_S[self._failures])
                self._failures += 1

    def _pipelined(self, first: int) -> Iterator[PulledRecords]:
        """Yield the answers from offset `first` on. Raises CallError for a lost connection."""
        link = self._cluster.link(self.range.queue.broker)
        pending: deque[tuple[int, int, int]] = deque()
        """Request, first offset and end of each pull without an answer."""
        ahead = first
        try:
            while pending or ahead < self.range.end:
                while len(pending) < self._depth and ahead < self.range.end:
                    end = min(ahead + self._window, self.range.end) if self._is_open else self.range.end
                    pending.append((link.begin(self._request(ahead, end)), ahead, end))
                    ahead = end
                number, at, end = pending.popleft()
                pulled = self._pulled(link.finish(number), at, end)
                self._learn(pulled.end - at, end - at)
                yield pulled
                if not pending:
                    ahead = pulled.end
                while pending and pulled.end < end:
                    at = pulled.end
                    pulled = self._pulled(link.call(self._request(at, end)), at, end)
                    yield pulled
        finally:
            if pending:
                link.close()  # answers to the pending pulls may still come

    def _learn(self, count: int, requested: int) -> None:
        """Choose the size and the number of the next pulls, after an answer with `count` of `requested` messages."""
        if not self._is_open:
            return
        self._depth = PIPELINED_PULLS
        self._most = max(self._most, count)
        if count < requested:
            self._window, self._full = max(1, count), 0
        elif (full := self._full + 1) < FULL_ANSWERS:
            self._full = full
        else:
            self._window, self._full = min(2 * self._window, self._most), 0

    @property
    def _is_open(self) -> bool:
        """Whether the offset after a pull is known before its answer. With a filter it is not."""
        return self._options.filter.is_open

    def _request(self, first: int, end: int) -> Command:
        count = min(end - first, PULLED_MESSAGES)
        return pull_request(self._options.group, self.range.queue, first, count, self.subscription)

    def _pulled(self, answer: Command, first: int, end: int) -> PulledRecords:
        """Return the messages in the answer to a pull of [first, end). Raises BrokerError, DataLossError."""
        match answer.code:
            case ResponseCode.SUCCESS:
                after = int(answer.ext["nextBeginOffset"])
                if after <= first:
                    raise BrokerError(f"the broker returns offset {after} after {first}: queue {self.range.queue}")
                return PulledRecords(bytes(answer.body), after)
            case ResponseCode.PULL_RETRY_IMMEDIATELY:
                after = int(answer.ext["nextBeginOffset"])
                if after > first:
                    if answer.remark == _REMOVING:
                        self._lose(first, min(after, end))
                    return PulledRecords(b"", after)
                raise CallError(f"{self.range.queue.broker}: {answer.remark} at offset {first}")
            case ResponseCode.PULL_OFFSET_MOVED | ResponseCode.PULL_NOT_FOUND:
                after = int(answer.ext.get("nextBeginOffset", first))
                after = min(after, end) if after > first else end
                self._lose(first, after)
                return PulledRecords(b"", after)
        raise rejected(answer, f"broker {self.range.queue.broker}")

    def _lose(self, first: int, end: int) -> None:
        """Log messages that no longer exist. Raises DataLossError if option failOnDataLoss is true."""
        text = f"queue {self.range.queue}: the broker no longer has [{first}, {end})"
        if self._options.fails_on_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss to false to skip these messages")
        log.warning("%s. The read skips these %d messages, because failOnDataLoss is false.", text, end - first)
