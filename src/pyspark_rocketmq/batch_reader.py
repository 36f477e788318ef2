"""A batch read: from the starting offsets to the ending offsets, as they are when Spark plans the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets import OffsetSpan, Queue
from pyspark_rocketmq.options import GROUP, SourceOptions
from pyspark_rocketmq.partitions import RangesPartition, check_filters, planned, read
from pyspark_rocketmq.ranges import OffsetRange, settled
from pyspark_rocketmq.survey import report, resolve, survey
from wheelmq.system.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa


def _check_order(options: SourceOptions, queue: Queue, span: OffsetSpan, start: int, end: int) -> None:
    """Raise OptionError if the range of a queue starts after its end.

    A group may have consumed more than that, and the messages before an end may have expired.
    """
    if start > end >= span.first and options.start != GROUP:
        raise OptionError(
            f"the read of queue {queue} starts at offset {start}, after its end at {end}: choose an earlier "
            "startingOffsets or startingTimestamp, or a later endingOffsets or endingTimestamp"
        )


class RocketBatchReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the read. Raises OptionError, BrokerError, DataLossError."""
        options, now_ms = self._options, SystemClock().now_ms()
        with Cluster(options.connection) as cluster:
            found = survey(cluster, options)
            check_filters(cluster, options, found)
            starts = resolve(cluster, options, found, is_start=True, now_ms=now_ms)
            ends = resolve(cluster, options, found, is_start=False, now_ms=now_ms)
        for queue, end in ends.items():
            if end > found.spans[queue].end:
                raise OptionError(
                    f"endingOffsets has {end} for queue {queue}, which ends at {found.spans[queue].end}: lower it"
                )
        for queue, start in starts.items():
            span = found.spans[queue]
            if start <= span.end:  # otherwise messages are lost
                _check_order(options, queue, span, start, ends[queue])
        starts, losses = settled(starts, found)
        report(losses, fails=options.fails_on_loss)
        ranges = [OffsetRange(queue, first, ends[queue]) for queue, first in starts.items()]
        return planned(options, ranges, cluster.addresses) or [RangesPartition((), {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._columns, partition)
