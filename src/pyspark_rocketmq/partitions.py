"""The partitions of a read, and the check of its filter before any task starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.cluster import Cluster
from pyspark_rocketmq.options import SourceOptions
from pyspark_rocketmq.ranges import OffsetRange, Survey, tasks

if TYPE_CHECKING:
    import pyarrow as pa


class RangesPartition(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads, one after the other, and the last known addresses of their brokers."""

    def __init__(self, ranges: tuple[OffsetRange, ...], addresses: Mapping[str, str]) -> None:
        self.ranges = ranges
        brokers = {one.queue.broker for one in ranges}
        self.addresses = {broker: address for broker, address in addresses.items() if broker in brokers}


def planned(
    options: SourceOptions, ranges: Iterable[OffsetRange], addresses: Mapping[str, str]
) -> list[InputPartition]:
    """Return the tasks that read `ranges`."""
    found = tasks(ranges, count_min=options.partitions_min, rows_max=options.partition_rows_max)
    return [RangesPartition(task, addresses) for task in found]


def read(options: SourceOptions, columns: tuple[str, ...], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task. Raises BrokerError, DataLossError, RecordError."""
    from pyspark_rocketmq.reading import read_ranges

    assert isinstance(partition, RangesPartition)
    return read_ranges(options, columns, partition.ranges, partition.addresses)


def check_filters(cluster: Cluster, options: SourceOptions, found: Survey) -> None:
    """Have each broker check option sql. Raises OptionError, BrokerError."""
    brokers: dict[str, set[str]] = defaultdict(set)
    for queue in found.spans:
        brokers[queue.topic].add(queue.broker)
    for topic, names in sorted(brokers.items()):
        cluster.check_filter(options.group, topic, options.filter, sorted(names))
