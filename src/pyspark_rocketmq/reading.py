"""The work of a task: read the ranges of a partition, and yield them as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.columns import arrow_schema
from pyspark_rocketmq.errors import SilentBroker
from pyspark_rocketmq.mapped_store import BATCH_BYTES, MappedStore, NotInStore
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.pulls import PulledRecords, Pulls, pull_one
from pyspark_rocketmq.ranges import OffsetRange
from pyspark_rocketmq.records import Records
from wheelmq.formats.disk import properties as props
from wheelmq.formats.disk.message import RecordError
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.codes import ResponseCode

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch: Spark's own limit (spark.sql.execution.arrow.maxRecordsPerBatch)."""


def read_ranges(
    options: SourceOptions, columns: Sequence[str], ranges: Sequence[OffsetRange], addresses: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges` as batches. Raises BrokerError, DataLossError, RecordError."""
    with Cluster(options.connection) as cluster:
        cluster.learn(addresses)
        for one in ranges:
            first = one.first
            if options.store_path is not None:
                first = yield from _read_files(cluster, options, tuple(columns), one)
            if first < one.end:
                rest = one._replace(first=first)
                yield from _read(tuple(columns), Pulls(cluster, options, rest))


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
    except (NotInStore, RecordError, SilentBroker) as problem:
        log.warning("%s: the task pulls queue %s from offset %d on from its broker", problem, one.queue, at)
    return at


def _check_same_store(cluster: Cluster, options: SourceOptions, store: MappedStore, one: OffsetRange) -> None:
    """Raise NotInStore unless the store is that of the broker.

    The first and the last record of the range must have the same bytes. They include the log position, the times and
    the address of the broker.
    """
    for offset in dict.fromkeys((one.first, one.end - 1)):
        answer = pull_one(cluster, options, one.queue, offset)
        if answer.code != ResponseCode.SUCCESS:
            raise NotInStore(f"the broker does not return offset {offset} (code {answer.code}: {answer.remark})")
        if bytes(answer.body) != store.record(one.queue, offset):
            raise NotInStore(f"the broker has another message at offset {offset} than its store")


def _read(columns: tuple[str, ...], pulls: Pulls) -> Iterator[pa.RecordBatch]:
    answers: list[PulledRecords] = []
    size, first = 0, pulls.range.first
    for pulled in pulls:
        if pulled.body:
            answers.append(pulled)
            size += len(pulled.body)
        if size >= BATCH_BYTES or (answers and pulled.end - first >= BATCH_ROWS):
            yield from _batches(answers, columns, pulls)
            answers, size, first = [], 0, pulled.end
    if answers:
        yield from _batches(answers, columns, pulls)


def _batches(answers: Sequence[PulledRecords], columns: tuple[str, ...], pulls: Pulls) -> Iterator[pa.RecordBatch]:
    """Yield the records in answers that belong to the range and have one of the tags.

    Raises RecordError. Raises DataLossError for records that an answer leaves out, if option failOnDataLoss is true.
    """
    records = Records(b"".join(one.body for one in answers))
    if pulls.is_open:
        _check_gaps(answers, records, pulls)
    batch = to_batch(records, columns, pulls.range, pulls.subscription)
    for at in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(at, BATCH_ROWS)


def _check_gaps(answers: Sequence[PulledRecords], records: Records, pulls: Pulls) -> None:
    """Note the queue offsets that answers without a filter leave out. Raises DataLossError.

    The offsets of a queue are consecutive. A broker skips records that are damaged on its disk, without an error.
    """
    expected = np.concatenate([np.arange(one.first, one.end) for one in answers])
    if np.array_equal(expected, records.queue_offsets):
        return
    missing = np.setdiff1d(expected, records.queue_offsets)
    for gap in np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1):
        if len(gap):
            pulls.note_gap(int(gap[0]), int(gap[-1]) + 1)


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
