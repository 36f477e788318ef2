"""Batch and streaming writes. Each row has the same unique key at each attempt.

With guarantee at-least-once, messages are visible as soon as a broker has them, so `commit` has nothing to do. With
exactly-once, tasks upload their rows, and `commit` makes the brokers append them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_rocketmq.errors import BrokerError, OptionError
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.rows import RowForm, UniqueKeys

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_rocketmq.uploads import PartitionUpload

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for each task of a micro-batch."""
ATTEMPT_MASK = (1 << 62) - 1
"""An attempt has a random number of 62 bits. Spark counts attempts from 0 on in each driver. So a task that outlives
its driver could replace the chunks of another one."""


@dataclass
class SentRows(WriterCommitMessage):  # type: ignore[misc]
    """The number of rows that a task has sent, with guarantee at-least-once."""

    rows: int


@dataclass
class UploadedRows(WriterCommitMessage):  # type: ignore[misc]
    """The uploads of a task, with guarantee exactly-once."""

    upload: PartitionUpload


class RocketBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. With option jobId, another run of the same job gives its rows the same keys."""

    def __init__(self, options: SinkOptions, form: RowForm, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode overwrite cannot remove messages from a topic: use mode append")
        self._options = options
        self._form = form
        self._job = options.job_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows | UploadedRows:
        if not self._options.is_exactly_once:
            return _send(self._options, self._form, iterator, self._job)
        is_named = self._options.job_id is not None
        return _upload(self._options, self._form, iterator, self._job, (self._job, 0), is_named)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class RocketStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A streaming write. The keys of rows contain the query and the batch."""

    def __init__(self, options: SinkOptions, form: RowForm, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("output mode complete sends the whole result again in each batch: use append or update")
        if options.job_id is not None:
            raise OptionError("option jobId has no use for a streaming sink, whose query has an id: remove it")
        self._options = options
        self._form = form

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows | UploadedRows:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        job = f"{query}/{batch}"
        if not self._options.is_exactly_once:
            return _send(self._options, self._form, iterator, job)
        if not query or not batch or not batch.isdecimal():
            raise OptionError(
                f"guarantee is exactly-once, and the query has no number for this batch (query {query}, batch {batch})"
                ": use a trigger with micro-batches, or set guarantee to at-least-once"
            )
        return _upload(self._options, self._form, iterator, job, (query, int(batch)), True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, messages)


def _send(options: SinkOptions, form: RowForm, batches: Iterator[pa.RecordBatch], job: str) -> SentRows:
    from pyspark_rocketmq.sending import send_partition

    return SentRows(send_partition(options, form, batches, UniqueKeys(job, _partition())))


def _upload(
    options: SinkOptions,
    form: RowForm,
    batches: Iterator[pa.RecordBatch],
    job: str,
    batch: tuple[str, int],
    is_repeatable: bool,
) -> UploadedRows:
    from pyspark_rocketmq.uploads import SinkBatch, upload_partition
    from wheelmq.formats.disk.batch import BatchId

    partition = _partition()
    keys = UniqueKeys(job, partition)
    work = SinkBatch(BatchId(*batch), is_repeatable)
    attempt = uuid4().int & ATTEMPT_MASK
    return UploadedRows(upload_partition(options, form, batches, keys, work, partition, attempt))


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _commit(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    if not options.is_exactly_once:
        return
    from pyspark_rocketmq.commits import commit_batch

    uploads = [one.upload for one in messages if isinstance(one, UploadedRows)]
    if len(uploads) < len(messages):
        raise BrokerError(
            f"{len(messages) - len(uploads)} of {len(messages)} tasks have no uploads: start the query again"
        )
    commit_batch(options.connection, uploads)


def _abort(options: SinkOptions, messages: list[WriterCommitMessage | None]) -> None:
    ended = sum(one is not None for one in messages)
    if options.is_exactly_once:
        log.warning("the write failed; brokers remove the uploads of its tasks an hour after the last one")
    else:
        log.warning("the write failed; %d of its tasks have sent their rows", ended)
