"""Batch and streaming writes. Each row is sent at least once, with the same unique key at each attempt.

Messages are visible as soon as a broker has them, so `commit` has nothing to do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.options import SinkOptions
from pyspark_rocketmq.rows import RowForm, UniqueKeys

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for each task of a micro-batch."""


@dataclass
class SentRows(WriterCommitMessage):  # type: ignore[misc]
    """The number of rows that a task has sent."""

    rows: int


class RocketBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. With option jobId, another run of the same job gives its rows the same keys."""

    def __init__(self, options: SinkOptions, form: RowForm, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode overwrite cannot remove messages from a topic: use mode append")
        self._options = options
        self._form = form
        self._job = options.job_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        return _write(self._options, self._form, iterator, self._job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; %d of its tasks have sent their rows", sum(one is not None for one in messages))


class RocketStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A streaming write. The keys of rows contain the query and the batch."""

    def __init__(self, options: SinkOptions, form: RowForm) -> None:
        if options.job_id is not None:
            raise OptionError("option jobId has no use for a streaming sink, whose query has an id: remove it")
        self._options = options
        self._form = form

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        context = TaskContext.get()
        assert context is not None
        job = f"{context.getLocalProperty(QUERY_ID)}/{context.getLocalProperty(BATCH_ID)}"
        return _write(self._options, self._form, iterator, job)


def _write(options: SinkOptions, form: RowForm, batches: Iterator[pa.RecordBatch], job: str) -> SentRows:
    from pyspark_rocketmq.sending import send_partition

    context = TaskContext.get()
    assert context is not None
    return SentRows(send_partition(options, form, batches, UniqueKeys(job, context.partitionId())))
